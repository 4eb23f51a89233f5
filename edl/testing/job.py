"""Run real jobs in tests: ``edl run`` in a process group of its own, watched by polling.

:func:`started` runs one, and gives a :class:`Job`::

    def test_my_training_survives_a_kill(tmp_path):
        with ensemble(tmp_path, 1) as (zookeeper,):
            with started(tmp_path, zookeeper.hosts, "train.py", np=2, max_np=4) as job:
                job.wait_for_step(10)
                job.kill("w1")
                job.scale(4)
                job.wait_for_size(4)
                assert job.end() == 0

No process that the job started outlives the block, whatever happens: each carries a mark in its
environment, by which it is found and killed.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from edl import config
from edl.client.changes import resize
from edl.client.waiting import flat
from edl.errors import CoordinationError, UnknownJob
from edl.status import job_status
from edl.testing import throttle
from edl.testing.throttle import Throttle
from edl.zookeeper.access import Access, candidates
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

EDL = Path(sys.executable).parent / "edl"
MARK = "EDL_TEST_MARK"
POLL_S = 0.25  # between two looks at a job
WAIT_S = 240.0  # for what the job does; a busy machine takes a minute to start a worker
END_S = 60.0  # for agents of other hosts, and helpers of workers, to notice the end of a job
Status = dict[str, Any]


def start_process(
    command: Sequence[str | Path], directory: Path, environment: Mapping[str, str], output: Path
) -> subprocess.Popen[bytes]:
    """Start ``command`` in a session of its own, and append its output to ``output``."""
    with output.open("ab") as file:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            cwd=directory,
            start_new_session=True,
        )


class Job:
    """A job in a test, which ``edl run`` starts: its commands, waits for it, and faults.

    :func:`started` makes it; the constructor starts nothing: call :meth:`run`, and :meth:`close` at
    the end. The methods that wait, also for a worker that is named, raise AssertionError if the job
    ends before, or after ``timeout_s`` (240) seconds. Workers are named as in the status: "w0",
    "w1" and so on.

    Args:
        directory: the working directory, which also holds the job's output and state.
        zookeeper: the addresses of ZooKeeper, "host:port,host:port".

    Attributes:
        start_process: a replacement for :func:`start_process`, for ``edl run`` and ``edl join``.
        name: the name of the job, another one for each object.
        environment: the environment variables of all its processes; change them before :meth:`run`.
        here: a command prefix of ``edl run``, such as one that enters a network namespace.
        python: the interpreter that runs the script, with edl and Horovod.
        there: a command prefix of all other ``edl`` commands. If it is not empty, this process
            counts as unable to reach ZooKeeper, and all is asked by commands.
    """

    start_process = staticmethod(start_process)

    def __init__(self, directory: Path, zookeeper: str) -> None:
        self.name = f"test-{uuid.uuid4().hex[:8]}"
        self.directory = directory
        self._mark = f"{MARK}={self.name}"
        outside = {
            name: value
            for name, value in config.environment().items()
            if not name.startswith(("EDL_", "HOROVOD_")) or name == "EDL_TEMPLATE"
        }
        self._throttled = directory / f"{self.name}.throttle"
        self.environment = outside | {
            MARK: self.name,
            throttle.FILE: str(self._throttled),
            "EDL_ZOOKEEPER": zookeeper,
            "XDG_STATE_HOME": str(directory / "state"),
            "XDG_CACHE_HOME": str(directory / "cache"),
            "OMP_NUM_THREADS": "1",
        }
        self.python: str | Path = sys.executable
        self.here: Sequence[str] = ()  # words before `edl run`: where it runs
        self.there: Sequence[str] = ()  # the same for all other verbs
        self._output = directory / f"{self.name}.output"
        self._process: subprocess.Popen[bytes] | None = None
        self._newest: Status | None = None
        self._watcher: threading.Thread
        self._status_process: subprocess.Popen[str] | None = None
        self._closing = False
        self._again = False  # look with a new session

    # --- verbs ---

    def run(
        self,
        script: str | Path,
        *arguments: str,
        np: int,
        min_np: int = 1,
        max_np: int,
        options: Sequence[str] = (),
    ) -> None:
        """Start ``edl run`` for a script, begin to watch the job, and return at once.

        Args:
            script: the Python script.
            *arguments: the arguments of the script.
            np: the number of workers to start with.
            min_np: the smallest number of workers.
            max_np: the largest number of workers.
            options: more options of ``edl run``.
        """
        limits = ["-np", str(np), "--min-np", str(min_np), "--max-np", str(max_np)]
        verb: list[str | Path] = [*self.here, EDL, "run", *limits, *options, "--job", self.name]
        self._begin([*verb, self.python, Path(script).absolute(), *arguments])

    def throttle(self, how: Throttle) -> None:
        """Slow down the steps of the job, from the next one on, in place of an earlier rule.

        The script calls :func:`edl.testing.throttle.throttle_step`, or runs under that module.
        """
        how.put(self._throttled)

    def hurry(self) -> None:
        """Stop slowing down the steps of the job: from now on the training runs at full speed."""
        self._throttled.unlink(missing_ok=True)

    def _begin(self, command: Sequence[str | Path]) -> None:
        self._follow(self._spawn(command, self._output))

    def _spawn(
        self, command: Sequence[str | Path], output: Path, **environment: str
    ) -> subprocess.Popen[bytes]:
        return self.start_process(command, self.directory, self.environment | environment, output)

    def _follow(self, agent: subprocess.Popen[bytes]) -> None:
        if self._process is not None:
            self._stop_watching()
        self._closing = False
        self._process = agent
        self._newest = None
        self._watcher = threading.Thread(target=self._watch)
        self._watcher.start()

    def edl(self, verb: str, *arguments: str) -> str:
        """Run ``edl <verb>`` with ``arguments`` on this job; return its standard output as text.

        If the command fails, an AssertionError shows its error output.
        """
        done = self.try_edl(verb, *arguments)
        assert done.returncode == 0, f"edl {verb} ended with {done.returncode}: {done.stderr}"
        return done.stdout

    def try_edl(self, verb: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run ``edl <verb>`` with ``arguments`` on this job, which may fail.

        After 60 s the command is killed, and subprocess.TimeoutExpired raised.
        """
        return subprocess.run(
            [*self.there, EDL, verb, self.name, *arguments],
            capture_output=True,
            text=True,
            env=self.environment,
            cwd=self.directory,
            timeout=60,
        )

    def scale(self, np: int) -> None:
        """Set the desired number of workers to ``np``, and return when it is written.

        If the test's process can reach ZooKeeper, this method and those that read the job's status
        or events start no process of ``edl``.
        """
        if self.there:
            self.edl("scale", "--np", str(np))
            return
        with self.store() as store:
            resize(store, lambda _: np)

    def status(self) -> Status:
        """Return the present status of the job: the JSON object that ``edl status --json`` prints.

        It raises UnknownJob before the job is registered, and CoordinationError while ZooKeeper
        does not answer; with ``there`` an AssertionError for both.
        """
        if self.there:
            status: Status = json.loads(self.edl("status", "--json"))
            return status
        with self.store() as store:
            return status_of(store)

    def events(self, kind: str | None = None) -> list[dict[str, Any]]:
        """Return the job's events (of one ``kind``), the oldest first; errors as :meth:`status`."""
        if self.there:
            events = [json.loads(line) for line in self.edl("events", "--json").splitlines()]
        else:
            with self.store() as store:
                events = events_of(store)
        return [event for event in events if kind in (None, event["kind"])]

    # --- processes ---

    def _watch(self) -> None:
        if self.there:
            self._watch_from_there()
            return
        while self._is_watching():
            self._again = False
            with contextlib.suppress(CoordinationError, UnknownJob), self.store(5.0) as store:
                while self._is_watching() and not self._again:
                    self._poll(store)
                    time.sleep(POLL_S)
            time.sleep(POLL_S)  # the job is not written down yet, or ZooKeeper is not there

    def _poll(self, store: JobStore) -> None:
        try:
            self._newest = status_of(store)
        except CoordinationError as error:
            if self._newest is None:
                raise
            # The rest is as it was last known.
            self._newest = {**self._newest, "away": str(error)}

    def _is_watching(self) -> bool:
        return not self._closing and self._process is not None and self._process.poll() is None

    def _stop_watching(self) -> None:
        self._closing = True
        if self._status_process is not None:
            self._status_process.kill()  # it would watch until the job ends
        self._watcher.join(10)

    @contextmanager
    def store(self, connect_timeout_s: float = 10.0) -> Iterator[JobStore]:
        """Open the job's records in ZooKeeper for the time of a ``with`` block, and yield them.

        Raises:
            UnknownJob: the job is not registered in ZooKeeper yet.
            CoordinationError: ZooKeeper does not answer within ``connect_timeout_s``.
        """
        known = candidates(self.directory / "state" / "edl", self.name, None)
        if not known:
            raise UnknownJob(self.name)
        access = Access(self.name, known[0])
        hosts = self.environment["EDL_ZOOKEEPER"]
        with Session(hosts, 10.0, connect_timeout_s, access) as session:
            yield JobStore(session, self.name)

    def _watch_from_there(self) -> None:
        # In place of `_watch`: this process is in another network than ZooKeeper.
        environment = {k: v for k, v in self.environment.items() if k != MARK}
        while self._is_watching():
            with subprocess.Popen(
                [*self.there, EDL, "status", self.name, "--watch", "--json"],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,  # at first the job is not written down yet
                text=True,
                env=environment,
                cwd=self.directory,
            ) as self._status_process:
                assert self._status_process.stdout is not None
                for line in self._status_process.stdout:
                    self._newest = json.loads(line)

    def look_again(self) -> None:
        """Forget the last status, and open a new session: ZooKeeper was replaced."""
        self._newest, self._again = None, True
        if self._status_process is not None:
            self._status_process.kill()

    def output(self) -> str:
        """Return the text that ``edl run`` and its workers have printed so far."""
        return self._output.read_text(errors="replace") if self._output.exists() else ""

    def processes(self) -> list[psutil.Process]:
        """Return every living process of the job on this machine, the agent included."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if (
                    process.environ().get(MARK) == self.name
                    and process.status() != psutil.STATUS_ZOMBIE
                ):
                    found.append(process)
        return found

    def workers(self, script: Path) -> set[int]:
        """Return the pids of processes that run ``script``, without agent and workers' helpers."""
        agent = self._process.pid if self._process is not None else None
        found = {p.pid: p for p in self.processes() if p.pid != agent}
        return {
            pid for pid, p in found.items() if str(script) in p.cmdline() and p.ppid() not in found
        }

    def describe(self, what: str) -> str:
        """Return an error message: the job's name, ``what``, and the end of its output."""
        return f"job {self.name}: {what}\n--- output ---\n{self.output()[-6000:]}"

    def close(self) -> None:
        """Kill every process of the job on this machine, wait for their ends, and stop watching."""
        if self._process is not None and self._process.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
        # Not the agent, whose exit code psutil would take from those that wait for it.
        agent = self._process.pid if self._process is not None else None
        left = [process for process in self.processes() if process.pid != agent]
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=10)
        if self._process is not None:
            self._process.wait(10)
            self._stop_watching()

    # --- watching ---

    def wait(
        self, condition: Callable[[Status], object], what: str, timeout_s: float = WAIT_S
    ) -> Status:
        """Wait until the job's status fulfils ``condition``, and return that status.

        Args:
            condition: is called with the newest status every 0.05 s, perhaps several times with the
                same one; the wait ends when its result is true.
            what: the thing waited for, for messages.
            timeout_s: how long to wait, in seconds.
        """
        deadline = time.monotonic() + timeout_s
        while (now := self._newest) is None or not condition(now):
            assert self._process is None or self._process.poll() is None, self.describe(
                f"the job ended before {what}; the last status: {now}"
            )
            assert time.monotonic() < deadline, self.describe(
                f"no {what} in {timeout_s:g} s; {now}"
            )
            time.sleep(0.05)
        return now

    def wait_for_size(self, size: int, timeout_s: float = WAIT_S) -> Status:
        """Wait until ``size`` workers are active in the ring, and the job has no other workers.

        Then wait for one more step, and return the status of the job after it.
        """

        def reached(now: Status) -> bool:
            stages = [member["stage"] for member in now["members"]]
            return now["world_size"] == size and stages == ["active"] * size

        then = self.wait(reached, f"ring of {size} workers", timeout_s)
        return self.wait_for_step(then["step"] + 1, timeout_s)

    def wait_for_eviction(self, timeout_s: float = WAIT_S) -> Status:
        """Wait until a worker was evicted and no evicted worker is a member; return the status."""

        def gone(now: Status) -> bool:
            evicted = {event["worker"] for event in self.events("evicted")}
            return bool(evicted) and evicted.isdisjoint(member["id"] for member in now["members"])

        return self.wait(gone, "eviction", timeout_s)

    def wait_for_step(self, step: int, timeout_s: float = WAIT_S) -> Status:
        """Wait until the job has completed ``step`` steps or more, and return its status."""
        return self.wait(lambda now: now["step"] >= step, f"step {step}", timeout_s)

    def end(self, timeout_s: float = 120.0) -> int:
        """Wait for the end of ``edl run`` and of the job's other processes; return its exit code.

        The others have END_S (60) seconds.
        """
        assert self._process is not None
        try:
            code = self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(self.describe(f"the job did not end in {timeout_s:g} s")) from None
        # A worker's last helper (a loader's process) may need a moment to notice.
        deadline = time.monotonic() + END_S
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not alive, self.describe(f"these outlived `edl run`: {alive}")
        return code

    # --- faults ---

    def process(self, name: str) -> psutil.Process:
        """Wait until the status shows worker ``name``; return its process."""
        return psutil.Process(self.members(name)[name]["pid"])

    def members(self, *names: str) -> dict[str, Any]:
        """Wait until the status shows all ``names``; return all workers by name.

        On a busy machine a session may end and be opened again, and a name be missing meanwhile.
        """

        def found(now: Status) -> dict[str, Any]:
            return {member["id"]: member for member in now["members"]}

        now = self.wait(lambda now: {*names} <= found(now).keys(), f"members {names}")
        return found(now)

    def leader(self) -> str:
        """Wait until a worker leads the job, and return its name."""
        return str(self.wait(lambda now: now["leader"], "a leader")["leader"])

    def plain(self) -> str:
        """Wait for a leader and another worker, and return the name of the other."""
        now = self.wait(lambda now: now["leader"] and len(now["members"]) > 1, "two members")
        return next(str(m["id"]) for m in now["members"] if m["id"] != now["leader"])

    def kill(self, name: str) -> None:
        """Send SIGKILL to the worker ``name``."""
        self.process(name).kill()

    def freeze(self, name: str) -> None:
        """Freeze the worker ``name`` by SIGSTOP, until :meth:`thaw`."""
        self.process(name).send_signal(signal.SIGSTOP)

    def stopped(self) -> list[psutil.Process]:
        """Return the processes of the job on this machine that are frozen by SIGSTOP."""
        return [p for p in self.processes() if p.status() == psutil.STATUS_STOPPED]

    def thaw(self) -> None:
        """Send SIGCONT to all frozen processes of the job."""
        for process in self.stopped():
            process.send_signal(signal.SIGCONT)

    def cut(self, name: str) -> None:
        """Break the worker's ring connections, with ``options=["--chaos"]``; no process ends."""
        self.edl("chaos", "--cut", name)

    def expire(self, name: str) -> None:
        """End the worker's ZooKeeper session, with ``options=["--chaos"]``; it opens another."""
        self.edl("chaos", "--expire-session", name)


