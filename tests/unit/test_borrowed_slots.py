"""What a file and a signal say to an agent of idle slots."""

from __future__ import annotations

import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made import make_job, wanted

from edl.host import agent as borrowed_slots
from edl.host.agent import BorrowedSlots
from edl.host.process import Process
from edl.host.signals import handled
from edl.host.supervision import SupervisorState
from edl.job.borrowing import ReclaimTerms, without_reclaimed
from edl.job.decision import DesiredChange, set_desired
from edl.job.snapshot import Snapshot
from edl.records import Host, JobState, Member, Reclaim, RequestedBy

SIZES = make_job(max_np=4)


class Store:
    def __init__(self) -> None:
        self.now = Snapshot(SIZES, hosts=(Host("a", 4, "::1"),), **wanted({"a": 2}))
        self.asked: list[str] = []
        self.settled: list[tuple[Reclaim, float]] = []

    def set_desired(
        self, change: Callable[..., Any], by: RequestedBy, why: str, terms: ReclaimTerms
    ) -> DesiredChange:
        hosts = change(dict(self.now.desired.hosts))
        assert by is RequestedBy.PERSON
        made = set_desired(self.now.desired, self.now.assigned, hosts, by, why, 100.0, terms)
        if made:
            self.asked.append(why)
        self.now = replace(self.now, desired=made.desired)
        return made

    def record_returned(self, done: Reclaim, after_s: float) -> None:
        self.settled.append((done, after_s))
        self.now = replace(self.now, desired=without_reclaimed(self.now.desired, [done]))


class Agent:
    def __init__(self, file: Path | None) -> None:
        self.store, self.said = Store(), list[str]()
        store: Any = self.store
        self.borrowed = BorrowedSlots(store, "a", file, 30.0, self.said.append)

    def turn(self) -> bool:
        return self.borrowed.follow(self.store.now)

    @property
    def stands(self) -> tuple[int, int]:
        desired = self.store.now.desired
        return desired.np, desired.borrowed.get("a", 0)


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(borrowed_slots, "POLL_S", 0.0)


def test_the_file_says_how_many_are_lent(tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    agent = Agent(file)
    assert not agent.turn()  # there is none
    file.write_text("2\n")
    assert agent.turn()
    assert agent.stands == (4, 2)
    assert not agent.turn()  # the same again
    file.write_text("")  # it is being written
    assert not agent.turn()
    file.write_text("1 20s")
    assert agent.turn()
    assert agent.stands == (3, 1)
    assert agent.store.now.desired.reclaims == (Reclaim("a", 1, 100.0, 120.0),)
    file.unlink()
    assert agent.turn()
    assert agent.stands == (2, 0)
    assert agent.store.now.desired.reclaims[-1].by_s == 130.0
    assert agent.store.asked == [
        f"{file}: {n} of a borrowed" for n in ("2 slots", "1 slot", "0 slots")
    ]


def test_an_agent_that_is_started_again_lends_no_more_than_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    file.write_text("2")
    first = Agent(file)
    first.turn()
    second = Agent(file)
    second.store.now = first.store.now
    assert not second.turn()
    assert second.stands == (4, 2)


@pytest.mark.parametrize("text", ["many", "-1", "1.5", "2 soon", "2 0", "1 2 3"])
def test_what_is_not_understood_changes_nothing(text: str, tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    file.write_text(text)
    agent = Agent(file)
    assert not agent.turn()
    (said,) = agent.said
    assert said.startswith(
        f"{file} says {text!r}, which is not understood; write a number of slots"
    )


def test_what_the_job_may_not_take_is_said_once(tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    file.write_text("1")
    agent = Agent(file)
    agent.store.now = replace(agent.store.now, job=make_job(max_np=2))
    assert not agent.turn()
    assert not agent.turn()
    (said,) = agent.said
    assert said.startswith("cannot borrow 1 slot for job digits: it has 2 workers, and max_np is 2")


def test_a_file_that_cannot_be_read_is_said(tmp_path: Path) -> None:
    agent = Agent(tmp_path)  # a directory
    assert not agent.turn()
    assert agent.said[0].startswith("cannot read how many slots are borrowed, from ")


def test_the_signal_takes_all_back(tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    file.write_text("2")
    agent = Agent(file)
    agent.turn()
    with handled([signal.SIGRTMIN], agent.borrowed.on_signal):
        signal.raise_signal(signal.SIGRTMIN)
    assert agent.turn()
    assert agent.stands == (2, 0)
    assert agent.store.asked[-1] == "SIGRTMIN: 0 slots of a borrowed"
    assert not agent.turn()  # the file says nothing new


def test_a_job_that_ends_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "borrowed"
    file.write_text("2")
    agent = Agent(file)
    agent.store.now = replace(agent.store.now, job=make_job(state=JobState.STOPPING))
    assert not agent.turn()
    assert not agent.store.asked


def test_slots_are_given_back_when_their_processes_are_gone() -> None:
    agent = Agent(None)
    due = Reclaim("a", 1, 100.0, 130.0)
    members = tuple(Member(n, "a", n, "::1", 1, 1, f"t-{n}") for n in range(2))
    desired = replace(agent.store.now.desired, reclaims=(due,))
    agent.store.now = replace(agent.store.now, desired=desired, members=members)
    known = [Process(n, f"t-{n}", 0.0, worker=n) for n in range(2)]
    ending = Process(2, "t-2", 0.0, worker=2)  # it has left ZooKeeper
    own = SupervisorState("a", "t", (*known, ending), reclaims_s={due: 12.5})
    assert not agent.borrowed.record_returned(agent.store.now, own)
    own = replace(own, processes=tuple(known))
    assert agent.borrowed.record_returned(agent.store.now, own)
    assert agent.store.settled == [(due, 12.5)]
