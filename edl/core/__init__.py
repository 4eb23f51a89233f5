"""Decide everything in edl by pure functions: no clock, I/O, thread, environment or framework.

A decision that users are told of comes with its reason, in a sentence with numbers. The packages
are: ``step`` holds the decisions of every training step, ``job`` the decisions about a job's
workers, ``host`` the decisions about one host, ``policy`` the size (number of workers) that a job
asks for, and ``cluster`` the allocation of slots to several jobs. The module ``records`` holds the
values that these packages and the rest of edl read and write.
"""
