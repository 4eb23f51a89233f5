"""Submit jobs to a cluster, and watch and change it: what :class:`edl.client.Cluster` needs."""
