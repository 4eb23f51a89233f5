"""How far a migration is, and what it was, by what ZooKeeper says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import make_job, wanted

from edl.events import Event, GenerationDetails, SwitchDetails
from edl.job.placement import Migration, Move, migration_outcome, migration_status, stall_s
from edl.job.snapshot import Snapshot
from edl.records import Generation, Member, RingMember, Stage, SwitchParts

JOB = make_job(np=3, command=("true",))
MOVE = Move("digits", "a", "b", 2, {"a": 1, "b": 2}, since=3)
HOSTS = {"w0": "a", "w1": "a", "w2": "a", "w3": "b", "w4": "b"}


def member(number: int, host: str, **changes: Any) -> Member:
    fresh = Member(number, host, number, "::1", 9000 + number, 100 + number, f"launch{number}")
    return replace(fresh, **changes)


def snapshot(
    number: int, ring_members: dict[int, str], *coming: Member, late: int = -1
) -> Snapshot:
    members = tuple(
        member(w, h, stage=Stage.ACTIVE, generation=number - (w == late))
        for w, h in ring_members.items()
    )
    ring = tuple(RingMember(m.id, m.host, m.slot, m.address, m.port) for m in members)
    generation = Generation(number, 1, ring, 0, (), (), "")
    return Snapshot(JOB, members=(*members, *coming), **wanted(MOVE.desired), generation=generation)


OLD = {0: "a", 1: "a", 2: "a"}
NEW = {0: "a", 3: "b", 4: "b"}


def test_it_is_said_who_is_on_the_way() -> None:
    now = snapshot(3, OLD)
    stands = migration_status(MOVE, now)
    assert (stands.done, stands.changed, stands.text) == (
        False,
        False,
        "0 of 2 moved; 2 to be started",
    )
    ready = member(3, "b", stage=Stage.READY)
    now = snapshot(3, OLD, ready, member(4, "b"))
    stands = migration_status(MOVE, now)
    assert stands.text == "0 of 2 moved; w3 is ready, w4 is preparing"
    assert stands.arrived == {"a": 3, "b": 2}


def test_it_is_done_when_all_have_adopted_the_ring() -> None:
    waits = snapshot(4, NEW, late=0)
    assert not migration_status(MOVE, waits).done
    now = snapshot(4, NEW)
    stands = migration_status(MOVE, now)
    assert (stands.done, stands.there) == (True, 2)


def test_it_is_not_done_while_an_old_one_brings_the_state() -> None:
    now = snapshot(4, {0: "a", 3: "b", 4: "b"})
    stands = migration_status(
        replace(MOVE, desired={"a": 0, "b": 2}), replace(now, **wanted({"a": 0, "b": 2}))
    )
    assert (stands.done, stands.there) == (False, 2)


def test_a_newcomer_that_was_given_up_has_not_arrived() -> None:
    now = replace(snapshot(3, OLD, member(3, "b")), evicted={3: "frozen"})
    stands = migration_status(MOVE, now)
    assert (stands.arrived, stands.text) == ({"a": 3}, "0 of 2 moved; 2 to be started")


def test_workers_that_were_there_before_have_not_moved() -> None:
    now = snapshot(3, {0: "a", 1: "b"})
    move = Move("digits", "a", "b", 1, {"a": 0, "b": 2}, since=3)
    assert migration_status(move, replace(now, **wanted(move.desired))).there == 0


@pytest.mark.parametrize(
    ("hosts", "changed"),
    [({"a": 3, "b": 0}, True), ({"a": 1, "b": 1}, True), ({"a": 1, "b": 2, "c": 1}, False)],
)
def test_somebody_else_asks_for_others(hosts: dict[str, int], changed: bool) -> None:
    stands = migration_status(MOVE, replace(snapshot(3, OLD), **wanted(hosts)))
    assert (stands.changed, stands.there) == (changed, 0)


def made(
    number: int, joined: tuple[str, ...] = (), left: tuple[str, ...] = (), repair: bool = False
) -> Event:
    return Event(0.0, number, 9, "so", GenerationDetails(1, (), joined, left, repair))


def switch(**stalls: float) -> SwitchDetails:
    """Workers w3 and above are new."""
    told = {
        w: SwitchParts("new" if int(w[1:]) > 2 else "old", stall_s=s) for w, s in stalls.items()
    }
    return SwitchDetails(len(told), told)


def switched(number: int, **stalls: float) -> Event:
    return Event(0.0, number, 9, "so", switch(**stalls))


BEFORE = [made(3, joined=("w2",)), switched(3, w0=9.0)]


def test_one_switch() -> None:
    both = made(4, ("w3", "w4"), ("w1", "w2"))
    done = migration_outcome(
        MOVE, [*BEFORE, both, switched(4, w0=0.21, w3=0.4, w4=0.4)], HOSTS, last=4
    )
    assert done == Migration(MOVE, (4,), 0.21)
    assert str(done) == (
        "moved 2 workers of digits from a to b in one switch (generation 4); "
        "the others stood still for 0.2 s"
    )


def test_other_changes_meanwhile_and_later_ones_are_not_its_own() -> None:
    others = [made(4, joined=("w5",)), made(6, left=("w0",))]
    done = migration_outcome(
        MOVE, [*others, made(5, ("w3",), ("w1",))], {**HOSTS, "w5": "c"}, last=5
    )
    assert done.generations == (5,)


def test_two_switches_when_one_old_worker_brought_the_state() -> None:
    first, second = made(4, ("w3", "w4"), ("w1",)), made(5, (), ("w0",))
    log = [first, switched(4, w0=0.2), second, switched(5, w3=0.1)]
    done = migration_outcome(MOVE, log, HOSTS, last=5)
    assert str(done).endswith("in 2 switches (generations 4, 5); the others stood still for 0.2 s")


def test_a_crash_on_the_way_is_no_switch_of_the_migration() -> None:
    crash = made(4, left=("w1",), repair=True)
    done = migration_outcome(MOVE, [crash, made(5, ("w3", "w4"), ("w2",))], HOSTS, last=5)
    assert done.generations == (5,)


def test_a_stall_that_is_not_known_is_not_named() -> None:
    done = migration_outcome(MOVE, [made(4, ("w3", "w4"), ("w1", "w2"))], HOSTS, last=4)
    assert str(done) == "moved 2 workers of digits from a to b in one switch (generation 4)"


def test_nobody_had_to_move() -> None:
    assert "without a switch" in str(migration_outcome(MOVE, BEFORE, HOSTS, last=3))


def test_the_longest_stall_is_that_of_an_old_worker() -> None:
    assert stall_s(switch(w0=0.1, w1=0.2, w3=0.9)) == 0.2
    assert stall_s(switch()) == 0.0


def test_a_switch_that_the_log_lacks_was_seen() -> None:
    """Its leader died between writing the generation and telling of it."""
    ring = tuple(RingMember(w, h, 0, "::1", 1) for w, h in NEW.items())
    seen = Generation(4, 1, ring, 0, (3, 4), (1, 2), "so", previous=ring[:1])
    log = [*BEFORE, switched(4, w0=0.21)]
    done = migration_outcome(MOVE, log, HOSTS, last=4, seen=[seen])
    assert done == Migration(MOVE, (4,), 0.21)
    repair = replace(seen, previous=())
    assert migration_outcome(MOVE, log, HOSTS, last=4, seen=[repair]).generations == ()


def test_what_nobody_knows_is_not_called_no_switch() -> None:
    done = migration_outcome(MOVE, BEFORE, HOSTS, last=4)
    assert str(done) == (
        "moved 2 workers of digits from a to b; in which switch, the event log does not say"
    )


def test_an_event_that_was_written_twice_counts_once() -> None:
    both = made(4, ("w3", "w4"), ("w1", "w2"))
    assert migration_outcome(MOVE, [both, both], HOSTS, last=4).generations == (4,)
