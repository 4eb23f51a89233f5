"""Simulate many jobs on one cluster under virtual time, to see what a policy does to each of them.

:func:`edl.simulator.engine.simulate` runs a list of jobs: it moves time and asks a policy of
:mod:`edl.cluster`. :func:`edl.simulator.runs.do_all` computes runs that are described by
names, as `edl simulate` does. :mod:`edl.simulator.published` has the workloads and the answers of
papers, and policies that serve only for comparison. :mod:`edl.simulator.registry`,
:mod:`edl.simulator.built_in`, :mod:`edl.simulator.trace` and :mod:`edl.simulator.runs` use both; no
other module of this package imports :mod:`edl.simulator.published`.
"""
