"""What ``edl.torch`` and ``edl.tensorflow`` share and what no framework needs to be known for."""
