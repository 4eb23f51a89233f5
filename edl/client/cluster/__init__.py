"""Submit jobs to a cluster, and watch and change it: what :class:`edl.client.Cluster` needs.

- ``client`` is the object for programs; its parts ``hosts``, ``policy``, ``queues``, ``secrets``
  and ``tenants`` have a module each.
- ``access`` finds a cluster and its secret, and ``connection`` opens it.
- ``waiting`` reads jobs and waits for them, and ``plans`` asks the policy without a change.
- ``logs`` and ``host_logs`` read logs, ``manifest_reading`` reads manifests, and ``history_file``
  keeps a history.
"""
