"""Which cluster a command is about, when none is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from edl import config
from edl.cluster.client import access
from edl.cluster.client.access import known_access, known_store
from edl.errors import UsageError
from edl.zookeeper.access import CLUSTERS, Access, keep

ATTIC, LAB = Access("attic", "a" * 64), Access("lab", "b" * 64)


class ZooKeeper:
    def identify(self, *known: Access) -> None: ...

    def read_open(self, what: str, issues: list[object]) -> list[object]:
        assert len(issues) == 2
        return [(ATTIC.acl, None), (LAB.acl, None)]


SESSION = cast(Any, ZooKeeper())


@pytest.fixture(autouse=True)
def user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    for name in ("EDL_SECRET", "EDL_SECRET_FILE", "EDL_CLUSTER"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(access, "cluster_names", lambda _: ("attic", "lab"))
    monkeypatch.setattr(access, "open_cluster_store", lambda _, name: name)
    keep(config.state_dir(), LAB.job, LAB.secret, CLUSTERS)


def test_a_given_secret_counts_more_than_a_stored_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_SECRET", ATTIC.secret)
    assert known_store(SESSION, None) == "attic"
    assert known_access(SESSION, None) == ATTIC
    assert known_access(SESSION, None, LAB.secret) == LAB


def test_a_given_secret_of_no_cluster_chooses_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("EDL_SECRET", "c" * 64)  # of a job
    assert known_store(SESSION, None) == "lab"
    keep(config.state_dir(), ATTIC.job, ATTIC.secret, CLUSTERS)
    assert known_store(SESSION, None) is None
    with pytest.raises(UsageError, match="there are 2 clusters: name one with --cluster"):
        known_access(SESSION, None)
