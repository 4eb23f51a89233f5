"""What both frameworks' replicas have in common: who sends, who takes over, what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from edl.binding.replica import ByteRange, FrameworkReplica, Reference, add_tracked, of_bytes
from edl.errors import CheckpointError, RingBroken, UsageError
from edl.ring.ring import CollectiveFailed
from edl.worker.progress import Receive


class Counter:
    """What a script tracks."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Wire:
    """What the state source has sent, in order, for those who receive."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.broken = False

    def ring(self, rank: int, alone: bool = False) -> Any:
        def broadcast(payload: bytes, root: int, _name: str) -> bytes:
            if rank == root:
                self.sent.append(payload)
                return payload
            return bytes(self.sent[0])

        place = SimpleNamespace(rank=rank)
        return SimpleNamespace(alone=alone, place=place, generation=7, broadcast=broadcast)


class Bytearrays:
    """A framework whose arrays are bytearrays."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire

    def refer(self, value: Any, index: int) -> tuple[bytearray, Reference] | None:
        if not isinstance(value, bytearray):
            return None
        return value, Reference(index, (len(value),), "uint8", len(value))

    def empty(self, reference: Reference) -> bytearray:
        return bytearray(reference.size)

    def broadcast(
        self, sent: list[Reference], arrays: list[bytearray] | None, root: int, keep: bool
    ) -> dict[int, bytearray]:
        if self._wire.broken:
            raise CollectiveFailed("gone")
        if arrays is not None:
            assert not keep, "who sends has it all"
            self._wire.sent += [bytes(arrays[each.index]) for each in sent if each.size]
            return {}
        pieces = self._wire.sent[1:]
        references = [each for each in sent if each.size]
        return {
            each.index: bytearray(piece)
            for each, piece in zip(references, pieces, strict=True)
            if keep
        }


class Replica(FrameworkReplica):
    """That of such a framework."""

    framework = "test"

    def __init__(self, wire: Wire, model: bytes, **tracked: Counter) -> None:
        super().__init__("SGD")
        self.model = bytearray(model)
        self.arrays = Bytearrays(wire)
        self.track(tracked)

    @property
    def tracked_counter(self) -> Counter:
        counter = self.things()["counter"]
        assert isinstance(counter, Counter)
        return counter

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Counter):
                raise UsageError(f"{name} cannot be tracked")

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "none": bytearray(), "tracked": self.states_of_things()}

    def compared(self) -> dict[str, Any]:
        return self.state()

    def averages(self) -> list[Any]:
        return []

    def set_averages(self, means: Any) -> None:
        raise AssertionError(means)

    def learning_rates(self) -> dict[str, float]:
        return {}

    def equal_on_all(self, state: dict[str, Any]) -> Iterable[Any]:
        return [state["model"]]

    @staticmethod
    def size_of(value: Any) -> int | None:
        return len(value) if isinstance(value, bytearray) else None

    def digested(self, parts: Iterable[ByteRange]) -> dict[str, int]:
        return {part.name: of_bytes("test", repr(part.value).encode()) for part in parts}

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        if len(state["model"]) != len(self.model):
            raise ValueError("another length")
        self.model[:] = state["model"]
        if receive is not Receive.STEP:
            self.load_things(state["tracked"], receive)

    def copied(self, state: dict[str, Any]) -> Any:
        return {**state, "model": bytes(state["model"])}

    def uncopied(self, state: Any) -> dict[str, Any]:
        return dict(state)


def places(replica: Replica, *numbers: int) -> None:
    """Ask for a batch after each of these steps of the first epoch, as a script does."""
    for number in numbers:
        replica.end_batch(number, 0)


@pytest.mark.parametrize("receive", [Receive.STEP, Receive.ALL])
def test_what_is_tracked_becomes_that_of_the_step_which_a_worker_missed(receive: Receive) -> None:
    """Its script counts by gradients of zero; the root has gone on to its next batch since."""
    wire = Wire()
    root, mine = (
        Replica(wire, b"root", counter=Counter(5)),
        Replica(wire, b"mine", counter=Counter(5)),
    )
    for each in (root, mine):
        places(each, 3)
    root.tracked_counter.count = 6
    places(root, 4)
    root.tracked_counter.count = 60  # of the batch after that, whose update is yet to come
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine.synchronise(wire.ring(1), 0, receive)
    mine.tracked_counter.count += 2  # by its script
    places(mine, 4)
    assert mine.tracked_counter.count == (6 if receive is Receive.STEP else 62)
    mine.tracked_counter.count += 1
    places(mine, 4)
    assert mine.tracked_counter.count == (7 if receive is Receive.STEP else 63), "only once"


def test_a_root_that_has_not_come_so_far_leaves_it_to_the_script() -> None:
    wire = Wire()
    root, mine = (
        Replica(wire, b"root", counter=Counter(5)),
        Replica(wire, b"mine", counter=Counter(5)),
    )
    places(root, 2, 3)
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine.synchronise(wire.ring(1), 0, Receive.STEP)
    mine.tracked_counter.count = 8
    places(mine, 4)
    assert mine.tracked_counter.count == 8


def test_both_places_at_the_end_of_an_epoch_are_kept() -> None:
    """The root is in the next epoch; what its script does between the two is yet to come here."""
    wire = Wire()
    root, mine = (
        Replica(wire, b"root", counter=Counter(5)),
        Replica(wire, b"mine", counter=Counter(1)),
    )
    root.end_batch(9, 0)
    root.tracked_counter.count = 50
    root.end_batch(9, 1)
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine.synchronise(wire.ring(1), 0, Receive.STEP)
    mine.end_batch(9, 0)
    assert mine.tracked_counter.count == 5


