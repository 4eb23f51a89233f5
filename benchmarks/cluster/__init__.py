"""Measurements of a live cluster, whose controllers, hosts and jobs are real processes."""
