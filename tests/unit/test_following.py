"""`--follow` goes on while ZooKeeper is away, says so once, and loses nothing."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import pytest
from made import make_job

from edl.cli import events, following, logs
from edl.cli.main import invoke
from edl.coordination.events import OnUnreadable
from edl.core.events import Event, JobFinishedDetails
from edl.core.records import JobState
from edl.errors import CoordinationError
from edl.launch.workers import log_directory

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
        """Return the record of the job."""
        state = self._states.pop(0)
        if state is None:
            raise AWAY
        return SimpleNamespace(job=make_job(state=state))

    def read_known(self, last: int, unreadable: OnUnreadable) -> list[tuple[int, Event]]:
        """Return the events after the one with the number ``last``."""
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
    """Let ZooKeeper have the records in a store, and let nobody sleep."""

    def has(store: Store) -> None:
        session = SimpleNamespace(connected=False)
        for verb in (events, logs):
            monkeypatch.setattr(verb, "connected", lambda _: nullcontext(session))
            monkeypatch.setattr(verb, "choose_job", lambda *_, **__: store)
            monkeypatch.setattr(verb, "store_of_job", lambda *_: None)
        monkeypatch.setattr(following, "FOLLOW_S", 0.0)

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
