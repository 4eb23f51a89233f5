"""A live cluster on this machine: real controllers, real hosts, and each of them may be killed.

::

    with LiveCluster(directory, "127.0.0.1:2181") as lab:
        lab.start_controller()
        lab.start_host("a", slots=2)
        lab.client().submit("job.yaml")
        lab.hosts["a"].kill()  # it is started again at once, as systemd does

All "hosts" are this machine; each has a state directory of its own, as other machines have. No
process outlives the block: each carries a mark in its environment, by which it is found and killed.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Self

import psutil

from benchmarks.jobs import ROOT
from edl.client import Cluster
from edl.cluster.client.connection import connected_cluster
from edl.cluster.host.processes import find_processes, host_mark
from edl.cluster.host_jobs import RunProcess
from edl.cluster.store import ClusterStore
from edl.host.workers import die_with_parent
from edl.zookeeper.access import Access
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

MARK = "EDL_TEST_MARK"
EDL = ("-m", "edl.cli.main")
START_S = 180.0
SHORT_S, PAUSE_S = 1.0, 0.2  # after so short a life, so long a pause before the next start
END_S = 90.0  # for a host or a controller to end after SIGTERM


class Supervised:
    """A process that is started again at once whenever it ends, as systemd does.

    Args:
        command: the command.
        environment: all its environment variables.
        directory: the working directory.
        log: the file to which its output is appended.
    """

    def __init__(
        self, command: Sequence[str], environment: Mapping[str, str], directory: Path, log: Path
    ) -> None:
        self.log = log
        self.starts = 0
        self._command, self._environment, self._directory = command, environment, directory
        self._process: subprocess.Popen[bytes] | None = None
        self._is_held = self._is_closing = False
        self._changed = threading.Condition()
        self._thread = threading.Thread(target=self._keep, name=f"keep {log.stem}", daemon=True)

    def start(self) -> Self:
        """Start it, and keep it running from now on."""
        self._thread.start()
        return self

    @property
    def name(self) -> str:
        """What it is called in messages."""
        return self.log.stem

    @property
    def pid(self) -> int | None:
        """The pid of the process; None if none lives now."""
        with self._changed:
            process = self._process
            return process.pid if process is not None and process.poll() is None else None

    @property
    def output(self) -> str:
        """All that its processes have printed."""
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def send(self, number: int) -> int | None:
        """Send a signal to the process that lives now; return its pid, None if there is none."""
        with self._changed:
            pid = self.pid
            if pid is not None:
                os.kill(pid, number)  # no other process has the pid: nobody else waits for it
            return pid

    def kill(self) -> int | None:
        """Kill -9 the process, which is started again unless :meth:`hold` was called."""
        return self.send(signal.SIGKILL)

    def hold(self) -> None:
        """Start no other process, until :meth:`release`."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        """Start it again, and keep it running."""
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def ask_to_end(self) -> None:
        """Send SIGTERM to the process, and start no other one."""
        self.hold()
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)

    def wait(self, within_s: float = END_S) -> int | None:
        """Wait for the end of the process; return its exit code, None if none ran.

        Raises:
            subprocess.TimeoutExpired: it still runs after ``within_s``.
        """
        with self._changed:
            process = self._process
        return None if process is None else process.wait(within_s)

    def close(self) -> None:
        """End it at once, for good."""
        with self._changed:
            self._is_closing = self._is_held = True
            self._changed.notify_all()
            self.kill()
        if self._thread.is_alive():
            self._thread.join(10.0)

    def _keep(self) -> None:
        """Start the process again and again."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._is_closing or not self._is_held)
                if self._is_closing:
                    return
                with self.log.open("ab") as output:
                    self._process = process = subprocess.Popen(
                        self._command,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=dict(self._environment),
                        cwd=self._directory,
                        start_new_session=True,
                        preexec_fn=die_with_parent,  # this thread, which waits for it
                    )
                self.starts += 1
            began_s = time.monotonic()
            process.wait()
            if time.monotonic() - began_s < SHORT_S:
                time.sleep(PAUSE_S)


