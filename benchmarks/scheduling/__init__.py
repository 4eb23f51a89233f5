"""Cluster policies on published work: ``make tables`` writes benchmarks/results/scheduling.md.

scope.py         which loads, workloads, seeds and intervals: a part of a minute, or all
summary.py       what is kept of a run, finish-time fairness included
store.py         all runs side by side, each only once; what is done is kept on disk
published.py     Pollux' published answers, job by job      jsa.py       JSA's claims
fidelity.py      VirtualFlow's measured jobs, and how near others' simulators come
resizing.py      completion time against the cost of a resize and the interval
rivals.py        all policies on the jobs of each paper, edl's own beside them

A part names its runs, and makes its tables and figures of their summaries. Nothing is random but
what the seeds say, so the page is the same on any machine with the same processor and NumPy. Pollux
fits its models with BLAS, whose kernels sum in orders of their own: on other processors a mean of
its completion times over one workload may differ by 2 %.
"""
