"""Policies, workloads and results that papers published, to compare edl with them.

Each policy can be simulated on jobs of your own, too, in a checkout:
`edl simulate --trace FILE.csv --policy benchmarks.published.srtf:Srtf`. ``runs.py`` describes
simulations of the papers' jobs, ``pollux_answers`` and ``virtualflow_answers`` have their results,
and :mod:`benchmarks.scheduling` makes tables of all.
"""
