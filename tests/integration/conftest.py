"""A real ZooKeeper for all integration tests, and a place of its own in it for each."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from known import DIGITS

from edl.coordination.local_server import start_local, stop_local
from edl.coordination.session import Session

WAIT_S = 15.0


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """ "127.0.0.1:PORT" of a ZooKeeper that only this test run uses."""
    state: Path = tmp_path_factory.mktemp("zookeeper")
    yield start_local(state)
    assert stop_local(state)


@pytest.fixture
def zk_hosts(zookeeper: str) -> str:
    """ "127.0.0.1:PORT/test-...": a chroot of this test. Its jobs' nodes are closed to us, so they
    stay until the server goes, at the end of the test run."""
    root = f"/test-{uuid.uuid4().hex[:12]}"
    client = KazooClient(zookeeper, timeout=10.0)
    client.start()
    try:
        client.create(root)
    finally:
        client.stop()
        client.close()
    return f"{zookeeper}{root}"


@pytest.fixture
def session(zk_hosts: str) -> Iterator[Session]:
    """A started session in the chroot of this test, of somebody who knows the job `digits`."""
    with Session(zk_hosts, session_timeout_s=2.0, access=DIGITS) as one:
        yield one


@pytest.fixture
def wait_until() -> Callable[..., None]:
    """``wait_until(condition, timeout_s)``: poll, and fail when the deadline passes."""

    def wait(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"it did not happen within {timeout_s:g} s"
            time.sleep(0.01)

    return wait


@pytest.fixture
def expire() -> Callable[[Session], None]:
    """``expire(session)``: ZooKeeper ends that session, as if it had been silent too long."""

    def end(session: Session) -> None:
        twin = KazooClient(session.hosts, timeout=5.0, client_id=session.client.client_id)
        twin.start()
        twin.stop()
        twin.close()

    return end
