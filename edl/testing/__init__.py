"""Tools for tests of training scripts and of edl.

:mod:`edl.testing.job` runs real jobs, :mod:`edl.testing.zookeeper` real ZooKeeper servers, and
:mod:`edl.testing.loopback` a whole job in one process, under virtual time.
"""
