"""Define the interfaces of the state that all workers hold alike, in a framework or in a script."""

from __future__ import annotations

from typing import Protocol

from edl.checkpoint.store import Durable
from edl.ring.ring import Ring
from edl.worker.progress import Receive
from edl.worker.state_check import Compared


class Shared(Protocol):
    """The interface of this worker's copy of the state that is the same on all workers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Broadcast the state over ``ring``, from the rank ``root`` to all others.

        ``receive`` says which part of the state this worker takes over.
        """


class ScriptState(Shared, Compared, Protocol):
    """The interface of the shared state of a script that keeps its own place in its data."""


class Replica(Shared, Durable, Compared, Protocol):
    """The interface of the state of a framework: model, optimizer and tracked objects.

    All workers share it. Tracked objects, such as schedulers, are those given to ``edl.track``.
    """

    def end_batch(self, step: int, epoch: int) -> None:
        """Copy the state of the tracked objects, or load copies received from another worker.

        Tracked objects, such as schedulers, are those given to ``edl.track``. The copies are for
        workers that missed the last step; such a worker loads them here. It is called when the
        script asks for its next batch, and when it exchanges numbers with other workers before
        that.

        Args:
            step: the number of steps that are complete.
            epoch: the number of the present epoch.
        """
