"""Run the threads beside the training thread of a worker, which keep the worker in its job.

:mod:`edl.daemon.daemon` is a thread that listens to ZooKeeper. :mod:`edl.leader.leader` is what
that thread does while its worker leads. :mod:`edl.worker` is the side of the training thread.
"""
