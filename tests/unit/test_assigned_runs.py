"""The session with which `edl host` reads the runs of jobs; it is replaced now and then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.cluster.host import daemon
from edl.cluster.host.agents import StartOfRun
from edl.cluster.host.daemon import ASK_S, MAX_IDENTITIES, NOT_CREATED, AssignedRuns, PathProbe
from edl.cluster.manifest import JobManifest
from edl.errors import AccessDenied
from edl.zookeeper.access import Access
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import Read


class FakeSession:
    def __init__(self) -> None:
        self.identities: list[Access] = []
        self.connected = True

    def identify(self, access: Access) -> None:
        self.identities.append(access)

    def close(self) -> None:
        self.connected = False


def test_the_session_is_replaced_when_it_has_proved_many_identities(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made: list[Any] = []
    no_store: Any = None  # `_current_run` reads nothing of the cluster

    def connect() -> Any:
        made.append(FakeSession())
        return made[-1]

    monkeypatch.setattr(daemon, "current_run", lambda session, paths: paths.name)
    runs = AssignedRuns(no_store, connect, PathProbe())
    for number in range(2 * MAX_IDENTITIES + 1):
        assert runs._current_run(f"j{number}", "5" * 64) == f"j{number}"
    made[-1].connected = False
    assert runs._current_run("last", "5" * 64) == "last"
    assert [len(one.identities) for one in made] == [MAX_IDENTITIES, MAX_IDENTITIES, 1, 1]
    assert not any(one.connected for one in made[:-1])


class FakeJobs:
    def __init__(self) -> None:
        self.asked = 0

    def get(self, name: str) -> Any:
        self.asked += 1
        return SimpleNamespace(manifest=JobManifest(name, ("x",), 1, 1))

    def secret(self, name: str) -> str:
        return "5" * 64


class Awaited:
    """Runs that are assigned and were not created yet; the clock stands still.

    Attributes:
        sessions: those that were opened.
        reads: those of whether a run was created.
        there: what is read of a run; None: it was not created.
        is_taken: whether a stranger has the names of the jobs.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions: list[Any] = []
        self.reads: list[Read] = []
        self.there: list[object] = [None]
        self.is_taken, self.now_s = False, 0.0
        self.jobs = FakeJobs()
        store: Any = SimpleNamespace(
            jobs=self.jobs,
            secrets=SimpleNamespace(contents=lambda names: {}),
            tenants=SimpleNamespace(names=lambda: ("ann",)),
            nodes=None,
        )
        monkeypatch.setattr(daemon, "current_run", self._current_run)
        self.runs = AssignedRuns(store, self._connect, PathProbe(), lambda: self.now_s)

    def _connect(self) -> Any:
        self.sessions.append(FakeSession())
        self.sessions[-1].read_all = self._read_all
        return self.sessions[-1]

    def _read_all(self, what: str, asked: list[Read]) -> list[object]:
        self.reads.extend(asked)
        return self.there

    def _current_run(self, session: object, paths: JobPaths) -> str | None:
        if self.is_taken:
            raise AccessDenied(paths.name, "cannot read")
        return "0" if self.there[0] else None


def test_a_run_that_is_not_created_yet_is_watched_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader creates a thousand runs one after another, and hosts wait for most of them."""
    awaited = Awaited(monkeypatch)
    runs, jobs, reads, there = awaited.runs, awaited.jobs, awaited.reads, awaited.there
    woken: list[int] = []
    runs.on_created = lambda: woken.append(1)
    for _ in range(3):
        assert runs.start_of("j", "0") == NOT_CREATED
    assert (jobs.asked, len(awaited.sessions[0].identities)) == (1, 1)
    assert len(set(reads)) == 1, "the session keeps the answer of one read with one watch"
    assert reads[0].wake is not None
    reads[0].wake()
    assert woken == [1]
    there[0] = "a stat"
    start = runs.start_of("j", "0")
    assert isinstance(start, StartOfRun)
    assert start.run == "0"


def test_it_is_asked_for_again_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stranger may take the name of the job meanwhile."""
    awaited = Awaited(monkeypatch)
    assert awaited.runs.start_of("j", "0") == NOT_CREATED
    awaited.is_taken = True
    awaited.now_s += ASK_S - 1.0
    assert awaited.runs.start_of("j", "0") == NOT_CREATED
    awaited.now_s += 1.0
    taken = "the name j is taken by a job that has another secret"
    assert awaited.runs.start_of("j", "0") == taken
    assert awaited.runs.start_of("j", "0") == taken, "it is not waited for"
    awaited.is_taken = False
    for _ in range(3):
        assert awaited.runs.start_of("j", "0") == NOT_CREATED
    assert awaited.jobs.asked == 4
    awaited.now_s += ASK_S
    assert awaited.runs.start_of("j", "0") == NOT_CREATED
    assert awaited.runs.start_of("j", "0") == NOT_CREATED
    assert awaited.jobs.asked == 5
    assert len(awaited.sessions[0].identities) == 1, "the secret is proved once"


def test_runs_that_are_assigned_no_more_are_not_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = Awaited(monkeypatch)
    for job in ("j", "k"):
        assert awaited.runs.start_of(job, "0") == NOT_CREATED
    awaited.runs.keep_only({("j", "0"), ("k", "0"), ("l", "0")})
    assert awaited.sessions[0].connected
    awaited.runs.keep_only({("k", "0")})
    assert not awaited.sessions[0].connected, "its watches have gone with it"
    awaited.reads.clear()
    assert awaited.runs.start_of("k", "0") == NOT_CREATED
    awaited.runs.keep_only({("k", "0")})
    assert awaited.sessions[1].connected
    assert {read.path for read in awaited.reads} == {f"{JobPaths('k').run}/0"}


def test_a_tenants_job_is_refused_without_a_user_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    awaited = Awaited(monkeypatch)
    awaited.there[0] = "a stat"
    why = "`edl host` names no user for jobs of tenant ann; add --user ann=USER"
    assert awaited.runs.start_of("ann.j", "0") == why
    assert isinstance(awaited.runs.start_of("bob.j", "0"), StartOfRun), "the administrator's own"
