"""Compute what all workers must agree on in a training step.

That is: the step records, the data ledger, the weights of the gradients, and the order of the
samples.
"""
