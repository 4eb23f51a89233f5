"""Build Horovod for today's PyTorch and TensorFlow, and check whether a machine can run edl."""
