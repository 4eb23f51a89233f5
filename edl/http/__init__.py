"""Serve the HTTP port of a worker's daemon, and send requests to it, without ring or ZooKeeper."""
