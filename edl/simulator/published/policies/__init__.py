"""Hold the cluster policies of papers, for comparison with edl's own policies.

Each policy is in a file of its own, as a class whose objects decide when they are called with the
state of a cluster. :mod:`edl.simulator.registry` has them by name.
"""
