"""The training scripts in PyTorch: edl, plain Horovod, stock Horovod Elastic."""
