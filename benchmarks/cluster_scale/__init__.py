"""A thousand jobs on two hundred hosts of one cluster, on one machine, with stand-ins.

ZooKeeper and the controllers are the real ones, and so are all records and the decisions of
`edl host`. The processes of jobs are stand-ins: they write what agents and workers write, and train
nothing. ``python -m benchmarks.cluster_scale`` writes benchmarks/results/cluster-scale.md.

- ``loop``, ``hosts``, ``runs``, ``standins``: the stand-ins.
- ``workload``: the jobs: a thousand at once, and a day of ten thousand.
- ``observed``: a controller that writes down how long each of its turns takes.
- ``lab``, ``measure``: the cluster, and what is measured with it.
"""
