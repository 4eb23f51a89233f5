"""Compute what all workers must agree on in a training step.

That is: the step records (``step_record``), the data ledger (``ledger``), the weights of the
gradients (``weighting``), the order of the samples (``shuffle``), and whether the workers' states
are equal (``state_check``). Nothing here sends a message, or reads a file or a clock.
"""
