"""Keep what a script tracks, as it is between two steps, for a worker that missed the last update.

The script of such a worker has gradients of zero, or infinite ones, in its hands. What it computes
from them before its `optimizer.step()` (a history of their norms, a count of skipped updates) is
not what the others have computed. When it asks for its next batch, it is at the same place of the
script at which the others asked for theirs, so it takes over their objects as they were there. An
exchange between two steps, as in `edl.mean`, is such a place, too: the others may wait in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.framework.digest import PLAIN, places
from edl.framework.state import Stateful, map_leaves

LARGEST_BYTES = 2**20  # of a state that is copied in each step
MOST_VALUES = 1000  # numbers and arrays in it: a history of losses costs more than a step
KEPT = 2  # at the end of an epoch, a script comes to two such places without an update between

Place = tuple[int, int]  # step, epoch


class TrackedCopies:
    """One worker's part: copies of the small objects at the last places between two batches.

    A large one, such as an average of all weights, is left to the script: it follows from the
    weights, which are the job's.
    """

    def __init__(self) -> None:
        self._kept: dict[Place, dict[str, Any]] = {}
        self._received: Mapping[Place, dict[str, Any]] = {}
        self._large: set[str] = set()

    def sent(self) -> dict[Place, dict[str, Any]]:
        """What goes to a worker that missed the last update."""
        return {**self._received, **self._kept}

    def receive(self, kept: Mapping[Place, dict[str, Any]]) -> None:
        """This worker missed it."""
        self._received = kept

    def forget(self) -> None:
        """What is kept was not the job's."""
        self._kept.clear()

    def end_batch(self, place: Place, things: Mapping[str, Stateful]) -> None:
        """Keep ``things`` as they are at ``place``; first take over what was received for it."""
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
    """Whether its values are few, and such that they can be copied."""
    size = 0
    for count, (_, container, key) in enumerate(places([state])):
        leaf = container[key]
        size += getattr(leaf, "nbytes", 0)
        is_odd = not isinstance(leaf, PLAIN) and not hasattr(leaf, "nbytes")
        if is_odd or count >= MOST_VALUES or size > LARGEST_BYTES:
            return False
    return True


def _copied(leaf: Any) -> Any:
    """A copy of an array that later steps do not reach."""
    if hasattr(leaf, "detach"):
        return leaf.detach().clone()
    return leaf.copy() if hasattr(leaf, "copy") else leaf
