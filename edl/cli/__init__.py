"""The command line `edl`: each of its commands has a module of its own."""
