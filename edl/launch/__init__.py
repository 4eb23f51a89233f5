"""Starting workers: the agent of ``edl run`` and ``edl join``, its processes and their output."""
