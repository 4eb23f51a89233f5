"""For tests of training scripts and of edl itself: a job in one process, real jobs, a ZooKeeper."""
