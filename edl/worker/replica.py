"""Define the interfaces of the state that all workers hold alike, in a framework or in a script.

:class:`Replica` is a framework's model and optimizer; :class:`ScriptState` is a script's own state.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from edl.checkpoint.saved_state import Durable
from edl.ring.ring import Ring
from edl.worker.progress import Receive
from edl.worker.state_check import Compared


class Shared(Protocol):
    """The interface to broadcast a state that is the same on all workers."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Broadcast the state from the rank `root`; with `NOTHING` this worker's stays the same."""


class ScriptState(Shared, Compared, Protocol):
    """The interface to broadcast and compare the state of a script that loads its own data."""


class Replica(Shared, Durable, Compared, Protocol):
    """The interface to broadcast, compare and save a framework's state."""

    def end_batch(self, step: int, epoch: int) -> None:
        """Copy the state of the tracked objects, or load copies received from another worker."""
        # One that missed the last step has received copies, and loads them; all others make some to
        # send. Called when the script asks for its next batch, or exchanges numbers before.

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Set BatchNorm's averages, each worker's own in training, to their means over all."""
