"""Send a state from the state source to other workers: a description, and then the arrays.

The state source pickles a description of its state, in which each array is replaced by a reference,
and sends it in one message. The bytes of the arrays follow in a few large pieces. Pickles are
exchanged only between the workers of one ring.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar, runtime_checkable

from edl.errors import RingBroken
from edl.ring.ring import CollectiveFailed, Ring

LARGE_BYTES = 2**18  # an array of this size is worth a collective of its own

Array = TypeVar("Array")


@dataclass(frozen=True)
class Reference:
    """A placeholder for one array in the description of a state.

    Attributes:
        index: the number of the array among all arrays of the state, from 0.
        shape: the shape of the array.
        dtype: the type of its elements, as the framework names it.
        size: its size in bytes.
        device: the type of the device that it is on; the receiver has its own device of that type.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str  # in the framework's words
    size: int  # bytes
    device: str = "cpu"  # device type; the receiver has its own device of that type


@runtime_checkable
class Trackable(Protocol):
    """The interface of an object that ``edl.track`` accepts: its state can be read and loaded."""

    def state_dict(self) -> Any:
        """Return the state of the object."""

    def load_state_dict(self, state: Any) -> Any:
        """Take over ``state``, the result of :meth:`state_dict` of an object of the same type."""


class Arrays(Protocol[Array]):
    """The interface by which a framework recognises its arrays in a state, and sends them."""

    def refer(self, value: Any, index: int) -> tuple[Array, Reference] | None:
        """Return the array to send for ``value``, and a reference to it; None if it is no array.

        Args:
            value: a value of the state.
            index: the number that the reference gets.
        """

    def empty(self, reference: Reference) -> Array:
        """Return a new array without elements that has the type and shape of ``reference``.

        Such arrays are not sent, because they have no bytes.
        """

    def broadcast(
        self, sent: list[Reference], arrays: list[Array] | None, root: int, keep: bool
    ) -> dict[int, Array]:
        """Send arrays from the rank ``root`` to all workers; return the received ones by index.

        Args:
            sent: the references of all arrays of the state.
            arrays: on the root, the arrays in the order of their indices; None on all other
                workers.
            root: the rank that sends.
            keep: whether this worker needs what it receives; else it gets an empty dict.

        Raises:
            CollectiveFailed: if a worker is gone.
        """


def exchange_state(
    arrays: Arrays[Any],
    ring: Ring,
    root: int,
    state: Any,
    keep: bool,
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> Any:
    """Broadcast the state of the rank ``root``; return it on the workers that need it.

    Args:
        arrays: the framework's way to send arrays.
        ring: the ring to broadcast in; all its workers must call this.
        root: the rank that sends.
        state: the state, on the root; None on all others.
        keep: whether this worker needs the state. False on the root.
        dumps: pickles the description of the state, which has no arrays.

    Returns:
        The received state; None where ``keep`` is false.

    Raises:
        RingBroken: if a worker is gone.
    """
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
    """Return a copy of nested containers, with each other value replaced by ``leaf(value, where)``.

    Containers are dicts, lists and plain tuples; any other value is a leaf.

    Args:
        value: the containers, or a single leaf.
        leaf: a function of a leaf and its place that returns the leaf's replacement.
        where: the place of ``value``, written as Python code; each leaf gets its own, such as
            ``state['model'][0]``.
    """
    if isinstance(value, dict):
        return {key: map_leaves(item, leaf, f"{where}[{key!r}]") for key, item in value.items()}
    if isinstance(value, list):
        return [map_leaves(item, leaf, f"{where}[{i}]") for i, item in enumerate(value)]
    if type(value) is tuple:
        return tuple(map_leaves(item, leaf, f"{where}[{i}]") for i, item in enumerate(value))
    return leaf(value, where)


def describe(
    state: Any, taken: list[Array], refer: Callable[[Any, int], tuple[Array, Reference] | None]
) -> Any:
    """Return a copy of ``state`` in which each array is replaced by a reference.

    Args:
        state: the state: containers, arrays and other values.
        taken: a list to which the arrays are appended, in the order of their references.
        refer: a function of a value and the index of its reference. It returns the array to send
            for the value, and the reference; None if the value is no array (see
            :meth:`Arrays.refer`).
    """

    def leaf(value: Any, _where: str) -> Any:
        found = refer(value, len(taken))
        if found is None:
            return value
        array, reference = found
        taken.append(array)
        return reference

    return map_leaves(state, leaf)


def fill(description: Any, arrays: Mapping[int, Array], empty: Callable[[Reference], Array]) -> Any:
    """Return a state from its description, with each reference replaced by its array.

    This is the inverse of :func:`describe`.

    Args:
        description: a copy of the state in which references stand in place of arrays.
        arrays: the received arrays by the index of their references.
        empty: a function of a reference that makes an array without elements, which is not sent.
    """

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, Reference):
            return value
        return arrays[value.index] if value.index in arrays else empty(value)

    return map_leaves(description, leaf)


def references(description: Any) -> list[Reference]:
    """Return all references in ``description``, which stand in place of arrays, sorted by index."""
    found: list[Reference] = []

    def look(value: Any, _where: str) -> None:
        if isinstance(value, Reference):
            found.append(value)

    map_leaves(description, look)
    return sorted(found, key=lambda reference: reference.index)


def transfers(
    all_references: Iterable[Reference], large_bytes: int = LARGE_BYTES
) -> Iterator[list[Reference]]:
    """Yield groups of references; the arrays of each group are sent in one collective.

    A large array is sent alone. The small arrays of a device are sent together, in groups of about
    ``large_bytes``. Arrays without elements are not sent.

    Args:
        all_references: the references of all arrays of a state.
        large_bytes: the size in bytes from which an array is large.
    """
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
    """Return the first three of ``texts`` joined by semicolons, and how many more there are."""
    rest = len(texts) - 3
    return "; ".join(texts[:3]) + (f" and {rest} more" if rest > 0 else "")
