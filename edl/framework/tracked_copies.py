"""Keep copies of tracked objects between two steps, for a worker that missed the last update.

The script of such a worker has gradients of zero, or infinite ones. What it computes from them
before its `optimizer.step()` (a history of their norms, a count of skipped updates) differs from
what the other workers have computed. When it asks for its next batch, it is at the same place of
the script at which the others asked for theirs, so it takes over their objects as they were there.
An exchange between two steps, as in `edl.mean`, is such a place, too: the others may wait in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.framework.digest import PLAIN, places
from edl.framework.state import Trackable, map_leaves

LARGEST_BYTES = 2**20  # of a state that is copied in each step
MOST_VALUES = 1000  # numbers and arrays in it: a history of losses costs more than a step
KEPT = 2  # at the end of an epoch, a script comes to two such places without an update between

Place = tuple[int, int]  # step, epoch


class TrackedCopies:
    """Copies of a worker's small tracked objects, at the last places between two batches.

    A large object, such as an average of all weights, is not copied. It is left to the script,
    because it follows from the weights, which all workers share.
    """

    def __init__(self) -> None:
        self._kept: dict[Place, dict[str, Any]] = {}
        self._received: Mapping[Place, dict[str, Any]] = {}
        self._large: set[str] = set()

    def sent(self) -> dict[Place, dict[str, Any]]:
        """Return the copies that go to a worker that missed the last update, by place."""
        return {**self._received, **self._kept}

    def receive(self, kept: Mapping[Place, dict[str, Any]]) -> None:
        """Store the copies of another worker in this worker, which missed the last update.

        They are used by :meth:`end_batch`.
        """
        self._received = kept

    def forget(self) -> None:
        """Drop this worker's own copies, because its state was not the job's."""
        self._kept.clear()

    def end_batch(self, place: Place, things: Mapping[str, Trackable]) -> None:
        """Keep copies of ``things`` at ``place``, after loading what was received for that place.

        Args:
            place: the step and the epoch, at which the script asks for a batch.
            things: the tracked objects by name.
        """
        received, self._received = self._received, {}
        for name, state in received.get(place, {}).items():
            if name in things:
                things[name].load_state_dict(state)
        states = {
            name: thing.state_dict() for name, thing in things.items() if name not in self._large
        }
        self._large |= {name for name, state in states.items() if not _is_small(state)}
        small = {name: state for name, state in states.items() if name not in self._large}
        self._kept[place] = map_leaves(small, lambda leaf, _: _copied(leaf))
        for old in [*self._kept][:-KEPT]:
            del self._kept[old]


def _is_small(state: Any) -> bool:
    """Return whether a state has few values, all of types that can be copied.

    The limits are :data:`MOST_VALUES` values and :data:`LARGEST_BYTES` bytes of arrays.
    """
    size = 0
    for count, (_, container, key) in enumerate(places([state])):
        leaf = container[key]
        size += getattr(leaf, "nbytes", 0)
        is_odd = not isinstance(leaf, PLAIN) and not hasattr(leaf, "nbytes")
        if is_odd or count >= MOST_VALUES or size > LARGEST_BYTES:
            return False
    return True


def _copied(leaf: Any) -> Any:
    """Return a copy of an array that later steps do not change; return any other value itself."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return leaf.copy() if hasattr(leaf, "copy") else leaf
