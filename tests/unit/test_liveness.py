"""Whom a leader asks, and which answers prove a death."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from made import make_job

from edl.job.liveness import USUAL, RingIdle, proof, workers_to_probe
from edl.job.snapshot import Snapshot
from edl.records import Generation, Liveness, Member, ProbeResult, RingFailure, RingMember, Stage

ALIVE, REFUSED, SILENT = Liveness.ALIVE, Liveness.REFUSED, Liveness.SILENT
LONG, SHORT = RingIdle(60.0, 0.1), RingIdle(0.1, 0.1)
HERE = "h:9002"


def worker(number: int, **changes: Any) -> Member:
    member = Member(number, "h", number, "10.0.0.1", 9000 + number, 1, "launch", Stage.ACTIVE, 7)
    return replace(member, **changes)


def newcomer(number: int) -> Member:
    return worker(number, stage=Stage.READY, generation=0)


def ring_of(*members: Member) -> tuple[RingMember, ...]:
    return tuple(RingMember(m.id, m.host, m.slot, m.address, m.port) for m in members)


A, B, C = worker(0), worker(1), worker(2)
RING = Generation(7, 1, ring_of(A, B, C), 0, (), (), "so it began")
NEXT = Generation(8, 1, ring_of(A, B, C, newcomer(3)), 0, (3,), (), "", previous=ring_of(A, B, C))


def facts(*members: Member, generation: Generation = RING, **changes: Any) -> Snapshot:
    return Snapshot(
        make_job("job", np=3, command=("true",)), members=members, generation=generation, **changes
    )


# --- whom it asks ---


def asked(now: Snapshot, announced_s: float = 99.0, idle: RingIdle = SHORT) -> set[int]:
    return set(workers_to_probe(now, 0, announced_s, idle))


def test_a_ring_that_trains_is_left_alone() -> None:
    assert asked(facts(A, B, C)) == set()


def test_all_of_a_ring_that_stands_still_are_asked() -> None:
    assert asked(facts(A, B, C), idle=LONG) == {1, 2}


def test_newcomers_that_may_be_taken_in_are_asked() -> None:
    preparing = worker(4, stage=Stage.PREPARING, generation=0)
    now = facts(A, B, C, newcomer(3), preparing)
    assert workers_to_probe(now, 0, 99.0, SHORT) == {3: ("10.0.0.1", 9003)}


def test_of_many_newcomers_nobody_is_asked_all_the_time() -> None:
    """A hundred of them: each once a second; who has not been heard yet, at once."""
    now = facts(A, B, C, *(newcomer(number) for number in range(100, 200)))
    assert USUAL.newcomer_s * 100 == 1.0
    heard_s = dict.fromkeys(range(100, 198), 0.9) | {198: 1.0}
    assert set(workers_to_probe(now, 0, 99.0, SHORT, heard_s)) == {198, 199}
    in_doubt = facts(A, B, newcomer(3), newcomer(4))
    assert set(workers_to_probe(in_doubt, 0, 0.0, SHORT, {2: 0.0, 3: 0.019})) == {1, 2, 4}


@pytest.mark.parametrize(
    "members", [(A, B), (A, B, replace(C, broken=RingFailure(7, 40)))], ids=["absent", "broken"]
)
def test_all_are_asked_when_one_is_in_doubt(members: tuple[Member, ...]) -> None:
    assert asked(facts(*members), 0.0) == {1, 2}


def test_the_leader_and_those_given_up_are_not_asked() -> None:
    assert asked(facts(A, B, evicted={2: "frozen"})) == {1}


def test_a_switch_is_not_disturbed_at_first() -> None:
    now = facts(A, B, C, newcomer(3), newcomer(4), generation=NEXT)
    assert asked(now, USUAL.switch_s - 0.01) == {4}
    assert asked(now, USUAL.switch_s) == {1, 2, 3, 4}


# --- what proves a death ---


def test_a_refused_port_is_proof() -> None:
    reason = proof(2, HERE, ProbeResult(REFUSED), facts(A, B, C), SHORT)
    assert reason == "its process is gone: h:9002 refuses connections"


def test_another_worker_on_its_port_is_proof() -> None:
    reason = proof(2, HERE, ProbeResult(ALIVE, "w9"), facts(A, B, C), SHORT)
    assert reason == "its process is gone: on h:9002 w9 answers"


@pytest.mark.parametrize("name", ["w2", None])
def test_who_answers_lives(name: str | None) -> None:
    assert proof(2, HERE, ProbeResult(ALIVE, name), facts(A, B), LONG) is None


def test_frozen_takes_three_proofs() -> None:
    absent, silent = facts(A, B), ProbeResult(SILENT)
    assert proof(2, HERE, silent, facts(A, B, C), LONG) is None, "its session lives"
    assert proof(2, HERE, ProbeResult(ALIVE), absent, LONG) is None, "its port answers"
    assert proof(2, HERE, silent, absent, SHORT) is None, "steps complete"
    assert proof(2, HERE, silent, absent, replace(LONG, observed="; w0 waits")) == (
        "it is frozen or cut off: w2 (rank 2, host h) left ZooKeeper, h:9002 does not answer and "
        "no step completes for 60.0 s; w0 waits"
    )


def test_who_is_gone_from_a_broken_ring_is_not_waited_for_as_long_as_steps_take() -> None:
    """A machine was switched off, and its neighbours have seen it; a step takes a minute."""
    slow = RingIdle(1.5, 60.0)
    silent = ProbeResult(SILENT)
    assert proof(2, HERE, silent, facts(A, B), slow) is None
    reported = facts(A, replace(B, broken=RingFailure(7, 40)))
    assert proof(2, HERE, silent, reported, slow) is not None
    assert proof(2, HERE, silent, reported, RingIdle(0.5, 60.0)) is None


def test_of_a_newcomer_on_its_way_in_no_step_is_asked() -> None:
    now, silent = facts(A, B, C, generation=NEXT), ProbeResult(SILENT)
    assert proof(3, "h:9003", silent, now, SHORT) == (
        "it is frozen or cut off: w3 (rank 3, host h) left ZooKeeper on its way into its first "
        "ring, and h:9003 does not answer"
    )
    assert proof(3, "h:9003", ProbeResult(ALIVE), now, LONG) is None
    assert proof(3, "h:9003", silent, replace(now, members=(A, newcomer(3))), LONG) is None
    in_the_ring = replace(now, members=(replace(A, generation=8), B, C))
    assert proof(3, "h:9003", silent, in_the_ring, SHORT) is None, "the ring was built with it"
    assert proof(2, HERE, silent, replace(now, members=(A, B)), SHORT) is None, "an old member"


def test_who_leaves_in_a_switch_may_have_closed_its_port() -> None:
    """A packet of the answer was lost, and the others take seconds to close the ring."""
    smaller = Generation(8, 1, ring_of(A, B), 0, (), (2,), "", previous=ring_of(A, B, C))
    now, silent = facts(A, B, generation=smaller), ProbeResult(SILENT)
    assert proof(2, HERE, silent, now, RingIdle(2.7, 0.1)) is None
    assert proof(2, HERE, silent, now, RingIdle(6.1, 0.1)) is not None, "it froze before it left"
    assert proof(1, HERE, silent, replace(now, members=(A,)), RingIdle(2.7, 0.1)) is not None
    reported = replace(now, members=(A, replace(B, broken=RingFailure(7, 40))))
    assert proof(2, HERE, silent, reported, RingIdle(2.7, 0.1)) is not None, "nobody closes it now"


@pytest.mark.parametrize(
    ("quiet_s", "usual_s", "stands"),
    [
        (USUAL.frozen_s, 0.0, False),
        (USUAL.frozen_s + 0.1, 0.0, True),
        (USUAL.frozen_s + 0.1, 0.2, True),
        (USUAL.frozen_s + 0.1, 0.3, False),
        (49.0, 10.0, False),
        (51.0, 10.0, True),
    ],
)
def test_when_a_ring_stands_still(quiet_s: float, usual_s: float, stands: bool) -> None:
    assert RingIdle(quiet_s, usual_s).stands is stands
