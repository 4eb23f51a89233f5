"""Send, save and compare the state that all workers share: model, optimizer and tracked objects.

*Tracked* objects are those that the script gave to ``edl.track``. Each framework subclasses
:class:`FrameworkReplica`, and adds how its arrays are read, sent and written.
:mod:`edl.binding.replica` defines how a state is sent.
"""

from __future__ import annotations

import pickle
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from typing import Any, Protocol, TypeVar, runtime_checkable

import numpy as np
import numpy.typing as npt

from edl.errors import CheckpointError, RingBroken, UsageError
from edl.job.state_share import WHOLE_STATE, RankArray, StateArray, StateShare, divide
from edl.record import dict_of_kind, kind_of_dict
from edl.ring.ring import CollectiveFailed, Ring
from edl.step.state_check import WHOLE, Extent, StateGroup, coarser, extents
from edl.worker.progress import Receive

# ------------------------------------------------------------
# Compute checksums (digests) of the parts of a training state, to compare workers with each other.
#
# A digest is a CRC-32. It costs little time, and it changes if one bit or the order of the values
# does. `StateArrays` cuts a state into pieces, each a `ByteRange`; `of_value` computes the digest
# of one.


PLAIN = (bool, int, float, complex, str, bytes, type(None))
PLAIN_BYTES = 8  # what a number or a text counts for, whatever it is


