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
    """Add ``objects`` to the objects in ``tracked``, all or none of them.

    An object that is tracked already under the same name stays.

    Args:
        tracked: the tracked objects by name; changed in place.
        objects: the new objects by name.

    Raises:
        UsageError: if another object has one of the names.
    """
    for name, thing in objects.items():
        if tracked.get(name, thing) is not thing:
            raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
    tracked.update(objects)


class FrameworkReplica(ABC):
    """The access to what all workers share: this process's model, optimizer and tracked objects.

    A state is a dict of containers, arrays, and whatever the tracked objects return. Under the key
    "tracked" it has the states of the tracked objects; the framework defines the other keys.

    Args:
        kind: the name of the optimizer's class, for checkpoints, which load only into the same.

    Attributes:
        framework: the name of the framework, for checkpoints.
        arrays: the framework's way to recognise and send its arrays.
        misfits: the exceptions that :meth:`load` raises for the state of another script.
    """

    framework: str
    arrays: Arrays[Any]
    misfits: tuple[type[Exception], ...] = (UsageError, ValueError, KeyError)
    """The errors that :meth:`load` raises for the state of another script."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tracked: dict[str, Any] = {}
        self._copies = TrackedCopies()
        self._averaged_after = -1
        self._parts = StateArrays(self.compared, self.size_of)

    def rename(self, kinds: Sequence[str]) -> None:
        """Replace the name of the optimizer's class, which checkpoints record, by several names.

        Args:
            kinds: the names of the classes, in the order of the optimizers.
        """
        self._kind = " and ".join(kinds)

    # --- what a framework adds

    @staticmethod
    @abstractmethod
    def check(objects: Mapping[str, Any]) -> None:
        """Check that objects can be given to ``edl.track``; change nothing.

        They need ``state_dict()`` and ``load_state_dict()``, or what the framework takes instead.

        Args:
            objects: the objects by name.

        Raises:
            UsageError: if one of them cannot be tracked.
        """

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the present state of model, optimizer and tracked objects.

        No array is copied, so the next update changes the arrays in the result.
        """

    @abstractmethod
    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Load ``state``, or a part of it, into model, optimizer and tracked objects.

        Args:
            state: a whole state, as :meth:`state` returns it.
            receive: which part to load. ``STEP``: what the last update has changed; ``RESYNC``: all
                but what each worker keeps for itself, such as tracked objects whose
                ``edl_compared`` is False; ``ALL``: all. Never ``NOTHING``.

        Raises:
            UsageError: if the state has other tracked objects. For a state of another model, any of
                the exceptions in ``misfits``.
        """

    @abstractmethod
    def copied(self, state: dict[str, Any]) -> Any:
        """Return a copy of a state in the form that checkpoint files hold.

        Each array is copied, so later updates do not change the result.

        Args:
            state: the result of :meth:`state`, perhaps with further keys.
        """

    @abstractmethod
    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return a state for :meth:`load` from the content of a checkpoint file.

        Args:
            state: the result of an earlier :meth:`copied`, perhaps of another process.

        Raises:
            CheckpointError: if ``state`` has something that this framework does not know, or is of
                another model.
        """

    @abstractmethod
    def compared(self) -> dict[str, Any]:
        """Return, in nested dicts, the values of the state that must be equal on all workers.

        The values are the arrays themselves, not copies. Buffers (such as the statistics of batch
        normalisation) are not among them, because each worker has its own.
        """

    @abstractmethod
    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        """Return the arrays in ``state`` that are equal on all workers, as :meth:`compared` says.

        They are the objects in ``state`` themselves. ``state`` is the result of :meth:`durable`.
        """

    @staticmethod
    @abstractmethod
    def size_of(value: Any) -> int | None:
        """Return the size of a value of the state in bytes; None if it is no array.

        Args:
            value: an array, a variable, or a plain Python value such as a number.
        """

    @abstractmethod
    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return checksums (CRC-32) of parts of the state, by the names of their values.

        Args:
            parts: byte ranges, each with its value and the name of the value. A value of a type
                other than arrays, numbers and texts is left out of the result.
        """

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates, to compare them between workers.

        The keys are the names under which error messages mention the learning rates, such as
        "learning rate".
        """

    def signature(self) -> dict[str, str]:
        """Return the shape of each tensor of the models as text, such as "(10, 3)", by tensor name.

        A newcomer with another result does not fit the job. The dict is empty, as here, in a
        framework that cannot say the shapes before a newcomer receives the state. Any thread may
        call this.
        """
        return {}

    @abstractmethod
    def averages(self) -> list[Array]:
        """Return the averages that each worker makes of its own batches (BatchNorm's), as float64.

        They come from the models and tracked objects, in an order that is the same on all workers.
        """

    @abstractmethod
    def set_averages(self, means: Sequence[Array]) -> None:
        """Write ``means`` into what :meth:`averages` has read, in the same order."""

    # --- what all have in common

    def average_buffers(self, step: int, exchange: Callable[[bytes], list[bytes]]) -> None:
        """Set BatchNorm's averages to their means over all workers, once after ``step`` steps."""
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
        """Return checksums (CRC-32) of a part of this worker's state, to compare workers.

        Args:
            group: which part: the bytes of all values are laid end to end and cut into groups of
                equal size, and this is one of them. The default is the whole state.

        Returns:
            The checksum of each value's bytes in the group, by the name of the value.
        """
        return self.digested(self._parts.within(group))

    def buffers(self) -> dict[str, Any]:
        """Return the values that no update trains, by name; without batch normalisation's."""
        return {}

    def from_batches(self) -> dict[str, int]:
        """Return a digest of each of :meth:`buffers`."""
        sized = ((name, value, self.size_of(value)) for name, value in self.buffers().items())
        return self.digested([ByteRange(n, v, 0, size, True) for n, v, size in sized if size])

    def track(self, objects: Mapping[str, Any]) -> None:
        """Add objects to the tracked ones, so newcomers and checkpoints get their states.

        All or none of them are added.

        Args:
            objects: the objects by name.

        Raises:
            UsageError: if :meth:`check` refuses an object, or if another object has its name.
        """
        self.check(objects)
        add_tracked(self._tracked, objects)

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send the state if this worker is rank ``root``; else receive and load the part it needs.

        Nothing happens in a ring of one worker.

        Args:
            ring: the ring to broadcast in; all its workers call this, and wait for each other.
            root: the rank that sends.
            receive: which part this worker loads, unless it is the root. ``NOTHING``; ``STEP``:
                what the last update has changed; ``RESYNC``: all but what each worker keeps for
                itself, such as tracked objects whose ``edl_compared`` is False; ``ALL``: all.

        Raises:
            RingBroken: if a worker is gone; a receiver's state is then unchanged.
            UsageError: if the receiver's script shares something else than the job's.
        """
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
        """Keep copies of the tracked objects at the end of a batch, after loading received copies.

        Only a worker that missed the last update has received copies, from another worker; it loads
        them if they were made at the same step and epoch (:mod:`edl.framework.tracked_copies`).

        Args:
            step: the number of the job's complete steps.
            epoch: the number of the job's epoch, from 0.
        """
        self._copies.end_batch((step, epoch), self.objects_from_gradients())

    def durable(self) -> dict[str, Any]:
        """Return what a checkpoint stores: :meth:`state` and the name of the optimizer's class.

        The arrays are not copied. In place of an array there may be a variable that has it, if
        :meth:`copied` reads it.
        """
        return {**self.state(), "optimizer_kind": self._kind}

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """Return a copy of the state for a checkpoint file; :meth:`restore` takes it.

        Later steps do not change the copy.

        Args:
            share: the part of the state that is copied. In place of each array that another worker
                saves there is a ``RankArray``. Rank 0 has all arrays that may differ between
                workers, such as the statistics of batch normalisation.
        """
        state = self.durable()
        if not share.is_whole:
            state = _part_of(state, share, self.equal_on_all(state), self.size_of)
        return self.copied(state)

    def restore(self, state: Any) -> None:
        """Load ``state``, which was read from a checkpoint file, into model, optimizer and objects.

        It is the result of :meth:`capture`, perhaps of another process. A tracked object of edl's
        own, which a checkpoint of an earlier edl lacks, may have a method
        ``edl_state_if_missing()``: its result is loaded in place of the state.

        Raises:
            CheckpointError: if the state is of another optimizer or model, or has other tracked
                objects than this script.
        """
        if state["optimizer_kind"] != self._kind:
            raise CheckpointError(
                f"the checkpoint is of a job with {state['optimizer_kind']}, and this script "
                f"trains with {self._kind}"
            )
        loaded = self.uncopied(state)
        saved = loaded["tracked"]
        optional = {
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
        """Return by name the tracked objects whose states go through their ``state_dict()``.

        These are all tracked objects, unless a subclass leaves out objects that it sends as arrays.
        """
        return self._tracked

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        """Return by name the tracked objects that a script may change with a step's gradients.

        An example is a history of gradient norms. Copies of these objects are kept for a worker
        that missed the last update, see :meth:`end_batch`. Here the result is that of
        :meth:`compared_things`; a framework may leave some out.
        """
        return self.compared_things()

    def compared_things(self) -> dict[str, Trackable]:
        """Return by name the tracked objects that must be equal on all workers.

        They are those of :meth:`things`, without objects whose attribute ``edl_compared`` is False.
        """
        return {
            name: thing
            for name, thing in self.things().items()
            if getattr(thing, "edl_compared", True)
        }

    def states_of_things(self) -> dict[str, Any]:
        """Return the result of ``state_dict()`` of each tracked object that :meth:`things` returns.

        The dict is by the names of the objects.
        """
        return {name: thing.state_dict() for name, thing in self.things().items()}

    def load_things(self, states: Mapping[str, Any], receive: Receive) -> None:
        """Load the states of the tracked objects; in a resync only of those that are compared.

        Args:
            states: the state of each tracked object, by name, as :meth:`states_of_things` returns
                them on another worker.
            receive: why this worker takes the states over: ``Receive.RESYNC`` (its state differed
                from the job's), or any other value to load them all.

        Raises:
            UsageError: if the names are not those of the objects that this worker tracks; nothing
                is loaded then.
        """
        things = self.things()
        if odd := sorted(things.keys() ^ states.keys()):
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        given = self.compared_things() if receive is Receive.RESYNC else things
        for name in [name for name in states if name in given]:
            self.load_thing(things[name], states[name])

    def load_thing(self, thing: Trackable, state: Any) -> None:
        """Load ``state``, which is of the present job, into the tracked object ``thing``."""
        load_into(thing, state)


def _part_of(
    state: dict[str, Any],
    share: StateShare,
    equal: Iterable[Any],
    size_of: Callable[[Any], int | None],
) -> dict[str, Any]:
    """Return a copy of ``state`` without the arrays and values that other workers save.

    In place of an array there is a ``RankArray``, in place of a value None. All workers divide the
    state in the same way, because what is divided has the same names and shapes on all.

    Args:
        state: what a checkpoint stores. Its arrays are not copied.
        share: the part that this worker saves.
        equal: the arrays in ``state`` that are equal on all workers, the objects themselves.
        size_of: returns the size of an array in bytes, and None for any other value.
    """
    is_equal = {id(array) for array in equal}
    arrays: list[StateArray] = []

    def note(value: Any, _where: str) -> None:
        if (size := size_of(value)) is not None:
            arrays.append(StateArray(size, id(value) in is_equal))

    map_leaves(state, note)
    ranks = iter(divide(arrays, share.size))

    def own(value: Any, _where: str) -> Any:
        if size_of(value) is None:
            return value if share.rank == 0 else None
        rank = next(ranks)
        return value if rank == share.rank else RankArray(rank)

    part: dict[str, Any] = map_leaves(state, own)
    return part
