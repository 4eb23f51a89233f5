"""The commands that are about a cluster of jobs only, one file a command.

Commands for jobs with and without a cluster (`edl delete`, `drain`, `events`, `logs`) are in
``edl.cli``.
"""
