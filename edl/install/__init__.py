"""Build Horovod for today's frameworks, and check whether a machine can run edl."""
