"""The other callbacks of a ``fit``: in which order they run, what they remember, who writes.

:class:`edl.tensorflow.fit.KerasCallback` ties them to the job. One concern a module: ``order`` has
the list of callbacks, ``memory`` their states and ``values`` what these are made of, ``writers``
those that write files, ``agreement`` what the workers exchange at the end of an epoch.
"""
