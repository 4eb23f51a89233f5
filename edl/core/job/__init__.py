"""Decide about one job: its members, its size, dead and slow workers, workers per host."""
