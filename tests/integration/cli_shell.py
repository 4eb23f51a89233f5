"""The command line as a user has it: real processes, real ZooKeeper, nothing left afterwards."""

from __future__ import annotations

import functools
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import forked
import psutil
import pytest
from verbs import Verbs

from edl.errors import EdlError
from edl.host.agent import ONE_SIGNAL_S
from edl.testing.job import events_of, start_process, status_of
from edl.zookeeper.access import Access, candidates
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

STANDIN = str(Path(__file__).with_name("standin_worker.py"))
WAIT_S = 40.0
POLL_S = 0.1
DIES_S = 10.0  # the kernel kills the template of a launcher that has ended, at its own pace
MOST_OUTPUT = 20_000  # characters of a process, in a message
SESSION_S, CONNECT_S = 10.0, 5.0


@functools.cache
def verbs() -> Verbs:
    return Verbs()


class Running:
    def __init__(self, process: forked.Started, log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def output(self) -> str:
        return self._log.read_text()

    def wait(self, timeout_s: float = WAIT_S) -> int:
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pytest.fail(f"edl still runs after {timeout_s:g} s; its output:\n{self.output}")

    def expect(self, text: str, timeout_s: float = WAIT_S) -> None:
        until(lambda: text in self.output, timeout_s, lambda: f"no {text!r} in:\n{self.output}")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def signal_again(self, number: signal.Signals) -> None:
        """Send a second signal, after the agent's pause; it must have heard the first one."""
        time.sleep(ONE_SIGNAL_S)
        self.signal(number)


class Shell:
    def __init__(self, directory: Path, hosts: str) -> None:
        self.directory = directory
        self.environment = {
            **{
                name: value
                for name, value in os.environ.items()
                if not name.startswith("EDL_") or name == "EDL_TEMPLATE"
            },
            "EDL_ZOOKEEPER": hosts,
            "EDL_SESSION_TIMEOUT_S": "2",
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CACHE_HOME": str(directory / "cache"),
        }
        self.secret = uuid.uuid4().hex * 2  # for jobs that several `edl run` share
        self.mark = hosts  # every process of this test has it in its environment
        self.forks = True  # what is started may be forked from a process with its imports
        self.started: list[Running] = []
        self._session: Session | None = None
        self._known: tuple[Access, ...] = ()

    def edl(
        self, *words: str, timeout_s: float = WAIT_S, cwd: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        if verbs().takes(words, self.environment):
            return verbs().run(words, cwd or self.directory, self.environment, timeout_s)
        place = cwd or self.directory
        if self.forks and (done := forked.run_to_end(words, place, self.environment, timeout_s)):
            return done
        return forked.by_exec(
            [sys.executable, "-m", "edl.cli.main", *words],
            timeout_s,
            cwd=cwd or self.directory,
            env=self.environment,
            stdin=subprocess.DEVNULL,
        )

    def start(self, *words: str) -> Running:
        command = [sys.executable, "-m", "edl.cli.main", *words]
        return self.launch(command, f"edl-{len(self.started)}.log")

    def launch(self, command: Sequence[str], log_name: str) -> Running:
        log = self.directory / log_name
        start = forked.start if self.forks else start_process
        process = start(command, self.directory, self.environment, log)
        self.started.append(Running(process, log))
        return self.started[-1]

    def status(self, job: str = "j") -> dict[str, Any]:
        with self.store(job) as store:
            return status_of(store)

    def until_size(self, size: int, job: str = "j") -> dict[str, Any]:
        facts: dict[str, Any] = {}

        def there() -> bool:
            try:
                now = self.status(job)
            except EdlError:  # it has not been created yet
                return False
            facts.clear()
            facts.update(now)
            if facts["state"] != "running":
                pytest.fail(f"job {job} is over: {facts}")
            active = [m for m in facts["members"] if m["stage"] == "active"]
            return bool(facts["world_size"] == len(active) == len(facts["members"]) == size)

        until(there, WAIT_S, lambda: f"not {size} workers: {facts}")
        return facts

    def events(self, job: str = "j") -> list[dict[str, Any]]:
        with self.store(job) as store:
            return events_of(store)

    @contextmanager
    def store(self, job: str) -> Iterator[JobStore]:
        state = Path(self.environment["XDG_STATE_HOME"]) / "edl"
        known = candidates(state, job, self.environment.get("EDL_SECRET"))
        yield JobStore(self._identified(tuple(Access(job, secret) for secret in known)), job)

    def _identified(self, known: tuple[Access, ...]) -> Session:
        """One session for all looks of a test; another one if it has lost its server."""
        hosts = self.environment["EDL_ZOOKEEPER"]
        session = self._session
        if session is None or session.hosts != hosts or not session.connected:
            self.close()
            session = Session(hosts, SESSION_S, CONNECT_S)
            session.start()
            self._session, self._known = session, ()
        if self._known != known:
            session.identify(*known)
            self._known = known
        return session

    def close(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()

    def processes(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            try:
                if process.pid != os.getpid() and (
                    process.environ().get("EDL_ZOOKEEPER") == self.mark
                ):
                    found.append(process)
            except psutil.Error:
                continue
        return found


def until(
    condition: Callable[[], object], timeout_s: float, say: Callable[[], str] = lambda: "too late"
) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            pytest.fail(say())
        time.sleep(POLL_S)


@contextmanager
def shell_of(directory: Path, hosts: str) -> Iterator[Shell]:
    one = Shell(directory, hosts)
    yield one
    one.close()
    deadline = time.monotonic() + DIES_S
    while (left := one.processes()) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    described = [f"{process.pid} {' '.join(process.cmdline())}" for process in left]
    for process in left:
        process.kill()
    for running in one.started:
        running.process.wait(10)
    if described:
        outputs = "\n".join(running.output[-MOST_OUTPUT:] for running in one.started)
        pytest.fail(f"the test left processes: {described}; all outputs:\n{outputs}")


@pytest.fixture
def shell(tmp_path: Path, zk_hosts: str) -> Iterator[Shell]:
    with shell_of(tmp_path, zk_hosts) as one:
        yield one