def test_a_large_state_is_copied_once_and_then_left_to_the_script() -> None:
    class Large(Counter):
        copies = 0

        def state_dict(self) -> Any:
            type(self).copies += 1
            return {"count": self.count, "data": bytearray(2**21)}

    class Long(Large):
        copies = 0

        def state_dict(self) -> Any:
            type(self).copies += 1
            return {"count": self.count, "losses": [0.5] * 2000}

    class Odd(Large):
        copies = 0

        def state_dict(self) -> Any:
            type(self).copies += 1
            return {"count": self.count, "odd": object()}

    one = Replica(Wire(), b"root", large=Large(), small=Counter(), long=Long(), odd=Odd())
    places(one, 1, 2, 3)
    assert (Large.copies, Long.copies, Odd.copies) == (1, 1, 1)


def test_who_has_received_it_and_not_come_so_far_hands_it_on() -> None:
    """The ring broke before the third worker had it, and the second is the root of the next."""
    first, second, third = (Replica(Wire(), b"root", counter=Counter(5)) for _ in range(3))
    places(first, 4)
    for sender, receiver in ((first, second), (second, third)):
        wire = Wire()
        sender.arrays = receiver.arrays = Bytearrays(wire)
        sender.synchronise(wire.ring(0), 0, Receive.NOTHING)
        receiver.synchronise(wire.ring(1), 0, Receive.STEP)
        receiver.tracked_counter.count = 9
    places(third, 4)
    assert third.tracked_counter.count == 5


def synchronised(theirs: Counter, receive: Receive) -> Replica:
    """Return a replica that has taken part while the root, with model b"root", sent its state."""
    wire = Wire()
    root = Replica(wire, b"root", counter=Counter(5))
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine = Replica(wire, b"mine", counter=theirs)
    mine.synchronise(wire.ring(1), 0, receive)
    return mine


@pytest.mark.parametrize(
    ("receive", "model", "count"),
    [
        (Receive.ALL, b"root", 5),
        (Receive.RESYNC, b"root", 5),
        (Receive.STEP, b"root", 1),
        (Receive.NOTHING, b"mine", 1),
    ],
)
def test_a_worker_takes_over_what_it_lacks(receive: Receive, model: bytes, count: int) -> None:
    counter = Counter(1)
    assert synchronised(counter, receive).model == model
    assert counter.count == count


def test_who_is_healed_keeps_what_is_its_own() -> None:
    """A reader's place in a stream, or what a callback remembers."""
    own = Counter(1)
    own.edl_compared = False  # type: ignore[attr-defined]
    mine = synchronised(own, Receive.RESYNC)
    assert (mine.model, own.count) == (b"root", 1)


def test_who_was_healed_hands_on_nothing_of_before() -> None:
    """Its copies of what is tracked, for a worker that misses the next step, were not the job's."""
    wire, again = Wire(), Wire()
    root, mine, third = (Replica(wire, b"root", counter=Counter(n)) for n in (5, 1, 5))
    places(mine, 4)
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine.synchronise(wire.ring(1), 0, Receive.RESYNC)
    mine.arrays = third.arrays = Bytearrays(again)
    mine.synchronise(again.ring(0), 0, Receive.NOTHING)
    third.synchronise(again.ring(1), 0, Receive.STEP)
    places(third, 4)
    assert third.tracked_counter.count == 5


def test_the_root_keeps_what_it_has_whatever_it_is_to_receive() -> None:
    wire = Wire()
    root = Replica(wire, b"root")
    root.synchronise(wire.ring(0), 0, Receive.ALL)
    assert root.model == b"root"
    assert len(wire.sent) == 2, "a description and what is not empty"


def test_alone_nothing_is_sent() -> None:
    wire = Wire()
    Replica(wire, b"mine").synchronise(wire.ring(0, alone=True), 0, Receive.ALL)
    assert wire.sent == []


def test_a_collective_that_fails_is_a_broken_ring() -> None:
    wire = Wire()
    wire.broken = True
    with pytest.raises(RingBroken, match="generation 7 is broken: gone"):
        Replica(wire, b"root").synchronise(wire.ring(0), 0, Receive.ALL)


def test_other_objects_than_the_jobs_are_named() -> None:
    wire = Wire()
    Replica(wire, b"root", a=Counter(), b=Counter()).synchronise(wire.ring(0), 0, Receive.ALL)
    with pytest.raises(UsageError, match=r"edl.track: only some workers track b, c"):
        Replica(wire, b"mine", a=Counter(), c=Counter()).synchronise(wire.ring(1), 0, Receive.ALL)


def test_a_checkpoint_comes_back_or_is_refused_with_a_reason() -> None:
    saved = Replica(Wire(), b"root", counter=Counter(5)).capture()
    counter = Counter()
    mine = Replica(Wire(), b"mine", counter=counter)
    mine.restore(saved)
    assert (mine.model, counter.count) == (b"root", 5)
    with pytest.raises(CheckpointError, match="a job with Adam, and this script trains with SGD"):
        mine.restore({**saved, "optimizer_kind": "Adam"})
    with pytest.raises(CheckpointError, match="only one of checkpoint and script tracks counter"):
        Replica(Wire(), b"mine").restore(saved)
    with pytest.raises(CheckpointError, match="does not fit this script: another length"):
        Replica(Wire(), b"longer", counter=Counter()).restore(saved)


def test_a_tracked_name_belongs_to_one_object_and_a_refusal_changes_nothing() -> None:
    one, other = object(), object()
    tracked: dict[str, object] = {}
    add_tracked(tracked, {"a": one})
    add_tracked(tracked, {"a": one, "b": other})
    with pytest.raises(UsageError, match=r"edl.track\(b=...\): another object is tracked as b"):
        add_tracked(tracked, {"c": one, "b": one})
    assert tracked == {"a": one, "b": other}
