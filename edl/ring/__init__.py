"""Build, use, close and, if need be, break the ring (Horovod's communicator) of one generation."""
