"""Save and read a job's state on disk: the checkpoint format and the checkpoint directory.

While a job runs, :mod:`edl.checkpoint.store` restores its state and decides when to save it, and
:mod:`edl.checkpoint.writer` writes it. :mod:`edl.checkpoint.weights` reads checkpoints without the
job.
"""
