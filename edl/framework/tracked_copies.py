"""Keep copies of tracked objects between two steps, for a worker that missed the last update.

:class:`TrackedCopies` keeps them. A worker misses an update if the ring breaks before it has the
averages, and others had them. Its script has gradients of zero, or infinite ones. What it computes
from them before its `optimizer.step()` (a history of norms, a count of skipped updates) differs
from what the other workers have computed. When it asks for its next batch, it is at the same place
of the script at which the others asked for theirs, so it loads the copies that another worker made
of its objects at that place. The copies are made and loaded also when the script exchanges values
between two steps, as in `edl.mean`, because the other workers may wait there for this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.framework.digest import PLAIN, places
from edl.framework.state import Trackable, load_into, map_leaves

LARGEST_BYTES = 2**20  # of a state that is copied in each step
MOST_VALUES = 1000  # numbers and arrays in it: a history of losses costs more than a step
KEPT = 2  # at the end of an epoch, a script comes to two such places without an update between

Place = tuple[int, int]  # step, epoch


class TrackedCopies:
    """Copies of a worker's small tracked objects, made each time the script asks for a batch."""

    def __init__(self) -> None:
        self._kept: dict[Place, dict[str, Any]] = {}
        self._received: Mapping[Place, dict[str, Any]] = {}
        self._large: set[str] = set()

    def sent(self) -> dict[Place, dict[str, Any]]:
        """Return the copies for a worker that missed the last update: a dict by place of dicts."""
        return {**self._received, **self._kept}

    def receive(self, kept: Mapping[Place, dict[str, Any]]) -> None:
        """Store copies of another worker's objects, for the next `end_batch` to load."""
        self._received = kept

    def forget(self) -> None:
        """Drop this worker's own copies: its state differed from the job's."""
        self._kept.clear()

    def end_batch(self, place: Place, things: Mapping[str, Trackable]) -> None:
        """Load the copies that were received for `place`; then keep copies of `things` there."""
        received, self._received = self._received, {}
        for name, state in received.get(place, {}).items():
            if name in things:
                load_into(things[name], state)
        states = {
            name: thing.state_dict() for name, thing in things.items() if name not in self._large
        }
        # What was once large, such as an average of all weights, is computed from shared weights.
        self._large |= {name for name, state in states.items() if not _is_small(state)}
        small = {name: state for name, state in states.items() if name not in self._large}
        self._kept[place] = map_leaves(small, lambda leaf, _: _copied(leaf))
        for old in [*self._kept][:-KEPT]:
            del self._kept[old]


def _is_small(state: Any) -> bool:
    """Return whether a tracked object's state has few values, all of types that can be copied."""
    size = 0
    for count, (_, container, key) in enumerate(places([state])):
        leaf = container[key]
        size += getattr(leaf, "nbytes", 0)
        is_odd = not isinstance(leaf, PLAIN) and not hasattr(leaf, "nbytes")
        if is_odd or count >= MOST_VALUES or size > LARGEST_BYTES:
            return False
    return True


def _copied(leaf: Any) -> Any:
    """Return a copy of an array, which later steps do not change; return any other value itself."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return leaf.copy() if hasattr(leaf, "copy") else leaf
