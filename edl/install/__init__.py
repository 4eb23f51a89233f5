"""Building Horovod for today's frameworks, and checking that a machine can run edl."""
