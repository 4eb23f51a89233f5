"""Serve the HTTP port of a worker's daemon, and send requests to it; use no ring, no ZooKeeper."""
