"""The sessions in which a leader reads and writes runs: each opens few jobs, however many come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from edl.cluster import runs as runs_module
from edl.cluster.runs import MAX_JOBS, MAX_SESSIONS, MOVE_S, RETRY_S, SPARE, RunSessions
from edl.errors import CoordinationError, LeadershipLost


class FakeSession:
    def __init__(self) -> None:
        self.is_closed = False
        self.connected = True
        self.caught_up = 0

    def catch_up(self) -> None:
        self.caught_up += 1

    def close(self) -> None:
        self.is_closed = True


class FakeReader:
    most = MAX_JOBS

    def __init__(self, session: FakeSession, on_change: object) -> None:
        self.session = session
        self.unreadable: dict[str, str] = {}
        self.proved: set[str] = set()

    def read(self, secrets: Mapping[str, str], progress_s: float) -> dict[str, str]:
        assert not self.session.is_closed
        if not self.session.connected:
            raise CoordinationError("the connection is suspended")
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

    monkeypatch.setattr(runs_module, "RunReader", FakeReader)
    monkeypatch.setattr(runs_module, "_close", close)
    return []


class Cluster(RunSessions):
    """Sessions that a test opens, refuses, and lets lose their connection; its clock stands still.

    Attributes:
        refuses: whether no further session can be opened.
        tries: how often that was tried.
        said: the sentences that were shown.
    """

    def __init__(self, made: list[Any]) -> None:
        self.made, self.refuses, self.tries, self.now_s = made, False, 0, 0.0
        self.said: list[str] = []
        super().__init__(self._open, lambda: None, self.said.append, lambda: self.now_s)

    def _open(self) -> Any:
        self.tries += 1
        if self.refuses:
            raise CoordinationError("too many connections")
        self.made.append(FakeSession())
        return self.made[-1]


def opened(made: list[Any]) -> Cluster:
    return Cluster(made)


def test_each_session_proves_few_secrets(made: list[Any]) -> None:
    runs = opened(made)
    secrets = {f"j{number}": f"s{number}" for number in range(3 * MAX_JOBS - 1)}
    assert runs.read(secrets, 1) == secrets
    assert len(made) == 3
    assert runs.session_of("j0") is made[0]
    assert runs.session_of("another") is made[2], "a job that is created has its session before"
    assert runs.read({**secrets, "another": "s", "junk": "s"}, 1) == {**secrets, "another": "s"}
    assert runs.unreadable == {"junk": "junk"}
    runs.close()
    assert all(one.is_closed for one in made)
    assert runs.sessions == []


def test_jobs_come_and_go_without_end(made: list[Any]) -> None:
    """Of a thousand jobs, one after another, a few last; their sessions do not pile up."""
    runs = opened(made)
    lasting = {f"j{number}": "s" for number in range(0, 10 * MAX_JOBS, MAX_JOBS // 4)}
    for number in range(10 * MAX_JOBS):
        kept = {name: "s" for name in lasting if int(name[1:]) < number}
        found = runs.read({**kept, f"j{number}": "s"}, 1)
        assert found.keys() == {*kept, f"j{number}"}
        assert len(runs.sessions) <= 1 + 1 + SPARE
    assert sum(not one.is_closed for one in made) == len(runs.sessions)


def test_jobs_that_are_left_alone_move_together(made: list[Any]) -> None:
    runs = opened(made)
    names = [f"j{number:03}" for number in range(4 * MAX_JOBS - 50)]
    runs.read(dict.fromkeys(names, "s"), 1)
    left = dict.fromkeys(names[::MAX_JOBS], "s")
    assert runs.read(left, 1) == left
    assert [one.is_closed for one in made] == [True, False, False, False]
    assert runs.session_of(names[0]) is made[-1]
    assert [one.caught_up for one in made] == [0, 0, 0, 1], (
        "it sees what the former one has written"
    )
    runs.read(left, 1)
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
        assert runs.read(secrets, 1) == secrets
        assert len(runs.sessions) <= MAX_SESSIONS + SPARE
    afresh = opened(made)
    assert afresh.read(secrets, 1) == secrets
    assert len(afresh.sessions) == MAX_SESSIONS


def test_the_more_jobs_have_runs_the_older_may_progress_be(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ended jobs are read, too, but write nothing."""
    asked: list[float] = []

    def read(reader: FakeReader, secrets: Mapping[str, str], progress_s: float) -> dict[str, str]:
        asked.append(progress_s)
        return {}

    monkeypatch.setattr(FakeReader, "read", read)
    runs = opened(made)
    secrets = {f"j{number}": "s" for number in range(MAX_JOBS)}
    runs.read(secrets, 1)
    runs.read(secrets, 100)
    assert asked == [0.01, 1.0]


def test_a_single_session_that_cannot_be_opened_is_tried_again(made: list[Any]) -> None:
    runs = opened(made)
    runs.refuses = True
    for _ in range(2):
        with pytest.raises(CoordinationError, match="too many connections"):
            runs.read({"j": "s"}, 1)
    runs.refuses = False
    assert runs.read({"j": "s"}, 1) == {"j": "s"}
    assert runs.tries == 3


