"""Build, use, close and, when a worker is lost, break the ring (Horovod's communicator)."""
