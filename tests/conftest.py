"""The order of the tests, and a ZooKeeper with a place in it for each test."""

from __future__ import annotations

import gc
import os
import signal
import uuid
from collections import Counter
from collections.abc import Iterator

import pytest
from filelock import FileLock
from kazoo.client import KazooClient
from xdist.scheduler import LoadScopeScheduling

from edl.zookeeper.local_server import start_local, stop_local


@pytest.fixture(autouse=True)
def _no_setting_is_left() -> Iterator[None]:
    """Fail a test that leaves a setting of edl behind, which later tests in the process have."""
    before = _settings_here()
    yield
    assert _settings_here() == before, "the test leaves these settings behind"


def _settings_here() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name.startswith("EDL_")}


def pytest_configure(config: pytest.Config) -> None:
    """Set signals and environment for all that the tests start.

    - Processes hear Ctrl-C, also where `nohup` or a shell's & made us ignore it.
    - No process has threads that spin for a processor that other tests have: with two threads each,
      tests of tuners took thirty times as long beside others.
    """
    gc.set_threshold(50_000, 20, 20)
    os.environ["OMP_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


def pytest_collection_finish() -> None:
    """Exempt what is imported by now from garbage collection.

    To look for garbage in it took a sixth of `make unit`.
    """
    gc.collect()
    gc.freeze()


# --- order, where tests run side by side ---

DURATIONS = "edl/durations"  # in pytest's cache: seconds by test, of its last run
TOGETHER = (
    "contract/",
    "test_keras_lr_tuner.py",
    "test_security.py",
    "test_tensorflow_api.py",
    "test_torch_api.py",
)
# In one scope where nothing long runs: the import of TensorFlow, for its forks, is the longest.
TENSORFLOW = (
    "test_tensorflow",
    "tensorflow.py",
    "test_keras",
    "[tensorflow",
    "[tf_",
    "[horovod.tensorflow",
    "[edl.tensorflow",
    "test_histories",
)
_durations: Counter[str] = Counter()


def _is_short(config: pytest.Config) -> bool:
    """Return whether this session leaves out what is marked `long`, as `make test` does."""
    return "not long" in config.option.markexpr


def scope_of(nodeid: str, config: pytest.Config) -> str:
    """Return the name of the tests that one process of pytest does together with this one."""
    file = nodeid.partition("::")[0]
    if _is_short(config) and any(part in nodeid for part in TENSORFLOW):
        return "tensorflow"
    return file if any(part in file for part in TOGETHER) else nodeid


class TogetherOrAlone(LoadScopeScheduling):
    """A worker of xdist takes the next test; or several that share what they set up."""

    def _split_scope(self, nodeid: str) -> str:
        return scope_of(nodeid, self.config)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> LoadScopeScheduling:
    config.option.loadscopereorder = False
    return TogetherOrAlone(config, log)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Sort the tests so that slow ones come first and none is left at the end."""
    if not hasattr(config, "workerinput"):
        return
    cache: pytest.Cache | None = getattr(config, "cache", None)  # none with -p no:cacheprovider
    known: dict[str, float] = {} if cache is None else cache.get(DURATIONS, {})

    def seconds(item: pytest.Item) -> float:
        return known.get(item.nodeid, 20.0 if item.get_closest_marker("slow") else 1.0)

    in_all: Counter[str] = Counter()
    for item in items:
        in_all[scope_of(item.nodeid, config)] += seconds(item)
    items.sort(key=lambda item: in_all[scope_of(item.nodeid, config)], reverse=True)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _durations[report.nodeid] += report.duration


def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> None:
    cache: pytest.Cache | None = getattr(session.config, "cache", None)
    if cache is not None and not hasattr(session.config, "workerinput"):
        durations = {name: round(seconds, 2) for name, seconds in _durations.items()}
        cache.set(DURATIONS, cache.get(DURATIONS, {}) | durations)


# --- ZooKeeper ---


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory, worker_id: str) -> Iterator[str]:
    """Start the ZooKeeper of this test run, for all workers of xdist; yield "127.0.0.1:PORT"."""
    directory = tmp_path_factory.getbasetemp()
    if worker_id != "master":
        directory = directory.parent
    state, users = directory / "zookeeper", directory / "zookeeper-users"
    with FileLock(directory / "zookeeper.lock"), pytest.MonkeyPatch.context() as patch:
        # It need not outlive a power failure. Tests that end a server start one of their own.
        patch.setenv("JDK_JAVA_OPTIONS", "-Dzookeeper.forceSync=no")
        (users / worker_id).mkdir(parents=True)
        hosts = start_local(state)
    yield hosts
    with FileLock(directory / "zookeeper.lock"):
        (users / worker_id).rmdir()
        if not any(users.iterdir()):
            assert stop_local(state)


@pytest.fixture
def zk_hosts(zookeeper: str) -> str:
    """Create a chroot in ZooKeeper for this test, and return "127.0.0.1:PORT/test-...".

    The nodes of its jobs are closed to us, so they stay until the server goes, at the end of the
    test run.
    """
    root = f"/test-{uuid.uuid4().hex[:12]}"
    client = KazooClient(zookeeper, timeout=10.0)
    client.start()
    try:
        client.create(root)
    finally:
        client.stop()
        client.close()
    return f"{zookeeper}{root}"
