"""The session with which `edl host` reads the runs of jobs; it is replaced now and then."""

from __future__ import annotations

from typing import Any

import pytest

from edl.coordination.access import Access
from edl.scheduler.host import assigned_runs
from edl.scheduler.host.assigned_runs import MOST_IDENTITIES, AssignedRuns
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