def test_jobs_of_a_session_that_cannot_be_opened_are_read_in_another_one(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeReader, "most", 10**6)
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(MAX_JOBS)}
    runs.read(secrets, 1)
    runs.refuses = True
    for number in range(MAX_JOBS, 2 * MAX_JOBS):
        secrets[f"j{number:03}"] = "s"
        assert runs.read(secrets, 1) == secrets
    assert runs.session_of("new") is made[0], "one that is created"
    secrets["new"] = "s"
    assert runs.tries == 2, "it is not tried again at once, for it may take 10 s"
    assert not runs.unread
    assert len(runs.said) == 1
    assert "too many connections; if ZooKeeper refuses" in runs.said[0]
    runs.now_s += RETRY_S
    assert runs.read(secrets, 1) == secrets
    assert runs.tries == 3
    runs.now_s += RETRY_S
    runs.read(secrets, 1)
    assert runs.tries == 3, "now it waits for twice as long"
    runs.refuses = False
    runs.now_s += RETRY_S
    for _ in range(4):
        assert runs.read(secrets, 1) == secrets
    assert [one.is_closed for one in made] == [True, False, False, False]
    assert len(runs.said) == 1


def test_a_new_leader_that_gets_few_sessions_reads_all_jobs(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeReader, "most", 10**6)
    runs = opened(made)
    secrets = {f"j{number}": "s" for number in range(5 * MAX_JOBS)}
    answers = iter([False, True, True, False, True])
    connect = runs._open

    def some() -> Any:
        runs.refuses = next(answers)
        return connect()

    monkeypatch.setattr(runs_module, "READERS", 1)
    runs._connect = some
    assert runs.read(secrets, 1) == secrets
    assert len(runs.sessions) == 2
    assert runs.tries == 5


def test_a_session_without_a_connection_holds_up_no_other_one(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeReader, "most", 10**6)
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(2 * MAX_JOBS)}
    mine = {name: "s" for name in secrets if name >= f"j{MAX_JOBS:03}"}
    runs.read(secrets, 1)
    made[1].connected = False
    for _ in range(3):
        assert runs.read(secrets, 1).keys() == secrets.keys() - mine.keys()
        assert runs.unread.keys() == mine.keys()
    assert runs.unread["j100"] == "its run cannot be read now: the connection is suspended"
    made[1].connected = True
    assert runs.read(secrets, 1) == secrets
    assert not runs.unread
    first, last = "100 jobs cannot be read now, and keep their slots", "all jobs can be read again"
    assert [one.split(":")[0] for one in runs.said] == [first, last]
    made[1].connected = False
    runs.read(secrets, 1)
    runs.now_s += MOVE_S
    assert runs.read(secrets, 1) == secrets, "they have moved"
    assert made[1].is_closed
    assert made[0].caught_up == 1, "it sees what the other one has written"


def test_an_answer_that_is_an_error_moves_no_job(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may come of the jobs, and would then follow them."""
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(MAX_JOBS + 1)}
    runs.read(secrets, 1)
    usual = FakeReader.read

    def read(reader: FakeReader, jobs: Mapping[str, str], progress_s: float) -> dict[str, str]:
        if "j100" in jobs:
            raise CoordinationError("ZooKeeper answered MarshallingError")
        return usual(reader, jobs, progress_s)

    monkeypatch.setattr(FakeReader, "read", read)
    for _ in range(3):
        assert len(runs.read(secrets, 1)) == MAX_JOBS
        runs.now_s += 10 * MOVE_S
    assert runs.unread.keys() == {"j100"}


def test_without_any_connection_nothing_is_planned(made: list[Any]) -> None:
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(2 * MAX_JOBS)}
    runs.read(secrets, 1)
    for one in made:
        one.connected = False
    runs.now_s += 2 * MOVE_S
    with pytest.raises(CoordinationError, match="the connection is suspended"):
        runs.read(secrets, 1)


def test_the_end_of_the_term_is_no_error_of_one_session(
    made: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(MAX_JOBS)}
    runs.read(secrets, 1)

    def connect() -> Any:
        raise LeadershipLost(3)

    runs._connect = connect
    with pytest.raises(LeadershipLost):
        runs.session_of("new")
    with pytest.raises(LeadershipLost):
        runs.read({**secrets, "new": "s"}, 1)


def test_a_session_catches_up_before_a_job_that_comes_back_is_read(made: list[Any]) -> None:
    """The job's former run was removed in another session."""
    runs = opened(made)
    secrets = {f"j{number:03}": "s" for number in range(MAX_JOBS + 1)}
    runs.read(secrets, 1)
    left = {name: "s" for name in secrets if name != "j000"}
    runs.read(left, 1)
    assert [one.caught_up for one in made] == [0, 0]
    runs.read(secrets, 1)
    assert runs.session_of("j000") is made[1]
    assert [one.caught_up for one in made] == [0, 1]
