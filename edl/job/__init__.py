"""Decide about one job: which workers its ring has, on which hosts, and which are dead or slow.

The entry points are :func:`edl.job.membership.decide` for a leader, and
:func:`edl.job.decision.set_desired` for a change of the number of workers.
"""
