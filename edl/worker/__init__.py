"""The training thread of a worker: its steps, switches, position in the data and checkpoints.

:class:`edl.worker.worker.Worker` is the class of the object that a framework's API talks to. This
package knows neither ZooKeeper nor HTTP: :mod:`edl.worker.coordinator` is the interface of the side
that coordinates the job, and :mod:`edl.worker.shared_state` holds what the daemon's threads tell
the training thread, and the other way round.
"""
