"""Read and write in ZooKeeper the state of a cluster: its jobs, hosts, queues and tenants.

A process proves the secret of the cluster in a session, gets the ``ClusterNodes`` (``nodes``), and
makes a ``ClusterStore`` (``store``) from them, or a ``TenantStore`` (``tenant_store``) with the
secret of a tenant.

- ``paths`` is the layout in ZooKeeper, ``format`` the version of the records, and ``nodes`` creates
  and opens a cluster.
- ``store`` reads a cluster as a whole. Its parts ``jobs``, ``hosts``, ``queues``, ``secrets``,
  ``tenants``, ``settings``, ``leader`` and ``events`` read and change one kind of record each;
  ``submission`` submits jobs, and ``job_reader`` reads thousands of them.
- ``writer`` writes what the leading controller decides, and ``runs`` reads the runs of jobs for it;
  ``request_nodes`` writes what a tenant has asked for.
- ``host_registration`` offers a host and reports what lives there.
"""
