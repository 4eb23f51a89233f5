"""The edl of one worker process.

:mod:`edl.daemon.worker` is the training thread's side: it steps, switches and synchronises.
:mod:`edl.daemon.daemon` is a thread beside it that listens to ZooKeeper, and
:mod:`edl.leader.leader` what that thread does while its worker leads.
"""
