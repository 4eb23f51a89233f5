"""The HTTP port of a worker's daemon, and its client. Knows no ring and no ZooKeeper."""
