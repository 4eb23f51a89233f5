"""The code that ``edl.torch`` and ``edl.tensorflow`` share, which imports neither framework.

Scripts use it through these two modules.
"""
