"""Build Horovod for today's PyTorch and TensorFlow, and check whether a machine can run edl.

The modules :mod:`edl.install.horovod_wheel` and :mod:`edl.install.doctor` are the entry points.
"""
