"""Send, save and compare the state that all workers share: model, optimizer and tracked objects.

*Tracked* objects are those that the script gave to ``edl.track``. Each framework subclasses
:class:`FrameworkReplica`, and adds how its arrays are read, sent and written.
:mod:`edl.framework.state` defines how a state is sent.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.core.job.state_share import WHOLE_STATE, RankArray, StateArray, StateShare, divide
from edl.core.step.state_check import WHOLE, StateGroup
from edl.errors import CheckpointError, UsageError
from edl.framework.digest import ByteRange, StateArrays
from edl.framework.state import Arrays, Trackable, exchange_state, load_into, map_leaves
from edl.framework.tracked_copies import TrackedCopies
from edl.ring.ring import Ring
from edl.worker.progress import Receive

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
