"""Tools for tests of training scripts and of edl: jobs in one process, real jobs, a ZooKeeper."""
