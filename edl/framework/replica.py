"""The state that all workers share: model, optimizer and tracked objects, sent and saved.

What needs no framework to be known for it; each framework adds how its arrays are read, sent and
written. How they travel: :mod:`edl.framework.state`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from edl.core.step.state_check import WHOLE, Group
from edl.errors import CheckpointError, UsageError
from edl.framework.digest import ByteRange, StateArrays
from edl.framework.state import Arrays, Stateful, exchange
from edl.framework.tracked_copies import TrackedCopies
from edl.ring.ring import Ring
from edl.worker.progress import Receive


def add_tracked(tracked: dict[str, Any], objects: Mapping[str, Any]) -> None:
    """Add ``objects``, all or none of them, to those that are ``tracked``.

    Raises:
        UsageError: another object has the name.
    """
    for name, thing in objects.items():
        if tracked.get(name, thing) is not thing:
            raise UsageError(f"edl.track({name}=...): another object is tracked as {name}")
    tracked.update(objects)


class FrameworkReplica(ABC):
    """Model, optimizer and tracked objects of this process.

    A state is made of containers, arrays, and whatever the tracked objects return. Besides what
    a framework puts there it has under "tracked" the states of the tracked objects.

    Args:
        kind: the optimizer's, for checkpoints.
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
        """The script has these optimizers."""
        self._kind = " and ".join(kinds)

    # --- what a framework adds

    @staticmethod
    @abstractmethod
    def check(objects: Mapping[str, Any]) -> None:
        """Raise UsageError for an object that cannot be tracked."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """All that is shared, as it is now."""

    @abstractmethod
    def load(self, state: dict[str, Any], receive: Receive) -> None:
        """Take over as much of a state as ``receive`` says.

        Raises:
            UsageError: it is of another model, or other objects are tracked.
        """

    @abstractmethod
    def copied(self, state: dict[str, Any]) -> Any:
        """``state`` with a copy of each array, as files have them."""

    @abstractmethod
    def uncopied(self, state: Any) -> dict[str, Any]:
        """The inverse of :meth:`copied`.

        Raises:
            CheckpointError: it has something that this framework does not know, or is of another
                model.
        """

    @abstractmethod
    def compared(self) -> dict[str, Any]:
        """What must be equal on all workers: no buffers, which are each worker's own."""

    @staticmethod
    @abstractmethod
    def size_of(value: Any) -> int | None:
        """The bytes of an array in what is compared; None: it is none."""

    @abstractmethod
    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        """A digest of each part by name, but for those that cannot be compared."""

    @abstractmethod
    def learning_rates(self) -> dict[str, float]:
        """See :class:`edl.worker.state_check.Compared`."""

    def signature(self) -> dict[str, str]:
        """The shape of each tensor of the models by name: what a newcomer must have, too.

        Empty, where it cannot be told before the state comes. Called in any thread.
        """
        return {}

    # --- what all have in common

    def digests(self, group: Group = WHOLE) -> dict[str, int]:
        """See :class:`edl.worker.state_check.Compared`."""
        return self.digested(self._parts.within(group))

    def track(self, objects: Mapping[str, Any]) -> None:
        """Let more objects follow the job.

        Raises:
            UsageError: an object cannot give and take its state, or the name is taken.
        """
        self.check(objects)
        add_tracked(self._tracked, objects)

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """See :class:`edl.worker.switching.Replica`.

        Raises:
            RingBroken: a worker is gone; a receiver's state is what it was.
            UsageError: the receiver's script shares something else than the job's.
        """
        if ring.alone:
            return
        self._parts.forget()  # on all, so that they go on listing what they compare alike
        sending = ring.place.rank == root
        keep = receive is not Receive.NOTHING and not sending
        mine = {**self.state(), "between": self._copies.sent()} if sending else None
        state = exchange(self.arrays, ring, root, mine, keep)
        if keep:
            self.load(state, receive)
            self._copies.receive(state["between"] if receive is Receive.STEP else {})
        if keep and receive is Receive.RESYNC:
            self._copies.forget()

    def end_batch(self, step: int, epoch: int) -> None:
        """See :class:`edl.worker.switching.Replica`."""
        self._copies.end_batch((step, epoch), self.objects_from_gradients())

    def capture(self) -> Any:
        """See :class:`edl.checkpoint.store.Durable`."""
        return self.copied({**self.state(), "optimizer_kind": self._kind})

    def restore(self, state: Any) -> None:
        """See :class:`edl.checkpoint.store.Durable`."""
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

    def things(self) -> dict[str, Stateful]:
        """The tracked objects that give and take their states themselves."""
        return self._tracked

    def objects_from_gradients(self) -> Mapping[str, Stateful]:
        """The tracked objects that a script may compute from the gradients of a step."""
        return self.compared_things()

    def compared_things(self) -> dict[str, Stateful]:
        """Those that must be equal on all workers: all but who says ``edl_compared = False``."""
        return {
            name: thing
            for name, thing in self.things().items()
            if getattr(thing, "edl_compared", True)
        }

    def states_of_things(self) -> dict[str, Any]:
        return {name: thing.state_dict() for name, thing in self.things().items()}

    def load_things(self, states: Mapping[str, Any], receive: Receive) -> None:
        """Give the tracked objects their states; to be resynced, those that are compared.

        Raises:
            UsageError: the states are of other objects.
        """
        things = self.things()
        if odd := sorted(things.keys() ^ states.keys()):
            raise UsageError(f"edl.track: only some workers track {', '.join(odd)}")
        given = self.compared_things() if receive is Receive.RESYNC else things
        for name in [name for name in states if name in given]:
            things[name].load_state_dict(states[name])
