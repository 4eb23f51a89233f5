"""What the training thread of a worker runs: steps, switches, the place in the data, saving.

:mod:`edl.worker.worker` is the object that a framework's API talks to. It knows neither ZooKeeper
nor HTTP: :mod:`edl.worker.coordinator` says what it needs of whoever coordinates the job, and
:mod:`edl.worker.shared_state` holds what a daemon's threads tell it.
"""
