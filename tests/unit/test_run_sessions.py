"""The sessions in which a leader reads and writes runs: each opens few jobs, however many come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edl.errors import CoordinationError
from edl.scheduler import run_sessions
from edl.scheduler.run_sessions import MOST_JOBS, MOST_SESSIONS, SPARE, RunSessions


class FakeSession:
    """A session that notes whether it was closed, and how often it has caught up."""

    def __init__(self) -> None:
        self.is_closed = False
        self.caught_up = 0

    def catch_up(self) -> None:
        self.caught_up += 1

    def close(self) -> None:
        self.is_closed = True


class FakeReader:
    """A reader whose runs are the secrets that it was asked for."""

    most = MOST_JOBS

    def __init__(self, session: FakeSession, on_change: object) -> None:
        self.session = session
        self.unreadable: dict[str, str] = {}
        self.proved: set[str] = set()

    def read(self, secrets: Mapping[str, str], progress_s: float) -> dict[str, str]:
        assert not self.session.is_closed
        self.proved |= secrets.keys()
        assert len(self.proved) <= self.most
        self.unreadable = {name: "junk" for name in secrets if name.startswith("junk")}
        return {name: secret for name, secret in secrets.items() if name not in self.unreadable}


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return the list of the sessions that are opened; sessions are closed at once."""

    def close(sessions: list[FakeSession]) -> None:
        for one in sessions:
            one.close()

    monkeypatch.setattr(run_sessions, "RunReader", FakeReader)
    monkeypatch.setattr(run_sessions, "_close", close)
    return []


def opened(made: list[Any]) -> RunSessions:
    def connect() -> Any:
        made.append(FakeSession())
        return made[-1]

    return RunSessions(connect, lambda: None)


def test_each_session_proves_few_secrets(made: list[Any]) -> None:
    runs = opened(made)
    secrets = {f"j{number}": f"s{number}" for number in range(3 * MOST_JOBS - 1)}
    assert runs.read(secrets) == secrets
    assert len(made) == 3
    assert runs.session_of("j0") is made[0]
    assert runs.session_of("another") is made[2], "a job that is created has its session before"
    assert runs.read({**secrets, "another": "s", "junk": "s"}) == {**secrets, "another": "s"}
    assert runs.unreadable == {"junk": "junk"}
    runs.close()
    assert all(one.is_closed for one in made)
    assert runs.sessions == []


def test_jobs_come_and_go_without_end(made: list[Any]) -> None:
    """Of a thousand jobs, one after another, a few last; their sessions do not pile up."""
    runs = opened(made)
    lasting = {f"j{number}": "s" for number in range(0, 10 * MOST_JOBS, MOST_JOBS // 4)}
    for number in range(10 * MOST_JOBS):
        kept = {name: "s" for name in lasting if int(name[1:]) < number}
        found = runs.read({**kept, f"j{number}": "s"})
        assert found.keys() == {*kept, f"j{number}"}
        assert len(runs.sessions) <= 1 + 1 + SPARE
    assert sum(not one.is_closed for one in made) == len(runs.sessions)


def test_jobs_that_are_left_alone_move_together(made: list[Any]) -> None:
    runs = opened(made)
    names = [f"j{number:03}" for number in range(4 * MOST_JOBS - 50)]
    runs.read(dict.fromkeys(names, "s"))
    left = dict.fromkeys(names[::MOST_JOBS], "s")
    assert runs.read(left) == left
    assert [one.is_closed for one in made] == [True, False, False, False]
    assert runs.session_of(names[0]) is made[-1]
    assert [one.caught_up for one in made] == [0, 0, 0, 1], (
        "it sees what the former one has written"
    )
    runs.read(left)
    assert made[-1].caught_up == 1


def test_a_very_large_cluster_has_few_sessions(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper refuses more than 60 connections from one machine, unless it is told otherwise."""
    runs = opened(made)
    monkeypatch.setattr(FakeReader, "most", 10**6)
    secrets: dict[str, str] = {}
    for number in range(20):
        secrets |= {f"j{500 * number + n}": "s" for n in range(500)}
        assert runs.read(secrets) == secrets
        assert len(runs.sessions) <= MOST_SESSIONS + SPARE
    afresh = opened(made)
    assert afresh.read(secrets) == secrets
    assert len(afresh.sessions) == MOST_SESSIONS


def test_the_more_jobs_the_older_may_progress_be(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[float] = []

    def read(reader: FakeReader, secrets: Mapping[str, str], progress_s: float) -> dict[str, str]:
        asked.append(progress_s)
        return {}

    monkeypatch.setattr(FakeReader, "read", read)
    runs = opened(made)
    runs.read({"j0": "s"})
    runs.read({f"j{number}": "s" for number in range(MOST_JOBS)})
    assert asked == [0.01, 1.0]


def test_a_session_that_cannot_be_opened_is_tried_again(made: list[Any]) -> None:
    answers = [CoordinationError("away"), None]

    def connect() -> Any:
        error = answers.pop(0)
        if error is not None:
            raise error
        made.append(FakeSession())
        return made[-1]

    runs = RunSessions(connect, lambda: None)
    with pytest.raises(CoordinationError):
        runs.read({"j": "s"})
    assert runs.read({"j": "s"}) == {"j": "s"}
