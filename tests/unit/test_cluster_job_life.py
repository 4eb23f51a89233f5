"""The life of a job of a cluster: the table, and the records that it leads to."""

from __future__ import annotations

from dataclasses import replace

import pytest

from edl.cluster.lifecycle import (
    STABLE_S,
    TRANSITIONS,
    JobLifecycle,
    LifeEvent,
    LifeResult,
    LifeState,
    back_off_s,
    is_token_of,
    run_token,
)
from edl.errors import IllegalTransition
from edl.job.run import check_run_token

ALLOWED = {
    "queued": {"start": "starting", "halt": "halted", "delete": "ended", "give up": "ended"},
    "starting": {
        "train": "running",
        "take back": "queued",
        "retry": "queued",
        "give up": "ended",
        "finish": "ended",
        "stop": "halting",
    },
    "running": {"stop": "halting", "retry": "queued", "give up": "ended", "finish": "ended"},
    "halting": {
        "halt": "halted",
        "requeue": "queued",
        "retry": "queued",
        "give up": "ended",
        "finish": "ended",
        "delete": "ended",
    },
    "halted": {"resume": "queued", "delete": "ended"},
    "ended": {},
}


def test_the_table_is_this_one() -> None:
    assert {
        str(state): {str(event): str(line.to) for event, line in events.items()}
        for state, events in TRANSITIONS.items()
    } == ALLOWED


def test_a_run_begins_in_one_place_only() -> None:
    """Whatever a job is, it can only get a run out of the queue."""
    starts = [state for state, events in TRANSITIONS.items() if LifeEvent.START in events]
    assert starts == [LifeState.QUEUED]
    assert TRANSITIONS[LifeState.ENDED] == {}


def test_each_line_says_when() -> None:
    assert all(line.when for events in TRANSITIONS.values() for line in events.values())


@pytest.mark.parametrize(
    ("state", "event"),
    [
        (state, event)
        for state in LifeState
        for event in LifeEvent
        if event not in TRANSITIONS[state]
    ],
)
def test_an_event_that_is_not_allowed_changes_nothing(state: LifeState, event: LifeEvent) -> None:
    life = JobLifecycle(state, "because")
    with pytest.raises(IllegalTransition, match=r"a job that is \w+ \(because\) allows no event"):
        life.after(event, "no", 5.0)
    assert life == JobLifecycle(state, "because")


def test_an_event_sets_state_reason_and_time() -> None:
    life = JobLifecycle(submitted_s=1.0).after(LifeEvent.START, "starts", 5.0, run="7-1", runs=1)
    assert life == JobLifecycle(
        LifeState.STARTING, "starts", 5.0, run="7-1", runs=1, submitted_s=1.0
    )
    ended = replace(life, state=LifeState.RUNNING).after(LifeEvent.FINISH, "done", 9.0)
    assert (ended.result, ended.ended_s) == (LifeResult.FINISHED, 9.0)


def test_waits_double_up_to_five_minutes() -> None:
    assert [back_off_s(tries) for tries in range(1, 12)] == [
        1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300,
    ]  # fmt: skip
    assert back_off_s(10_000) == 300


def test_a_failure_after_a_long_training_is_the_first_one_again() -> None:
    life = JobLifecycle(LifeState.RUNNING, since_s=100.0, tries=6, failures=6)
    soon = life.failed(100.0 + STABLE_S - 1, counts=True)
    late = life.failed(100.0 + STABLE_S, counts=True)
    assert (soon["tries"], late["tries"]) == (7, 1)
    assert late["not_before_s"] == 100.0 + STABLE_S + 1
    assert soon["failures"] == late["failures"] == 7
    assert life.failed(200.0, counts=False)["failures"] == 6


def test_service_is_counted_where_the_number_of_slots_changes() -> None:
    life = JobLifecycle(counted_s=10.0).counted(4, 10.0).counted(2, 20.0)
    assert (life.attained_slot_s, life.slots, life.counted_s) == (40.0, 2, 20.0)
    assert life.attained_s(25.0) == 50.0
    assert life.counted(2, 25.0) is life


def test_tokens_of_two_submissions_differ() -> None:
    assert run_token(47, 1) == run_token(47, 1) == "000000000000002f00000001"
    assert check_run_token(run_token(2**63, 2**31)) == run_token(2**63, 2**31)
    assert is_token_of(run_token(47, 12), 47)
    assert not is_token_of(run_token(47, 12), 4)
    assert not is_token_of("000000000000002f0123456789abcdef", 47), "one of `edl run`"
    assert len({run_token(order, number) for order in (1, 11, 111) for number in (1, 11)}) == 6


def test_a_record_survives_its_way_through_json() -> None:
    life = JobLifecycle(LifeState.RUNNING, "trains", 3.0, run="2f-1", result=None)
    assert JobLifecycle.from_json(life.to_json()) == life