class LiveCluster:
    """A cluster of real processes on this machine.

    Args:
        directory: an existing directory for logs and state.
        zookeeper: the ZooKeeper servers, "host:port,host:port".
        environment: variables for all processes, besides those of this process.
        policy: the policy of the cluster.
        name: the name of the cluster.
        options: further options of `edl cluster start`.
        enter: words before each command, which run it elsewhere, as in a network namespace.
        controller: the words after Python that run `edl` as a controller.

    Attributes:
        controllers: the controllers, in the order of their first start.
        hosts: the processes `edl host` by the names of their hosts.
    """

    def __init__(
        self,
        directory: Path,
        zookeeper: str,
        environment: Mapping[str, str] | None = None,
        policy: str = "fifo",
        name: str = "lab",
        options: Sequence[str] = (),
        enter: Sequence[str] = (),
        controller: Sequence[str] = EDL,
    ) -> None:
        self.directory, self.zookeeper, self.name = directory, zookeeper, name
        self.controllers: list[Supervised] = []
        self.hosts: dict[str, Supervised] = {}
        self._policy, self._options, self._enter = policy, options, enter
        self._controller = controller
        self._mark = uuid.uuid4().hex
        own = {k: v for k, v in os.environ.items() if not k.startswith(("HOROVOD_", "EDL_"))}
        self._environment = own | {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(ROOT),
            **(environment or {}),
            "EDL_ZOOKEEPER": zookeeper,
            "EDL_CLUSTER": name,
            MARK: self._mark,
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- its processes

    def start_controller(self) -> Supervised:
        """Start one more controller; return when it has connected, and the cluster exists."""
        number = len(self.controllers) + 1
        words = ("cluster", "start", "--name", self.name, "--policy", self._policy, *self._options)
        one = self._start(f"controller-{number}", [*self._controller, *words], "controllers")
        self.controllers.append(one)
        until(lambda: f"cluster {self.name} is" in one.output, "a controller", lambda: one.output)
        return one

    def start_host(self, name: str, slots: int, *options: str) -> Supervised:
        """Start `edl host` for the host called ``name``; return when it offers its slots.

        ``options`` are further ones of `edl host`.
        """
        named = ("--cluster", self.name, "--host", name, "--slots", str(slots))
        words = ("-v", "host", *named, *options)
        own = {"EDL_SECRET_FILE": str(self._secret_file)}
        self.hosts[name] = one = self._start(f"host-{name}", [*EDL, *words], f"state-{name}", own)
        until(lambda: f"host {name} offers" in one.output, f"host {name}", lambda: one.output)
        return one

    def state_of(self, host: str) -> Path:
        """Return the state directory of a host."""
        return self.directory / f"state-{host}" / "edl"

    def processes(self, host: str) -> tuple[RunProcess, ...]:
        """Return the processes of jobs that live on a host."""
        return find_processes(host_mark(self.secret, self.name, host))

    def signal_host(self, host: str, number: int) -> None:
        """Send a signal to all processes of a host: SIGSTOP lets it fall silent."""
        self.hosts[host].send(number)
        for one in self.processes(host):
            with contextlib.suppress(ProcessLookupError):
                os.kill(one.pid, number)

    def kill_host(self, host: str) -> None:
        """Kill -9 all processes of a host, and start none there until it is released.

        When this returns, none lives any more.
        """
        self.hosts[host].hold()
        for _ in range(500):
            self.signal_host(host, signal.SIGKILL)
            if not self.processes(host):
                return
            time.sleep(0.01)
        raise AssertionError(f"these on host {host} do not die: {self.processes(host)}")

    def left(self) -> list[psutil.Process]:
        """Return all processes of the cluster that live, by their mark."""
        return processes_with(f"{MARK}={self._mark}")

    def end(self) -> dict[str, int | None]:
        """Let the hosts leave, then the controllers; return their exit codes by name.

        Raises:
            subprocess.TimeoutExpired: one of them does not end.
        """
        for one in self.hosts.values():  # at once: none waits for jobs that could move to another
            one.ask_to_end()
        codes = {name: one.wait() for name, one in self.hosts.items()}
        for one in self.controllers:
            one.ask_to_end()
        return codes | {one.log.stem: one.wait() for one in self.controllers}

    def close(self) -> None:
        """Kill everything, for good."""
        for one in (*self.hosts.values(), *self.controllers):
            one.close()
        deadline_s = time.monotonic() + 20.0
        while (left := self.left()) and time.monotonic() < deadline_s:
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.kill()
            time.sleep(0.05)

    def _start(
        self, stem: str, words: Sequence[str], state: str, own: Mapping[str, str] | None = None
    ) -> Supervised:
        """Start Python with these words, and keep it running."""
        command = [*self._enter, sys.executable, *words]
        environment = self._environment | {
            "XDG_STATE_HOME": str(self.directory / state),
            "XDG_CACHE_HOME": str(self.directory / "cache"),
            **(own or {}),
        }
        log = self.directory / f"{stem}.log"
        return Supervised(command, environment, self.directory, log).start()

    # --- its records

    @property
    def _secret_file(self) -> Path:
        return self.directory / "controllers" / "edl" / "clusters" / self.name / "secret"

    @property
    def secret(self) -> str:
        """The secret of the cluster."""
        return self._secret_file.read_text().strip()

    def client(self) -> Cluster:
        """Return a client as users have it."""
        return Cluster(self.name, self.zookeeper, secret=self.secret)

    @contextlib.contextmanager
    def store(self) -> Iterator[ClusterStore]:
        """Yield the records of the cluster, in a session of its own."""
        with connected_cluster(self.name, self.zookeeper, self.secret) as store:
            yield store

    @contextlib.contextmanager
    def run_of(self, store: ClusterStore, job: str) -> Iterator[JobStore]:
        """Yield the records of the present run of a job, in a session of its own."""
        secret = store.jobs.secret(job)
        assert secret is not None, f"job {job} has no run"
        with Session(self.zookeeper, 10.0, access=Access(job, secret)) as session:
            yield JobStore(session, job)


def processes_with(variable: str) -> list[psutil.Process]:
    """Return the living processes of which the environment has, or contains, ``NAME=value``."""
    found, wanted = [], variable.encode()
    for pid in psutil.pids():
        with contextlib.suppress(OSError, psutil.Error):
            if pid != os.getpid() and wanted in Path(f"/proc/{pid}/environ").read_bytes():
                one = psutil.Process(pid)
                if one.status() != psutil.STATUS_ZOMBIE:
                    found.append(one)
    return found


def until(
    condition: Callable[[], object],
    what: str,
    say: Callable[[], object] = str,
    timeout_s: float = START_S,
    pause_s: float = 0.02,
) -> None:
    """Wait for a condition.

    Raises:
        AssertionError: it did not come true in time; ``say`` tells more.
    """
    deadline_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline_s, f"no {what} in {timeout_s:g} s\n{say()}"
        time.sleep(pause_s)
