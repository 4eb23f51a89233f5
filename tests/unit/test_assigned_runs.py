"""The session with which `edl host` reads the runs of jobs; it is replaced now and then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from edl.coordination.access import Access
from edl.coordination.reads import Read
from edl.core.cluster.manifest import JobManifest
from edl.scheduler.host import assigned_runs
from edl.scheduler.host.agents import StartOfRun
from edl.scheduler.host.assigned_runs import MOST_IDENTITIES, NOT_CREATED, AssignedRuns
from edl.scheduler.host.path_probe import PathProbe


class FakeSession:
    """A session that keeps what it has proved."""

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

    monkeypatch.setattr(assigned_runs, "current_run", lambda session, paths: paths.name)
    runs = AssignedRuns(no_store, connect, PathProbe())
    for number in range(2 * MOST_IDENTITIES + 1):
        assert runs._current_run(f"j{number}", "5" * 64) == f"j{number}"
    made[-1].connected = False
    assert runs._current_run("last", "5" * 64) == "last"
    assert [len(one.identities) for one in made] == [MOST_IDENTITIES, MOST_IDENTITIES, 1, 1]
    assert not any(one.connected for one in made[:-1])


class FakeJobs:
    """The jobs of a cluster, of which one has been assigned."""

    def __init__(self) -> None:
        self.asked = 0

    def get(self, name: str) -> Any:
        self.asked += 1
        return SimpleNamespace(manifest=JobManifest(name, ("x",), 1, 1))

    def secret(self, name: str) -> str:
        return "5" * 64


def test_a_run_that_is_not_created_yet_is_watched_and_not_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A leader creates a thousand runs one after another, and hosts wait for most of them."""
    session: Any = FakeSession()
    reads: list[Read] = []
    there: list[object] = [None]

    def read_all(what: str, asked: list[Read]) -> list[object]:
        reads.extend(asked)
        return there

    session.read_all = read_all
    jobs = FakeJobs()
    store: Any = SimpleNamespace(
        jobs=jobs, secrets=SimpleNamespace(contents=lambda names: {}), nodes=None
    )
    monkeypatch.setattr(assigned_runs, "current_run", lambda *_: "0" if there[0] else None)
    runs = AssignedRuns(store, lambda: session, PathProbe())
    woken: list[int] = []
    runs.on_created = lambda: woken.append(1)
    for _ in range(3):
        assert runs.start_of("j", "0") == NOT_CREATED
    assert (jobs.asked, len(session.identities)) == (1, 1)
    assert len(set(reads)) == 1, "the session keeps the answer of one read with one watch"
    assert reads[0].wake is not None
    reads[0].wake()
    assert woken == [1]
    there[0] = "a stat"
    start = runs.start_of("j", "0")
    assert isinstance(start, StartOfRun)
    assert start.run == "0"
