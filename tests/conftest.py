"""Hypothesis profiles, and a real ZooKeeper with a place of its own in it for each test.

Profiles: `ci` repeats the same examples every time, `quick` is for the desk.
"""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from kazoo.client import KazooClient

from edl.coordination.local_server import start_local, stop_local

SLOW_MACHINE = (HealthCheck.too_slow, HealthCheck.data_too_large)

settings.register_profile(
    "ci",
    derandomize=True,
    deadline=None,
    max_examples=60,
    stateful_step_count=40,
    database=None,
    suppress_health_check=SLOW_MACHINE,
)
settings.register_profile(
    "quick",
    deadline=None,
    max_examples=50,
    stateful_step_count=40,
    suppress_health_check=SLOW_MACHINE,
)
settings.register_profile(
    "long",
    deadline=None,
    max_examples=5000,
    stateful_step_count=80,
    suppress_health_check=SLOW_MACHINE,
)
settings.register_profile(  # to see a failure again without minutes of shrinking
    "replay",
    settings.get_profile("quick"),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") else "quick")
)


def pytest_configure() -> None:
    """Let what the tests start hear Ctrl-C, also where `nohup` or a shell's & made us ignore it."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


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
