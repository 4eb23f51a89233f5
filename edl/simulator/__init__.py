"""Simulate many jobs on one cluster under virtual time, to see what a policy does to each of them.

:func:`edl.simulator.engine.simulate` runs a list of jobs: it moves time and asks a policy of
:mod:`edl.cluster`. :func:`edl.simulator.runs.do_all` computes several runs, as `edl simulate` does.
"""
