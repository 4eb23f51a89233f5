"""What both frameworks' replicas have in common: who sends, who takes over, what is refused."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from edl.daemon.progress import Receive
from edl.errors import CheckpointError, RingBroken, UsageError
from edl.framework.digest import of_bytes
from edl.framework.replica import FrameworkReplica, add_tracked
from edl.framework.state import Reference
from edl.ring.ring import CollectiveFailed


class Counter:
    """What a script tracks."""

    def __init__(self, count: int = 0) -> None:
        self.count = count

    def state_dict(self) -> dict[str, int]:
        return {"count": self.count}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.count = state["count"]


class Wire:
    """What the sync root has sent, in order, for those who receive."""

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

    @staticmethod
    def check(objects: Mapping[str, Any]) -> None:
        for name, thing in objects.items():
            if not isinstance(thing, Counter):
                raise UsageError(f"{name} cannot be tracked")

    def state(self) -> dict[str, Any]:
        return {"model": self.model, "none": bytearray(), "tracked": self.states_of_things()}

    def compared(self) -> dict[str, Any]:
        return self.state()

    def digested(self, parts: Iterable[tuple[str, Any]]) -> dict[str, int]:
        return {name: of_bytes("test", repr(value).encode()) for name, value in parts}

    def load(self, state: dict[str, Any], receive: Receive) -> None:
        if len(state["model"]) != len(self.model):
            raise ValueError("another length")
        self.model[:] = state["model"]
        if receive is not Receive.STEP:
            self.load_things(state["tracked"])

    def copied(self, state: dict[str, Any]) -> Any:
        return {**state, "model": bytes(state["model"])}

    def uncopied(self, state: Any) -> dict[str, Any]:
        return dict(state)


def synchronised(theirs: Counter, receive: Receive) -> Replica:
    """A replica that has taken part while the root, with model b"root", sent its state."""
    wire = Wire()
    root = Replica(wire, b"root", counter=Counter(5))
    root.synchronise(wire.ring(0), 0, Receive.NOTHING)
    mine = Replica(wire, b"mine", counter=theirs)
    mine.synchronise(wire.ring(1), 0, receive)
    return mine


@pytest.mark.parametrize(
    ("receive", "model", "count"),
    [(Receive.ALL, b"root", 5), (Receive.STEP, b"root", 1), (Receive.NOTHING, b"mine", 1)],
)
def test_a_worker_takes_over_what_it_lacks(receive: Receive, model: bytes, count: int) -> None:
    counter = Counter(1)
    assert synchronised(counter, receive).model == model
    assert counter.count == count


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
