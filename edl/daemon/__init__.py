"""Run the daemon of a worker: the threads that connect it to ZooKeeper and to other workers.

The entry point is :class:`edl.daemon.daemon.Daemon`: its thread reads and writes ZooKeeper, and its
HTTP server answers other workers. :mod:`edl.leader.leader` is what that thread does while its
worker leads. :mod:`edl.worker` has the code of the training thread.
"""
