"""A cluster of elastic jobs: which job gets how many slots where, and the processes that do it.

:func:`edl.cluster.plan.plan` makes all decisions of a live cluster, and calls one of ``policies``;
these and what they decide from are pure. ``store``, ``runs``, ``submission`` and ``writer`` read
and write ZooKeeper, in a session that has proven the cluster's secret or that of a tenant.
``controller`` leads, ``host`` starts runs on a machine, ``fleet`` asks Slurm or Ray for machines,
and ``client`` submits jobs.
"""
