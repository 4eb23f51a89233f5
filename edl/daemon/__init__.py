"""Run the daemon of a worker: the threads that connect it to ZooKeeper and to other workers.

:mod:`edl.daemon.daemon` is a thread that reads and writes ZooKeeper. :mod:`edl.leader.leader` is
what that thread does while its worker leads. :mod:`edl.worker` has the code of the training thread.
"""
