"""edl beside the systems that a user would take in its place, all by the same measurements.

The systems are Horovod Elastic, torchrun with DDP (PyTorch's DistributedDataParallel) and torchft.
:mod:`benchmarks.peers.jobs` starts, resizes and strikes a job of each; :mod:`~.measure` looks at
the steps that the workers complete meanwhile; :mod:`~.page` writes benchmarks/results/peers.md.
"""
