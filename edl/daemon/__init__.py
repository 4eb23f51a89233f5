"""The threads beside the training thread of a worker that keep its part in the job.

:mod:`edl.daemon.daemon` is a thread that listens to ZooKeeper, and :mod:`edl.leader.leader` what
that thread does while its worker leads. :mod:`edl.worker` is the training thread's side.
"""
