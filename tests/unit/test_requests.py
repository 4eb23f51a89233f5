"""Waiting for a job, and holding its size, while ZooKeeper comes and goes; none is there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from edl.client import profiling, waiting
from edl.client.profiling import _Hold, profile
from edl.client.scaling import Wanted, resize, wait_for_size
from edl.client.waiting import Story, looks
from edl.coordination.store import JobStore
from edl.core.facts import Generation, Host, Job, JobState, Member, Seat, Snapshot, Stage
from edl.core.profile import Curve, Reading
from edl.errors import (
    CoordinationError,
    JobEnded,
    RequestError,
    Superseded,
    TimedOut,
    UsageError,
)

JOB = Job("digits", ("true",), np=2, min_np=1, max_np=4)
HOSTS = (Host("a", 2, "::1"), Host("b", 2, "::2"))
AWAY = CoordinationError("ZooKeeper is away")


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (waiting, profiling):
        monkeypatch.setattr(module, "POLL_S", 0.0)


class Store(JobStore):
    """A job whose workers follow the plan at once, and make a step of 0.1 s between two looks.

    ``away``: numbers of the calls that ZooKeeper does not answer.
    """

    def __init__(self, **job: Any) -> None:
        self.name = "digits"
        self.job = replace(JOB, **job)
        self.plan: dict[str, int] = {"a": 2}
        self.away: set[int] = set()
        self.calls = self.step = self.samples = 0
        self.sizes: list[int] = []
        self.curves: list[Curve] = []
        self.events: list[Any] = []
        self.before_look: Callable[[Store], None] = lambda _store: None

    def _call(self) -> None:
        self.calls += 1
        if self.calls in self.away:
            raise AWAY

    def snapshot(self) -> Snapshot:
        self._call()
        self.before_look(self)
        size = sum(self.plan.values())
        if self.sizes[-1:] != [size]:
            self.sizes.append(size)
        self.step += 1
        self.samples += 8 * size
        number = len(self.sizes)
        counted = Reading(0, number, size, 0, self.step, self.samples, 0.1 * self.step)
        members = tuple(
            Member(i, "a", i, "::1", 1, 1, f"t-{i}", Stage.ACTIVE, number) for i in range(size)
        )
        seats = tuple(Seat(m.id, m.host, m.slot, m.address, m.port) for m in members)
        status = {"step": self.step, "reason": "they train", "counted": counted.to_json()}
        generation = Generation(number, 1, seats, 0, (), (), "")
        return Snapshot(self.job, HOSTS, members, dict(self.plan), generation, status=status)

    def change_plan(self, change: Callable[[dict[str, int]], dict[str, int]]) -> dict[str, int]:
        self._call()
        self.plan = change(dict(self.plan))
        return self.plan

    def put_profile(self, curve: Curve) -> None:
        self.curves.append(curve)

    def add_event(self, event: Any) -> None:
        self.events.append(event)


def measure(store: Store, *sizes: int, timeout_s: float = 5.0) -> Curve:
    return profile(store, sizes, 20, timeout_s, lambda _told: None)


# --- waiting ---


def test_a_look_that_is_not_answered_is_made_again() -> None:
    store = Store()
    store.away = {1, 2, 4}
    seen = looks(store, 5.0, "this", Story())
    assert [next(seen).status["step"] for _ in range(3)] == [1, 2, 3]


def test_who_is_late_is_told_what_was_told_last_and_what_stands() -> None:
    story = Story()
    story("w3 is preparing")
    seen = looks(Store(), 0.0, "moving it", story, "it goes on")
    next(seen)
    with pytest.raises(TimedOut) as caught:
        next(seen)
    assert str(caught.value) == "moving it is not done after 0 s; w3 is preparing; it goes on"
    assert caught.value.job == "digits"


def test_who_is_late_because_of_zookeeper_is_told_so() -> None:
    store = Store()
    store.away = {1}
    with pytest.raises(TimedOut, match=r"not done after 0 s; ZooKeeper is away"):
        next(looks(store, 0.0, "it", Story()))


def test_nobody_waits_for_a_job_that_has_ended() -> None:
    store = Store(state=JobState.FAILED, reason="w0 died")
    with pytest.raises(JobEnded, match="scaling job digits to 3 is not done: job digits is failed"):
        wait_for_size(store, 3, 5.0)
    with pytest.raises(UsageError, match="cannot scale job digits: it is failed"):
        resize(store, lambda now: now + 1)


def test_the_hosts_of_horovodrun_must_be_those_of_edl_discover() -> None:
    driven = replace(JOB, driver="10.0.0.1:9000")
    with pytest.raises(UsageError, match="cannot migrate: it is for the host discovery script"):
        Wanted(Store(), driven, "migrate")
    offered = Snapshot(replace(driven, offer={"c": 2}, wish={"c": 1}), HOSTS, plan={"a": 2})
    wanted = Wanted(Store(), offered.job, "migrate")
    assert wanted.of(offered) == {"c": 1}
    assert [(host.name, host.slots) for host in wanted.hosts(offered)] == [("c", 2)]


# --- holding the size ---


def test_a_profile_steps_downwards_and_gives_the_size_back() -> None:
    store = Store()
    curve = measure(store, 1, 2, 3)
    assert store.sizes == [2, 3, 2, 1]
    assert store.plan == {"a": 2}
    assert [(p.np, round(p.throughput, 6)) for p in curve.points] == [(1, 80), (2, 160), (3, 240)]
    assert [[p.np for p in kept.points] for kept in store.curves] == [[3], [2, 3], [1, 2, 3]]
    assert [event.kind for event in store.events] == ["profile"] * 3


@pytest.mark.parametrize("error", [KeyboardInterrupt(), RuntimeError("a bug")])
def test_whatever_happens_the_size_is_given_back(error: BaseException) -> None:
    store = Store()

    def strike(now: Store) -> None:
        if now.plan == {"a": 1}:
            raise error

    store.before_look = strike
    with pytest.raises(type(error)):
        measure(store, 1, 2)
    assert store.plan == {"a": 2}
    assert [p.np for p in store.curves[-1].points] == [2]


def test_the_size_is_given_back_when_zookeeper_is_back() -> None:
    store = Store()

    def strike(now: Store) -> None:
        if now.plan == {"a": 1}:
            now.away = set(range(now.calls + 1, now.calls + 9))
            raise KeyboardInterrupt

    store.before_look = strike
    with pytest.raises(KeyboardInterrupt):
        measure(store, 1, 2)
    assert store.plan == {"a": 2}


def test_a_size_that_cannot_be_given_back_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(profiling, "RESTORE_S", 0.0)
    store = Store()
    hold = _Hold(store, Wanted(store, JOB, "profile"), store.snapshot())
    hold.take(1)
    store.away = {store.calls + 1}
    with pytest.raises(RequestError, match="does not have its size back; `edl scale digits --np 2"):
        hold.give_back()


def test_a_size_that_somebody_else_has_changed_stays() -> None:
    store = Store()

    def scale(now: Store) -> None:
        if now.step == 40:
            now.plan = {"a": 2, "b": 2}

    store.before_look = scale
    with pytest.raises(Superseded, match=r"to 4 workers while it was profiled; that stays; mea"):
        measure(store, 1, 2)
    assert store.plan == {"a": 2, "b": 2}


def test_an_interrupted_profile_says_what_is_left_of_it() -> None:
    store = Store()

    def interrupt(store: Store) -> None:
        if store.step == 40:
            raise KeyboardInterrupt

    store.before_look = interrupt
    with pytest.raises(KeyboardInterrupt) as told:
        measure(store, 3, 1)
    assert store.plan == {"a": 2}
    (note,) = told.value.__notes__
    assert note.startswith("the job has the size back that it had; what was measured is kept")


class Interrupted(Store):
    """Ctrl-C while the plan is changed for the second time."""

    changes = 0

    def change_plan(self, change: Callable[[dict[str, int]], dict[str, int]]) -> dict[str, int]:
        self.changes += 1
        if self.changes == 2:
            raise KeyboardInterrupt
        return super().change_plan(change)


def test_an_interrupt_while_the_size_is_given_back_tells_how_to() -> None:
    with pytest.raises(KeyboardInterrupt) as told:
        measure(Interrupted(), 3)
    assert told.value.__notes__ == [
        "job digits does not have its size back; `edl scale digits --np 2`"
    ]


def test_a_size_that_is_not_reached_in_time_is_told_and_given_back() -> None:
    store = Store()
    with pytest.raises(
        TimedOut, match=r"with 3 workers is not done after 1e-09 s; .*nothing was meas"
    ):
        measure(store, 3, timeout_s=1e-9)
    assert store.plan == {"a": 2}
