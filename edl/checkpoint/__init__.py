"""Save and read a job's state on disk: the checkpoint format and the checkpoint directory.

:mod:`edl.checkpoint.store` saves and restores while a job runs, :mod:`edl.checkpoint.writer`
writes; :mod:`edl.checkpoint.weights` reads
checkpoints without the job.
"""
