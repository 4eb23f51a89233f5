"""Many jobs on one cluster under virtual time: what each cluster policy does to their completion.

The policies are those of :mod:`edl.core.cluster`. :mod:`edl.simulator.engine` moves time;
:mod:`edl.simulator.pollux` has the published workloads of Pollux, :mod:`edl.simulator.trace` reads
others; :mod:`edl.simulator.published` compares with the published answers.
"""
