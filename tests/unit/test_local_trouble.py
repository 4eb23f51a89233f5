"""Why the ZooKeeper that edl has started on this machine may not answer."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from edl.zookeeper.local_server import local_trouble

HERE = "127.0.0.1:20123"


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "zoo.cfg").write_text("clientPort=20123\nclientPortAddress=127.0.0.1\n")
    return tmp_path


def test_it_has_ended(state: Path) -> None:
    found = local_trouble(HERE, state)
    assert found.startswith("Its process has ended: `edl zookeeper start` starts it again")
    assert str(state / "zookeeper.log") in found


def test_its_disk_is_full(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=4096))
    found = local_trouble(HERE, state)
    assert f"that has its data, {state / 'data'}, is full: free space there" in found
    assert "`edl zookeeper start`" in found


def test_of_another_server_nothing_is_known(state: Path, tmp_path: Path) -> None:
    assert local_trouble("10.0.0.1:2181", state) == ""
    assert local_trouble(HERE, tmp_path / "nowhere") == ""
