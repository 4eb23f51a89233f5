"""What chaos needs: the jobs of the integration tests, and a ZooKeeper of its own."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from edl.coordination.local_server import start_local, stop_local

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "integration"))


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """ "127.0.0.1:PORT" of a ZooKeeper that only this test run uses."""
    state: Path = tmp_path_factory.mktemp("zookeeper")
    yield start_local(state)
    assert stop_local(state)


@pytest.fixture
def zk_hosts(zookeeper: str) -> str:
    """ "127.0.0.1:PORT/chaos-...": a chroot of this test. It stays until the server goes."""
    root = f"/chaos-{uuid.uuid4().hex[:12]}"
    client = KazooClient(zookeeper, timeout=10.0)
    client.start()
    try:
        client.create(root)
    finally:
        client.stop()
        client.close()
    return f"{zookeeper}{root}"
