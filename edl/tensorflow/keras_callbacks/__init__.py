"""Prepare the other callbacks of a ``fit`` for the job: their order, their states, who writes.

:class:`edl.tensorflow.fit.KerasCallback` ties them to the job. There is one concern a module:
``order`` has the list of callbacks, ``memory`` their states, ``values`` the values of which states
are made, ``writers`` the callbacks that write files, ``agreement`` the rows that the workers
exchange at the end of an epoch, ``metrics`` the results of metrics over all workers, and
``additive`` the question whether a metric's state is a sum.
"""
