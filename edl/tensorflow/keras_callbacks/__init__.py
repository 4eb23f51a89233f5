"""Prepare the other callbacks of a ``fit`` for the job: their order, their states, who writes.

:class:`edl.tensorflow.fit.KerasCallback` calls the modules of this package. ``order`` puts the
callbacks in order, ``memory`` sends their states to newcomers, ``values`` converts attributes to
data that can be sent, ``writers`` lets callbacks write on rank 0 only, ``agreement`` builds the
rows that workers exchange at the end of an epoch, ``metrics`` computes metrics over all workers,
and ``additive`` decides whether a metric's state is a sum.
"""
