"""Read and write in ZooKeeper the state of a cluster: its jobs, hosts, queues and tenants.

A process proves the secret of the cluster in a session, gets the ``ClusterNodes``, and makes a
``ClusterStore`` from them, or a ``TenantStore`` with the secret of a tenant. The leading controller
writes through a ``ClusterWriter``; ``paths`` lists the nodes.
"""
