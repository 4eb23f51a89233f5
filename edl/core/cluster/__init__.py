"""Decide how many slots (places for a worker) each job of a cluster gets, and on which nodes.

Each policy is a pure function in a file of its own: it decides from the values that it is given.
"""
