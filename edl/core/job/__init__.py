"""Decide about one job: which workers its ring has, on which hosts, and which are dead or slow."""
