"""Decide what a job's policy decides: the number of workers, the batches, the learning rate.

A policy also decides what is done about slow workers. All of this is pure functions.

A size rule chooses the number of workers; each rule has a module of its own. A rule is called with
an observation of the job (:mod:`edl.core.policy.observation`), the state that it returned the last
time, and the time. It returns the size that it wants, the reason, and its new state. The leader of
a live job calls the rule at step boundaries; a simulator calls it under its own time. A rule reads
no clock and keeps no state in itself.
"""
