"""What a worker that waits is told: the newest generation, if it is one that it may act on."""

from __future__ import annotations

import time

import pytest

from edl.errors import WorkerEvicted
from edl.records import Generation, JobState, Leader, RingMember
from edl.worker.shared_state import SharedState

SEATS = (RingMember(4, "a", 0, "::1", 9004), RingMember(2, "b", 1, "::1", 9002))
REPAIR = Generation(6, 2, SEATS, 4, (), (1,), "w1 died")
PLANNED = Generation(7, 2, SEATS, 4, (2,), (1,), "w2 joined", previous=SEATS[:1])


def waiting(worker: int, *generations: Generation, repairs: bool) -> Generation | None:
    shared = SharedState(worker)
    for generation in generations:
        shared.announce(generation)
    return shared.wait_for_generation(5, time.monotonic(), repairs=repairs)


def test_who_waits_for_a_repair_gets_nothing_else() -> None:
    assert waiting(4, REPAIR, repairs=True) is REPAIR
    assert waiting(4, REPAIR, PLANNED, repairs=True) is None
    assert waiting(4, REPAIR, PLANNED, repairs=False) is PLANNED


def test_whom_nobody_knows_any_more_hears_the_newest() -> None:
    """A worker that was frozen while the others went on from generation to generation."""
    assert waiting(9, REPAIR, PLANNED, repairs=True) is PLANNED
    assert PLANNED.rank_of(9) is None


def test_when_it_was_heard_of() -> None:
    shared = SharedState(4)
    began = time.monotonic()
    shared.leads(Leader(1, 4))
    shared.announce(REPAIR)
    led, heard = shared.led_since, shared.announced_at
    assert began <= led <= heard <= time.monotonic()
    shared.leads(Leader(1, 4))  # said again at each look
    assert (shared.leader, shared.led_since) == (Leader(1, 4), led)
    shared.leads(Leader(2, 2))
    shared.announce(PLANNED)
    assert shared.led_since > led
    assert shared.announced_at > heard


def test_the_evicted_and_the_end_of_the_job() -> None:
    shared = SharedState(9)
    shared.job_is(JobState.FINISHED, "trained")
    assert shared.wait_for_generation(0) is None
    shared.check()
    shared.evict("it froze")
    with pytest.raises(WorkerEvicted, match="it froze"):
        shared.wait_for_generation(0)
    with pytest.raises(WorkerEvicted, match="it froze"):
        shared.check()
