"""Decide how many slots (places for a worker) each job of a cluster gets, and on which nodes.

:func:`edl.core.cluster.plan.plan` makes all decisions of a live cluster. Each policy is a pure
function in a file of its own: it decides from the values that it is given.
:mod:`edl.core.cluster.policies` has the policies by name.
"""
