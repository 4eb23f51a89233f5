"""The interfaces of the state that all workers hold alike, as a framework or a script keeps it."""

from __future__ import annotations

from typing import Protocol

from edl.checkpoint.store import Durable
from edl.ring.ring import Ring
from edl.worker.progress import Receive
from edl.worker.state_check import Compared


class Shared(Protocol):
    """The interface of the state that all workers hold alike, in this process."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Broadcast the state over ``ring``, from the rank ``root`` to all others.

        ``receive`` is the part of the state that this worker takes over.
        """


class ScriptState(Shared, Compared, Protocol):
    """The interface of the state of a script that keeps its own place in its data."""


class Replica(Shared, Durable, Compared, Protocol):
    """The interface of what all workers share in a framework: model, optimizer, tracked objects."""

    def end_batch(self, step: int, epoch: int) -> None:
        """Keep a copy of what the script tracks, or take over the copies that others have kept.

        It is called when the script asks for its next batch, and when it exchanges something before
        that.

        Args:
            step: the number of steps that are complete.
            epoch: the number of the present epoch.
        """
