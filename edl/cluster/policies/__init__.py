"""The policies that share the slots of a cluster among its jobs, each in a file of its own."""
