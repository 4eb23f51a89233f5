"""Hold the cluster policies of papers, for comparison with edl's own policies.

Each policy is in a file of its own.
"""
