"""Decide about slots as papers do, for comparison with the product's policies.

Each policy is in a file of its own.
"""
