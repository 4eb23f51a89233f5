"""The process `edl host`, which starts the runs that a cluster assigns to its host."""
