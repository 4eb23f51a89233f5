"""Compute what all workers must agree on in a training step.

That is: the step records (``step_record``), the data ledger (``ledger``), the weights of the
gradients (``weighting``), and the order of the samples (``shuffle``). All functions are pure.
"""
