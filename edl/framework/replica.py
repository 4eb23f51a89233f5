"""Send, save and compare the state that all workers share: model, optimizer and tracked objects.

This is the part that needs no framework. Each framework adds how its arrays are read, sent and
written. How the state travels is in :mod:`edl.framework.state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edl.core.step.state_check import WHOLE, StateGroup
from edl.errors import CheckpointError, UsageError
from edl.framework.digest import ByteRange, StateArrays
from edl.framework.state import Arrays, Trackable, exchange_state
from edl.framework.tracked_copies import TrackedCopies
from edl.ring.ring import Ring
from edl.worker.progress import Receive


def add_tracked(tracked: dict[str, Any], objects: Mapping[str, Any]) -> None:
    """Add ``objects`` to the ``tracked`` ones, all or none of them.

    Raises:
        UsageError: if another object has one of the names.
    """
    for name, thing in objects.items():
        if tracked.get(name, thing) is not thing:
            raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
    tracked.update(objects)


class FrameworkReplica(ABC):
    """This process's copy of what all workers share: model, optimizer and tracked objects.

    A state is made of containers, arrays, and whatever the tracked objects return. Under the key
    "tracked" it has the states of the tracked objects; the framework defines the other keys.

    Args:
        kind: the name of the optimizer's class, for checkpoints.
    """

    framework: str
    arrays: Arrays[Any]
    misfits: tuple[type[Exception], ...] = (UsageError, ValueError, KeyError)
    """What :meth:`load` raises for the state of another script."""

    def __init__(self, kind: str) -> None:
        self._kind = kind
        self._tracked: dict[str, Any] = {}
        self._copies = TrackedCopies()
        self._parts = StateArrays(self.compared, self.size_of)

    def rename(self, kinds: Sequence[str]) -> None:
        """Set the names of the optimizers' classes when the script has several optimizers."""
        self._kind = " and ".join(kinds)

    # --- what a framework adds

    @staticmethod
    @abstractmethod
    def check(objects: Mapping[str, Any]) -> None:
        """Raise UsageError for an object that cannot be tracked."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Return the whole shared state as it is now."""

    @abstractmethod
    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Load ``state`` into model, optimizer and tracked objects, as much of it as asked for.

        ``receive`` names the part: nothing, what the last update has changed, what a resync
        replaces, or all.

        Raises:
            UsageError: if the state is of another model, or has other tracked objects.
        """

    @abstractmethod
    def copied(self, state: dict[str, Any]) -> Any:
        """Return ``state`` with a copy of each array, in the form that checkpoint files hold."""

    @abstractmethod
    def uncopied(self, state: Any) -> dict[str, Any]:
        """Return the state for :meth:`load` that is equal to what :meth:`copied` was given.

        Raises:
            CheckpointError: if ``state`` has something that this framework does not know, or is of
                another model.
        """

    @abstractmethod
    def compared(self) -> dict[str, Any]:
        """Return the part of the state that must be equal on all workers, in containers.

        Buffers are not in it, because they are each worker's own.
        """

    @staticmethod
    @abstractmethod
    def size_of(value: Any) -> int | None:
        """Return the size in bytes of an array of the state; None if ``value`` is no array."""

    @abstractmethod
    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """Return a digest of each part by name; parts that cannot be compared are left out."""

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """Return the present learning rates by name, to compare them between workers.

        See :class:`edl.worker.state_check.Compared`.
        """

    def signature(self) -> dict[str, str]:
        """Return the shape of each tensor of the models by name; a newcomer must have the same.

        The dict is empty if the shapes are not known before the state arrives. Any thread may call
        this.
        """
        return {}

    # --- what all have in common

    def digests(self, group: StateGroup = WHOLE) -> dict[str, int]:
        """Return a digest by name of each part of the state that is in ``group``.

        See :class:`edl.worker.state_check.Compared`.
        """
        return self.digested(self._parts.within(group))

    def track(self, objects: Mapping[str, Any]) -> None:
        """Let more objects follow the job.

        Raises:
            UsageError: if an object cannot give and take its state, or another object has its name.
        """
        self.check(objects)
        add_tracked(self._tracked, objects)

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Send the state if this worker is rank ``root``; else receive what ``receive`` says.

        ``receive`` names the part: nothing, what the last update has changed, what a resync
        replaces, or all.

        See :class:`edl.worker.replica.Replica`.

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
        """Keep copies of the tracked objects at the end of a batch, or take over received ones.

        ``step`` and ``epoch`` are the job's. See :class:`edl.worker.replica.Replica`.
        """
        self._copies.end_batch((step, epoch), self.objects_from_gradients())

    def capture(self) -> Any:
        """Return a copy of the state for a checkpoint file, with the optimizer's class.

        See :class:`edl.checkpoint.store.Durable`.
        """
        return self.copied({**self.state(), "optimizer_kind": self._kind})

    def restore(self, state: Any) -> None:
        """Take over ``state``, which was read from a checkpoint file.

        See :class:`edl.checkpoint.store.Durable`.

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
        if odd := sorted(self.things().keys() ^ loaded["tracked"].keys()):
            raise CheckpointError(
                f"edl.track: only one of checkpoint and script tracks {', '.join(odd)}"
            )
        try:
            self.load(loaded, Receive.ALL)
        except self.misfits as error:
            raise CheckpointError(f"the checkpoint does not fit this script: {error}") from error

    def things(self) -> dict[str, Trackable]:
        """Return by name the tracked objects that have ``state_dict`` and ``load_state_dict``."""
        return self._tracked

    def objects_from_gradients(self) -> Mapping[str, Trackable]:
        """Return the tracked objects that a script may compute from the gradients of a step."""
        return self.compared_things()

    def compared_things(self) -> dict[str, Trackable]:
        """Return the tracked objects that must be equal on all workers.

        An object is left out if its attribute ``edl_compared`` is False.
        """
        return {
            name: thing
            for name, thing in self.things().items()
            if getattr(thing, "edl_compared", True)
        }

    def states_of_things(self) -> dict[str, Any]:
        """Return the states of the tracked objects, by name."""
        return {name: thing.state_dict() for name, thing in self.things().items()}

    def load_things(self, states: Mapping[str, Any], receive: Receive) -> None:
        """Load the states of the tracked objects; in a resync only of those that are compared.

        Args:
            states: the state of each tracked object, by name.
            receive: what part of the job's state this worker takes over.

        Raises:
            UsageError: if the states are of other objects than this worker tracks.
        """
        things = self.things()
        if odd := sorted(things.keys() ^ states.keys()):
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        given = self.compared_things() if receive is Receive.RESYNC else things
        for name in [name for name in states if name in given]:
            things[name].load_state_dict(states[name])