def status_of(store: JobStore) -> Status:
    """Return the present status of the job in ``store``, as ``edl status --json`` prints it."""
    return _as_json(job_status(store.snapshot(), store.session.hosts).to_json())


def events_of(store: JobStore) -> list[dict[str, Any]]:
    """Return all events of the job in ``store``, oldest first, as ``edl events --json`` does."""
    return [_as_json(flat(event)) for _, event in store.events.read()]


def _as_json(values: Mapping[str, Any]) -> dict[str, Any]:
    read: dict[str, Any] = json.loads(json.dumps(values))
    return read


@contextmanager
def started(
    directory: Path,
    zookeeper: str,
    *command: str | Path,
    np: int,
    max_np: int,
    min_np: int = 1,
    options: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    throttled: Throttle | None = None,
) -> Iterator[Job]:
    """Start a job with ``edl run``, yield it, and kill it at the end of the ``with`` block.

    The block begins at once, before a worker has started.

    Args:
        directory: the working directory, which also holds the job's output and state.
        zookeeper: the addresses of ZooKeeper, "host:port,host:port".
        *command: the Python script and its arguments.
        np: the number of workers to start with.
        max_np: the largest number of workers.
        min_np: the smallest number of workers.
        options: more options of ``edl run``.
        environment: variables for all processes of the job, added to :attr:`Job.environment`.
        throttled: how slow the steps are until :meth:`Job.hurry` is called; None: not slowed down.
    """
    script, *arguments = command
    job = Job(directory, zookeeper)
    job.environment |= environment or {}
    if throttled is not None:
        job.throttle(throttled)
    try:
        limits = {"np": np, "min_np": min_np, "max_np": max_np}
        job.run(script, *map(str, arguments), **limits, options=options)
        yield job
    finally:
        job.close()
