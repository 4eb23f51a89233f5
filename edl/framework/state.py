"""Send a state from the state source to other workers: a description, and then the arrays.

The state source pickles a description of its state, in which each array is replaced by a reference,
and sends it in one message. The bytes of the arrays follow in a few large pieces
(:func:`exchange_state`). Pickles are exchanged only between the workers of one ring.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np

from edl.core.dict_kinds import dict_of_kind, kind_of_dict
from edl.errors import RingBroken
from edl.ring.ring import CollectiveFailed, Ring

LARGE_BYTES = 2**18  # an array of this size is worth a collective of its own
_dumps = partial(pickle.dumps, protocol=5)  # before 5, NumPy's arrays lose their byte order

Array = TypeVar("Array")


@dataclass(frozen=True)
class Reference:
    """A placeholder for one array in the description of a state."""

    index: int  # of the array among all arrays of the state, from 0
    shape: tuple[int, ...]
    dtype: str  # in the framework's words
    size: int  # bytes
    device: str = "cpu"  # device type; the receiver has its own device of that type


@runtime_checkable
class Trackable(Protocol):
    """The interface of an object that `edl.track` accepts: its state can be read and loaded."""

    def state_dict(self) -> Any:
        """Return the state of the object: nested containers, arrays, and values to be pickled."""

    def load_state_dict(self, state: Any) -> Any:
        """Replace this object's state by `state`; the result is ignored."""


def load_into(thing: Trackable, state: Any) -> None:
    """Load `state`, which is of the present job, into the tracked object `thing`."""
    # Scripts call `load_state_dict` of edl's own objects with states of other jobs.
    getattr(thing, "edl_load_state_dict", thing.load_state_dict)(state)


class Arrays(Protocol[Array]):
    """The interface by which a framework recognises its arrays in a state, and sends them."""

    def refer(self, value: Any, index: int) -> tuple[Array, Reference] | None:
        """Return a pair, the array to send for `value` and a reference to it; None if no array."""

    def empty(self, reference: Reference) -> Array:
        """Return a new array for the reference to an array without elements, which is not sent."""

    def broadcast(
        self, sent: list[Reference], arrays: list[Array] | None, root: int, keep: bool
    ) -> dict[int, Array]:
        """Send arrays from the rank `root` to all; return them by index where `keep` is true."""


def exchange_state(
    arrays: Arrays[Any],
    ring: Ring,
    root: int,
    state: Any,
    keep: bool,
    dumps: Callable[[Any], bytes] = _dumps,
) -> Any:
    """Broadcast the state of the rank `root`; return it on the workers that need it."""
    taken: list[Any] = []
    sending = ring.place.rank == root
    mine = dumps(describe(state, taken, arrays.refer)) if sending else b""
    description = pickle.loads(ring.broadcast(mine, root, "edl.state"))
    try:
        received = arrays.broadcast(references(description), taken if sending else None, root, keep)
    except CollectiveFailed as error:
        raise RingBroken(ring.generation, str(error)) from error
    return fill(description, received, arrays.empty) if keep else None


def map_leaves(value: Any, leaf: Callable[[Any, str], Any], where: str = "state") -> Any:
    """Return a copy of nested containers in which each leaf is replaced by `leaf(value, place)`."""
    if isinstance(value, dict):
        items = {key: map_leaves(item, leaf, f"{where}[{key!r}]") for key, item in value.items()}
        return dict_of_kind(kind_of_dict(value), items)
    if isinstance(value, list):
        return [map_leaves(item, leaf, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return tuple(map_leaves(item, leaf, f"{where}[{i}]") for i, item in enumerate(value))
    return leaf(value, where)


def describe(
    state: Any, taken: list[Array], refer: Callable[[Any, int], tuple[Array, Reference] | None]
) -> Any:
    """Return a copy of `state` with a reference in place of each array; put these in `taken`."""

    def leaf(value: Any, _where: str) -> Any:
        found = refer(value, len(taken))
        if found is None:
            return _in_one_piece(value)
        array, reference = found
        taken.append(array)
        return reference

    return map_leaves(state, leaf)


def _in_one_piece(value: Any) -> Any:
    """Return `value`; a copy if it is a NumPy array with gaps, whose pickle has no byte order."""
    if type(value) is not np.ndarray or value.flags.forc:
        return value
    return value.copy()


def fill(description: Any, arrays: Mapping[int, Array], empty: Callable[[Reference], Array]) -> Any:
    """Return a state from its description, with each reference replaced by its array."""

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, Reference):
            return value
        # An array without elements is not sent.
        return arrays[value.index] if value.index in arrays else empty(value)

    return map_leaves(description, leaf)


def references(description: Any) -> list[Reference]:
    """Return all references in a description, sorted by index."""
    found: list[Reference] = []

    def look(value: Any, _where: str) -> None:
        if isinstance(value, Reference):
            found.append(value)

    map_leaves(description, look)
    return sorted(found, key=lambda reference: reference.index)


def transfers(
    all_references: Iterable[Reference], large_bytes: int = LARGE_BYTES
) -> Iterator[list[Reference]]:
    """Yield groups of references, the same on all workers; each is sent in one collective."""
    small: list[Reference] = []
    size = 0
    for reference in sorted(all_references, key=lambda r: (r.device, r.index)):
        if reference.size >= large_bytes:
            yield [reference]
        elif reference.size > 0:
            if small and (size >= large_bytes or small[0].device != reference.device):
                yield small
                small, size = [], 0
            small.append(reference)
            size += reference.size
    if small:
        yield small


def few(texts: list[str]) -> str:
    """Return the first three of `texts` joined by semicolons, and how many more there are."""
    rest = len(texts) - 3
    return "; ".join(texts[:3]) + (f" and {rest} more" if rest > 0 else "")
