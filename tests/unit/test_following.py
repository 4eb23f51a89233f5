"""`--follow` goes on while ZooKeeper is away, says so once, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import make_job

from edl.cli import events, logs, status
from edl.cli.common import print_table
from edl.cli.main import invoke
from edl.errors import CoordinationError
from edl.events import Event, JobFinishedDetails
from edl.host.workers import log_directory
from edl.job.snapshot import Snapshot
from edl.records import JobState
from edl.status import job_status
from edl.zookeeper.events import OnUnreadable

AWAY = CoordinationError("no connection to ZooKeeper for 5 s")
SAID = "edl: ZooKeeper is away: no connection to ZooKeeper for 5 s; this goes on when it answers\n"


class Store:
    """The records of a job that ends while it is followed.

    Args:
        states: the state of the job at each reading of its record; None: ZooKeeper is away.
        batches: the events that are new at each reading of its log; None: ZooKeeper is away.
    """

    def __init__(self, states: list[JobState | None], batches: list[int | None]) -> None:
        self.events = self
        self._states = states
        self._batches = batches
        self._count = 0

    def snapshot(self) -> SimpleNamespace:
        state = self._states.pop(0)
        if state is None:
            raise AWAY
        return SimpleNamespace(job=make_job(state=state))

    def read_known(self, last: int, unreadable: OnUnreadable) -> list[tuple[int, Event]]:
        batch = self._batches.pop(0)
        if batch is None:
            raise AWAY
        self._count += batch
        return [
            (number, Event(1.0, 1, number, "it ended", JobFinishedDetails()))
            for number in range(last + 1, self._count)
        ]


@pytest.fixture
def follow(monkeypatch: pytest.MonkeyPatch) -> Callable[[Store], None]:
    def has(store: Store) -> None:
        session = SimpleNamespace(connected=False)
        for verb in (events, logs):
            monkeypatch.setattr(verb, "connected", lambda _: nullcontext(session))
            monkeypatch.setattr(verb, "choose_job", lambda *_, **__: store)
            monkeypatch.setattr(verb, "store_of_job", lambda *_: None)
        monkeypatch.setattr(events, "FOLLOW_S", 0.0)

    return has


def test_events_go_on_and_none_is_lost(
    follow: Callable[[Store], None], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, over = JobState.RUNNING, JobState.FINISHED
    follow(Store([runs, None, None, runs, runs, over], [2, None, 1, 1]))
    assert invoke(["events", "digits", "--follow", "--json"]) == 0
    shown = capsys.readouterr()
    assert [json.loads(line)["step"] for line in shown.out.splitlines()] == [0, 1, 2, 3]
    assert shown.err == SAID


def test_each_absence_is_said(
    follow: Callable[[Store], None], capsys: pytest.CaptureFixture[str]
) -> None:
    runs, over = JobState.RUNNING, JobState.FINISHED
    follow(Store([None, runs, None, over], [0, 0]))
    assert invoke(["events", "digits", "--follow"]) == 0
    assert capsys.readouterr().err == SAID * 2


def test_without_follow_it_is_an_error(follow: Callable[[Store], None]) -> None:
    follow(Store([None], []))
    assert invoke(["events", "digits"]) == 1


def test_logs_of_this_host_are_shown_meanwhile(
    follow: Callable[[Store], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    log = log_directory(tmp_path / "edl", "digits", fresh=True) / "w0.log"
    log.write_text("first\n")
    store = Store([JobState.RUNNING, None, JobState.FINISHED], [])
    follow(store)
    assert invoke(["logs", "digits", "w0", "--follow", "--cluster", ""]) == 0
    shown = capsys.readouterr()
    assert shown.out == "first\n"
    assert shown.err == SAID


@pytest.mark.parametrize(
    ("connected", "trouble"),
    [(False, "ZooKeeper is away: not a Job"), (True, "cannot be read: not a Job")],
)
def test_a_watched_status_calls_only_a_lost_connection_one(
    connected: bool,
    trouble: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    runs, over = (Snapshot(make_job(state=one)) for one in (JobState.RUNNING, JobState.FAILED))
    answers: list[Snapshot | CoordinationError] = [runs, CoordinationError("not a Job"), over]

    def snapshot() -> Snapshot:
        answer = answers.pop(0)
        if isinstance(answer, CoordinationError):
            raise answer
        return answer

    session = SimpleNamespace(connected=connected, hosts="zk:2181")
    monkeypatch.setattr(status, "connected", lambda _: nullcontext(session))
    store = SimpleNamespace(snapshot=snapshot)
    monkeypatch.setattr(status, "choose_job", lambda *_, **__: store)
    monkeypatch.setattr(status, "FOLLOW_S", 0.0)
    assert invoke(["status", "digits", "--watch"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.endswith(f"; {trouble}") for line in lines] == [False, True, False]


def test_the_table_of_a_status_says_why_it_is_old(capsys: pytest.CaptureFixture[str]) -> None:
    now = job_status(Snapshot(make_job()), "zk:2181")
    print_table(status.status_table(replace(now, away="cannot be read: not a Job")))
    rows = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert "zk:2181; cannot be read: not a Job" in [row[1].rstrip() for row in rows if row]
