"""The process `edl host`, which starts the runs that a cluster assigns to its host.

``start`` puts it together, ``keeper`` does its turns, and ``agents`` starts and ends the agents of
runs. ``owner`` keeps a second process from the same host, ``job_users``, ``log_places`` and
``secret_files`` prepare what a run needs, and ``log_server`` serves the logs of runs.
"""
