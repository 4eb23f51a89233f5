"""What a leader makes of its job's policy, turn by turn."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from made import make_job, wanted

from edl.core.job.profile_hold import ProfileHold
from edl.core.policy.learned import Learned
from edl.core.records import (
    Asker,
    Desired,
    Generation,
    Host,
    JobPolicy,
    JobState,
    Member,
    Reading,
    Seat,
    Snapshot,
    Stage,
)
from edl.leader.size_policy import KEEP_S, SizePolicy

TEXT = '[size]\nrule = "throughput"\nevery_steps = 10\nstaying_steps = 10\n'
HERE = "127.0.0.1"


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def snapshot(np: int, text: str = TEXT, slots: int = 4, **changes: Any) -> Snapshot:
    seats = tuple(Seat(n, "a", n, HERE, 1) for n in range(np))
    members = tuple(
        Member(n, "a", n, HERE, 1, 1, "x", Stage.ACTIVE, generation=np) for n in range(np)
    )
    values: dict[str, Any] = {
        "job": make_job(),
        "hosts": (Host("a", slots, HERE),),
        "members": members,
        "generation": Generation(np, 1, seats, 0, (), (), ""),
        "policy": JobPolicy(text, "policy.toml"),
        **wanted({"a": np}),
    }
    return Snapshot(**{**values, **changes})


def reading(np: int, step: int, at_s: float) -> Reading:
    return Reading(0, np, np, 0, step, 40 * np * step, at_s)


class Leader:
    """The policy of a leader, and a job whose throughput is 10 * 40 samples/s a worker."""

    def __init__(self, learned: Learned | None = None) -> None:
        self.clock = Clock()
        self.held: ProfileHold | None = None
        store: Any = SimpleNamespace(
            policy=SimpleNamespace(learned=lambda: learned or Learned()),
            profile=SimpleNamespace(held=lambda: self.held),
        )
        self.policy = SizePolicy(store, self.clock)
        self.step = 0

    def trains(self, now: Snapshot, steps: int) -> Any:
        assert now.generation is not None
        np = len(now.generation.seats)
        for _ in range(steps):
            self.step += 1
            self.clock.now_s += 0.1
            outcome = self.policy.turn(now, reading(np, self.step, self.clock.now_s), None)
        return outcome


def test_it_tries_another_size_when_it_knows_the_first() -> None:
    leader = Leader()
    assert leader.trains(snapshot(2), 10).change is None
    outcome = leader.trains(snapshot(2), 1)
    assert outcome.is_news
    assert outcome.suggestion.reason == "tries 3: only 2 have been measured"
    assert (dict(outcome.change.desired.hosts), outcome.change.desired.by) == (
        {"a": 3},
        Asker.POLICY,
    )
    assert outcome.change.assigned.hosts == {"a": 3}
    assert outcome.learned.state == {"np": 2, "steps": 10}


def test_while_a_change_is_under_way_it_waits() -> None:
    leader = Leader()
    leader.trains(snapshot(2), 11)
    coming = snapshot(2, **wanted({"a": 3}))
    assert leader.trains(coming, 5).change is None
    entering = snapshot(3)
    entering = replace(entering, members=entering.members[:2])
    assert leader.trains(entering, 50).change is None


def test_the_next_leader_goes_on() -> None:
    leader = Leader()
    learned = leader.trains(snapshot(2), 11).learned
    other = Leader(learned)
    other.step = leader.step
    assert other.trains(snapshot(3), 11).suggestion.np == 4


def test_there_has_to_be_room() -> None:
    outcome = Leader().trains(snapshot(2, slots=2), 11)
    assert outcome.suggestion.np == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"policy": JobPolicy()},
        {"policy": JobPolicy(TEXT, "policy.toml", off="edl policy off")},
        {"job": make_job(state=JobState.STOPPING)},
        {"generation": None},
        {"job": make_job(min_np=3)},  # it is paused
    ],
)
def test_when_it_has_nothing_to_say(changes: dict[str, Any]) -> None:
    now = replace(snapshot(2), **changes)
    policy = Leader().policy
    for step in range(20):
        assert policy.turn(now, reading(2, step, float(step)), None).suggestion is None


def test_while_somebody_profiles_the_job_its_sizes_are_not_the_rules() -> None:
    leader = Leader()
    leader.held = ProfileHold("token", "process 1 on a", {"a": 2})
    profiled = snapshot(2, desired=Desired({"a": 2}, Asker.PROFILE))
    assert leader.trains(profiled, 30).suggestion is None
    leader.held = None  # what it gave back is still desired by it
    assert leader.trains(profiled, 1).suggestion.np == 3


def test_another_rule_begins_without_the_notes_of_the_last() -> None:
    leader, job = Leader(), make_job(min_np=2, max_np=2, np=2)
    one = replace(snapshot(2), job=job)
    assert "found_s" in leader.trains(one, 11).suggestion.state
    learned = leader.trains(one, 150).learned
    assert (learned.text, learned.state["np"]) == (TEXT, 2)
    other = replace(one, policy=JobPolicy(TEXT + "add = 2\n", "policy.toml"), job=make_job())
    assert leader.trains(other, 1).suggestion.np == 4
    assert Leader(learned).trains(replace(one, job=make_job()), 1).suggestion.np == 2


def test_a_persons_word_is_left_alone() -> None:
    held = JobPolicy(TEXT, "policy.toml", held_until_s=4e9)
    outcome = Leader().trains(replace(snapshot(2), policy=held), 30)
    assert outcome.change is None
    assert outcome.suggestion.reason.startswith("stays at 2: a person has asked for 2 workers")


def test_what_cannot_be_read_is_switched_off_with_the_reason() -> None:
    outcome = Leader().trains(snapshot(2, text='[size]\nrule = "none"'), 1)
    assert outcome.failed.startswith("policy.toml, line 2: there is no rule 'none'")


def test_a_rule_that_fails_is_switched_off(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise ZeroDivisionError("of nothing")

    monkeypatch.setattr("edl.core.policy.throughput.Throughput.__call__", fails)
    outcome = Leader().trains(snapshot(2), 11)
    assert outcome.failed == "its rule has failed: ZeroDivisionError('of nothing')"
    assert outcome.change is None


def test_the_same_is_said_once_and_what_is_learned_is_kept_now_and_then() -> None:
    leader = Leader()
    job = make_job(min_np=2, max_np=2, np=2)
    outcomes = [leader.trains(replace(snapshot(2), job=job), 1) for _ in range(200)]
    assert sum(outcome.is_news for outcome in outcomes) == 1
    assert outcomes[-1].learned is not None  # nobody has written it
    leader.policy.written()
    due = [leader.trains(replace(snapshot(2), job=job), 1) for _ in range(int(KEEP_S / 0.1) + 2)]
    assert [outcome.learned is None for outcome in due].count(True) >= KEEP_S / 0.1 - 2
    assert due[-1].learned is not None
