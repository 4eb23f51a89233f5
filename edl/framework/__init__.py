"""The code that ``edl.torch`` and ``edl.tensorflow`` share, which imports neither framework."""