def places(state: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield for each value in nested containers a tuple: (its name, its container, its key)."""
    for key, value in state.items() if isinstance(state, dict) else enumerate(state):
        name = f"{prefix}{key}"
        if isinstance(value, (dict, list, tuple)):
            yield from places(value, f"{name}.")
        else:
            yield name, state, key


@dataclass(frozen=True, slots=True)
class ByteRange:
    """The bytes from `start` to before `stop` of one named value in a training state."""

    name: str  # as `places` yields it
    value: Any  # all of it, not only the range: an array, or a plain Python value
    start: int
    stop: int  # not in the range; a value that is no array counts as 8 bytes
    is_whole: bool


class StateArrays:
    """A list of all values in a training state, to read one group of its bytes at a time."""

    def __init__(
        self, state: Callable[[], dict[str, Any]], size_of: Callable[[Any], int | None]
    ) -> None:
        self.most_groups: int | None = None  # into which the state may be cut; None: any number
        self._state, self._size_of = state, size_of
        self._places: list[tuple[str, Any, Any]] = []  # name, container, key
        self._sizes: list[int | None] = []
        self._ends: list[int] = []
        self._is_listed = False

    def forget(self) -> None:
        """Drop the list, so the next `within` lists the state's values anew."""
        # All must call this between the same two steps, or they cut the state differently.
        self._is_listed = False

    def within(self, group: StateGroup) -> list[ByteRange]:
        """Return the byte ranges of the state that belong to `group`, with the present values."""
        larger = coarser(group, self.most_groups)
        return [] if larger is None else self._within(larger)  # None: no larger group is due

    def _within(self, group: StateGroup) -> list[ByteRange]:
        # To list the values each time would cost more than the digests: arrays are listed once.
        listed = self._is_listed and group.index > 0
        if not listed or any(self._sizes[e.part] is None for e in extents(self._ends, group)):
            self._list()
        try:
            return [self._part(extent) for extent in extents(self._ends, group)]
        except LookupError:  # the script has taken something away, as all of them have
            self._list()
            return [self._part(extent) for extent in extents(self._ends, group)]

    def _part(self, extent: Extent) -> ByteRange:
        name, container, key = self._places[extent.part]
        size = self._ends[extent.part] - (self._ends[extent.part - 1] if extent.part else 0)
        is_whole = extent.stop - extent.start == size
        return ByteRange(name, container[key], extent.start, extent.stop, is_whole)

    def _list(self) -> None:
        self._places = [*places(self._state())]
        self._sizes = [self._size_of(container[key]) for _, container, key in self._places]
        least = (PLAIN_BYTES if size is None else max(1, size) for size in self._sizes)
        self._ends = [*accumulate(least)]
        self._is_listed = True


def of_bytes(kind: str, data: Any) -> int:
    """Return the digest of a buffer; equal bytes of another kind have another."""
    return zlib.crc32(data, zlib.crc32(kind.encode()))


def of_array(array: np.ndarray[Any, Any], start: int = 0, stop: int | None = None) -> int | None:
    """Return the digest of a part of an array's bytes; None if the array holds Python objects."""
    if array.dtype.hasobject:
        return None
    data = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
    return of_bytes(f"{array.dtype} {array.shape}", data[start:stop])


def of_value(value: Any, start: int = 0, stop: int | None = None) -> int | None:
    """Return the digest of a value of a training state; None if its type is not compared."""
    if isinstance(value, np.ndarray):
        return of_array(value, start, stop)
    if isinstance(value, np.generic):
        return of_array(np.asarray(value))
    return of_bytes("value", repr(value).encode()) if isinstance(value, PLAIN) else None


# ------------------------------------------------------------
# Broadcast a message of any length; Horovod's broadcast needs equal lengths on all workers.


FIRST_PIECE_BYTES = 2**15  # a progress header, or the description of a small state
LENGTH_BYTES = 8
Broadcast = Callable[[bytearray, str], bytearray]  # (data, name) -> the root's data


def broadcast_message(payload: bytes, sending: bool, name: str, broadcast: Broadcast) -> bytes:
    """Send the root's message to all workers; return it on each of them, the root included."""
    first = bytearray(FIRST_PIECE_BYTES)
    if sending:
        head = len(payload).to_bytes(LENGTH_BYTES, "big") + payload
        first[: len(head)] = head[:FIRST_PIECE_BYTES]
    first = broadcast(first, name)  # all workers must come here
    length = int.from_bytes(first[:LENGTH_BYTES], "big")
    received = first[LENGTH_BYTES : LENGTH_BYTES + length]
    if missing := length - len(received):  # equal on all: a second collective for the rest
        rest = payload[-missing:] if sending else bytes(missing)
        received += broadcast(bytearray(rest), f"{name}.rest")
    return bytes(received)


# ------------------------------------------------------------
# Send a state from the state source to other workers: a description, and then the arrays.
#
# The state source pickles a description of its state, in which each array is replaced by a
# reference, and sends it in one message. The bytes of the arrays follow in a few large pieces
# (`exchange_state`). Pickles are exchanged only between the workers of one ring.


LARGE_BYTES = 2**18  # an array of this size is worth a collective of its own
_dumps = partial(pickle.dumps, protocol=5)  # before 5, NumPy's arrays lose their byte order
ArrayT = TypeVar("ArrayT")


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


class Arrays(Protocol[ArrayT]):
    """The interface by which a framework recognises its arrays in a state, and sends them."""

    def refer(self, value: Any, index: int) -> tuple[ArrayT, Reference] | None:
        """Return a pair, the array to send for `value` and a reference to it; None if no array."""

    def empty(self, reference: Reference) -> ArrayT:
        """Return a new array for the reference to an array without elements, which is not sent."""

    def broadcast(
        self, sent: list[Reference], arrays: list[ArrayT] | None, root: int, keep: bool
    ) -> dict[int, ArrayT]:
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
    state: Any, taken: list[ArrayT], refer: Callable[[Any, int], tuple[ArrayT, Reference] | None]
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


def fill(
    description: Any, arrays: Mapping[int, ArrayT], empty: Callable[[Reference], ArrayT]
) -> Any:
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


# ------------------------------------------------------------
# Keep copies of tracked objects between two steps, for a worker that missed the last update.
#
# `TrackedCopies` keeps them. A worker misses an update if the ring breaks before it has the
# averages, and others had them. Its script has gradients of zero, or infinite ones. What it
# computes from them before its `optimizer.step()` (a history of norms, a count of skipped updates)
# differs from what the other workers have computed. When it asks for its next batch, it is at the
# same place of the script at which the others asked for theirs, so it loads the copies that another
# worker made of its objects at that place. The copies are made and loaded also when the script
# exchanges values between two steps, as in `edl.mean`, because the other workers may wait there for
# this one.


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
        self._kept[place] = {
            name: map_leaves(state, lambda leaf, _: _copied(leaf))
            for name, state in states.items()
            if name not in self._large
        }
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


Array = npt.NDArray[np.float64]

OTHER_AVERAGES = (
    "the workers' models have {counts} numbers in BatchNorm's averages; all workers need the same "
    "layers, and the same objects in edl.track"
)


def add_tracked(tracked: dict[str, Any], objects: Mapping[str, Any]) -> None:
    for name, thing in objects.items():
        if tracked.get(name, thing) is not thing:
            raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
    tracked.update(objects)


class FrameworkReplica(ABC):
    """The access to what all workers share: this process's model, optimizer and tracked objects."""

    framework: str  # its name, for checkpoints
    arrays: Arrays[Any]
    # What `load` raises for the state of another script.
    misfits: tuple[type[Exception], ...] = (UsageError, ValueError, KeyError)

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tracked: dict[str, Any] = {}
        self._copies = TrackedCopies()
        self._averaged_after = -1
        self._parts = StateArrays(self.compared, self.size_of)

    def rename(self, kinds: Sequence[str]) -> None:
        """Replace the name of the optimizer's class, which checkpoints record, by several names."""
        self._kind = " and ".join(kinds)

    # --- what a framework adds

    @staticmethod
    @abstractmethod
    def check(objects: Mapping[str, Any]) -> None:
        """Check that objects can be given to `edl.track`; change nothing."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the present state of model, optimizer and tracked objects, without a copy."""

    @abstractmethod
    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Load the part of `state` that `receive` says, which is never `NOTHING`."""

    @abstractmethod
    def copied(self, state: dict[str, Any]) -> Any:
        """Return a copy of a state in the form that checkpoint files hold."""

    @abstractmethod
    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return a state for `load` from the content of a checkpoint file."""

    @abstractmethod
    def compared(self) -> dict[str, Any]:
        """Return, in nested dicts, the values of the state that must be equal on all workers."""
        # Not buffers (such as the statistics of batch normalisation): each worker has its own.

    @abstractmethod
    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        """Return the arrays in `state`, themselves, that are equal on all, as `compared` says."""

    @staticmethod
    @abstractmethod
    def size_of(value: Any) -> int | None:
        """Return the size of a value of the state in bytes; None if it is no array."""

    @abstractmethod
    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return checksums (CRC-32) of parts of the state, by the names of their values."""

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates, to compare them between workers."""

    def signature(self) -> dict[str, str]:
        """Return each tensor's shape by name, such as "(10, 3)"; any thread may call this."""
        return {}  # a framework may not know it before a newcomer receives the state

    @abstractmethod
    def averages(self) -> list[Array]:
        """Return the averages that each worker makes of its own batches, in the same order."""

    @abstractmethod
    def set_averages(self, means: Sequence[Array]) -> None:
        """Write `means` into what `averages` has read, in the same order."""

    # --- what all have in common

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Set BatchNorm's averages to their means over all workers, once after `step` steps."""
        if self._averaged_after == step or not (own := self.averages()):
            return
        self._averaged_after = step
        rows = [np.frombuffer(row) for row in exchange(b"".join(each.tobytes() for each in own))]
        if len({len(row) for row in rows}) > 1:
            raise UsageError(OTHER_AVERAGES.format(counts=", ".join(str(len(row)) for row in rows)))
        # In float64 the mean of equal float32 numbers is that number: synchronised layers and
        # frozen ones keep their bits.
        mean = np.mean(rows, axis=0)
        parts = np.split(mean, np.cumsum([each.size for each in own])[:-1])
        self.set_averages([part.reshape(each.shape) for part, each in zip(parts, own, strict=True)])

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return checksums (CRC-32) of a part of this worker's state, to compare workers."""
        return self.digested(self._parts.within(group))

    def buffers(self) -> dict[str, Any]:
        """Return the values that no update trains, by name; without batch normalisation's."""
        return {}

    def from_batches(self) -> dict[str, int]:
        """Return a digest of each of `buffers`."""
        sized = ((name, value, self.size_of(value)) for name, value in self.buffers().items())
        return self.digested([ByteRange(n, v, 0, size, True) for n, v, size in sized if size])

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add objects to the tracked ones, so newcomers and checkpoints get their states."""
        self.check(objects)
        add_tracked(self._tracked, objects)

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send the state if this worker is rank `root`; else receive and load the part it needs."""
        if ring.alone:
            return
        self._parts.forget()  # on all, so that they go on listing what they compare alike
        sending = ring.place.rank == root
        keep = receive is not Receive.NOTHING and not sending
        mine = {**self.state(), "between": self._copies.sent()} if sending else None
        state = exchange_state(self.arrays, ring, root, mine, keep)
        if keep:
            self.load(state, receive)
            self._copies.receive(state["between"] if receive is Receive.STEP else {})
        if keep and receive is Receive.RESYNC:
            self._copies.forget()

    def end_batch(self, step: int, epoch: int) -> None:
        """Copy the tracked objects at the end of a batch, after loading received copies."""
        self._copies.end_batch((step, epoch), self.objects_from_gradients())

    def durable(self) -> dict[str, Any]:
        """Return what a checkpoint stores: `state` and the name of the optimizer's class."""
        return {**self.state(), "optimizer_kind": self._kind}

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """Return a copy of the state for a checkpoint file; `restore` takes it."""
        state = self.durable()
        if not share.is_whole:
            state = _part_of(state, share, self.equal_on_all(state), self.size_of)
        return self.copied(state)

    def restore(self, state: Any) -> None:
        """Load `state`, of a checkpoint file, into model, optimizer and tracked objects."""
        if state["optimizer_kind"] != self._kind:
            raise CheckpointError(
                f"the checkpoint is of a job with {state['optimizer_kind']}, and this script "
                f"trains with {self._kind}"
            )
        loaded = self.uncopied(state)
        saved = loaded["tracked"]
        optional = {  # objects of edl's own, which a checkpoint of an earlier edl lacks
            name: thing.edl_state_if_missing
            for name, thing in self.things().items()
            if name not in saved and hasattr(thing, "edl_state_if_missing")
        }
        if odd := sorted((self.things().keys() - optional.keys()) ^ saved.keys()):
            raise CheckpointError(
                f"edl.track: only one of checkpoint and script tracks {', '.join(odd)}"
            )
        saved |= {name: state_if_missing() for name, state_if_missing in optional.items()}
        try:
            self.load(loaded, Receive.ALL)
        except self.misfits as error:
            raise CheckpointError(f"the checkpoint does not fit this script: {error}") from error

    def things(self) -> dict[str, Trackable]:
        """Return by name the tracked objects whose states go through their `state_dict()`."""
        return self._tracked

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        """Return by name the tracked objects that a script may change with a step's gradients."""
        return self.compared_things()  # a framework may leave some out

    def compared_things(self) -> dict[str, Trackable]:
        """Return by name the tracked objects that must be equal on all workers."""
        return {
            name: thing
            for name, thing in self.things().items()
            if getattr(thing, "edl_compared", True)
        }

    def states_of_things(self) -> dict[str, Any]:
        return {name: thing.state_dict() for name, thing in self.things().items()}

    def load_things(self, states: Mapping[str, Any], receive: Receive) -> None:
        """Load the states of the tracked objects; in a resync only of those that are compared."""
        things = self.things()
        if odd := sorted(things.keys() ^ states.keys()):
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        given = self.compared_things() if receive is Receive.RESYNC else things
        for name in [name for name in states if name in given]:
            self.load_thing(things[name], states[name])

    def load_thing(self, thing: Trackable, state: Any) -> None:
        load_into(thing, state)


def _part_of(
    state: dict[str, Any],
    share: StateShare,
    equal: Iterable[Any],
    size_of: Callable[[Any], int | None],
) -> dict[str, Any]:
    """Return a copy of `state` with a `RankArray` or None for what other workers save."""
    is_equal = {id(array) for array in equal}
    arrays: list[StateArray] = []

    def note(value: Any, _where: str) -> None:
        if (size := size_of(value)) is not None:
            arrays.append(StateArray(size, id(value) in is_equal))

    map_leaves(state, note)
    ranks = iter(divide(arrays, share.size))  # the same on all, as names and shapes are

    def own(value: Any, _where: str) -> Any:
        if size_of(value) is None:
            return value if share.rank == 0 else None
        rank = next(ranks)
        return value if rank == share.rank else RankArray(rank)

    part: dict[str, Any] = map_leaves(state, own)
    return part
