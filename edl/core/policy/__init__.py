"""Decide how many workers a job should have, by policies: pure functions, one rule a file.

A rule is called with a value (:mod:`edl.core.policy.observation`), the state that it returned the
last time, and the time. It returns the size that it wants, why, and its new state. The leader of a
live job calls the rule at step boundaries; a simulator calls it under its own time. A rule reads no
clock and keeps no state in itself.
"""
