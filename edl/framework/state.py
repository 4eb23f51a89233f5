"""State as it travels: a description in which each array is a reference, and the arrays' pieces.

The state source describes its state in one pickled message and sends the arrays' bytes in a few
large pieces. Pickles travel inside the ring only, between processes of one job.
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
    """Stands for an array in a description: the ``index``-th that is sent."""

    index: int
    shape: tuple[int, ...]
    dtype: str  # in the framework's words
    size: int  # bytes
    device: str = "cpu"  # device type; the receiver has its own device of that type


@runtime_checkable
class Stateful(Protocol):
    """An object that ``edl.track`` can follow."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state: Any) -> Any: ...


class Arrays(Protocol[Array]):
    """What a framework's arrays are, and how they are sent."""

    def refer(self, value: Any, index: int) -> tuple[Array, Reference] | None:
        """An array of a state as it is sent, as number ``index``; None: it is no array."""

    def empty(self, reference: Reference) -> Array:
        """An array without elements, which is not sent."""

    def broadcast(
        self, sent: list[Reference], arrays: list[Array] | None, root: int, keep: bool
    ) -> dict[int, Array]:
        """Send ``arrays``, or take part; returns those received by index, if they are to be kept.

        Raises:
            CollectiveFailed: a worker is gone.
        """


def exchange(
    arrays: Arrays[Any],
    ring: Ring,
    root: int,
    state: Any,
    keep: bool,
    dumps: Callable[[Any], bytes] = pickle.dumps,
) -> Any:
    """The ``state`` of the rank ``root`` on all others that ``keep`` it.

    None on the root and on who does not keep it. ``state`` is None on all but the root.
    ``dumps`` pickles it, without its arrays.

    Raises:
        RingBroken: a worker is gone.
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
    """A copy of the containers, with each thing in them replaced by ``leaf(thing, where)``."""
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
    """``state`` with each array moved to ``taken`` and a reference in its place.

    Args:
        refer: what to send of a thing in the state, as number so and so; None: it is no array.
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
    """The inverse of :func:`describe`. ``empty`` makes those that were not sent."""

    def leaf(value: Any, _where: str) -> Any:
        if not isinstance(value, Reference):
            return value
        return arrays[value.index] if value.index in arrays else empty(value)

    return map_leaves(description, leaf)


def references(description: Any) -> list[Reference]:
    """All references of a description, by index."""
    found: list[Reference] = []

    def look(value: Any, _where: str) -> None:
        if isinstance(value, Reference):
            found.append(value)

    map_leaves(description, look)
    return sorted(found, key=lambda reference: reference.index)


def transfers(
    all_references: Iterable[Reference], large_bytes: int = LARGE_BYTES
) -> Iterator[list[Reference]]:
    """Large arrays alone, the others of a device together; empty ones are not sent."""
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
    """The first of ``texts``, and how many more there are."""
    rest = len(texts) - 3
    return "; ".join(texts[:3]) + (f" and {rest} more" if rest > 0 else "")
