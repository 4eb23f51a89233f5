"""The command line `edl`: :mod:`edl.cli.main` runs it, and each command has its own module."""
