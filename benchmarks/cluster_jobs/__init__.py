"""Eight real jobs on a live cluster of two hosts, beside the same jobs in the simulator.

``python -m benchmarks.cluster_jobs`` (`make cluster-jobs`) does all of it and writes
benchmarks/results/cluster.md. It needs root, for the network namespaces that are the hosts.

workload.py   the eight jobs, and what their steps wait
waiting.py    runs a training script whose steps wait, and logs its steps
network.py    the hosts
machines.py   what runs on them: ZooKeeper, controllers, `edl host`; kills and restarts
profiling.py  measures the step time of each job with each number of workers
live.py       plays the jobs on the live cluster under one policy, and records their slots
counts.py     judges the counts of the jobs' samples
costs.py      measures what starts and changes of size cost
simulated.py  plays the same jobs in the simulator
report.py     the page, and gantt.py its figure
"""
