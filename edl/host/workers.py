"""Start, watch and end the worker processes of one launcher; each leads its own process group.

A worker of an agent does not depend on it: it writes to a log file, and gets no signal when the
agent dies. When it has exited, the rest of its process group is killed, so that no helper stays
behind.
"""

from __future__ import annotations

import contextlib
import ctypes
import logging
import math
import os
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import FrameType

from edl.errors import UsageError
from edl.host.adoption import (
    MARK_EACH_S,
    RunningWorker,
    find,
    identity,
    kill_helpers,
    last_use_s,
    mark_as_used,
)
from edl.host.command import check_command
from edl.host.logs import named_logs
from edl.host.process import FORMER_LOG, UNKNOWN_EXIT, Process, ScriptEnd, exit_status
from edl.host.restart import to_ask, waiting_members
from edl.host.signals import TO_END, handled
from edl.host.supervision import State
from edl.host.template import FILES, Child, TemplateKeeper
from edl.http.client import answering, ask_all
from edl.job.snapshot import Snapshot, since
from edl.records import Liveness
from edl.zookeeper.store import JobStore, worker_frozen

logger = logging.getLogger(__name__)


EVENTS = "events.jsonl"  # of a job that was replaced, as `edl events --json` prints them
# Of files in a directory of logs.
KINDS = ("*.log", f"*.log{FORMER_LOG}", "*.stacks", "*.process", "*.trained", FILES, EVENTS)
KEPT_RUNS = 5  # before the newest one of a name
NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True)
class End:
    # -N: killed by signal N; `UNKNOWN_EXIT`: an earlier agent started it, or others reaped it
    code: int
    # seconds from the end of its first step until its end was seen; None: it trained no step
    trained_s: float | None
    said: ScriptEnd | None = None  # what it reported; None: nothing, or an earlier agent started it
    forked: bool = False  # from the template


class Workers:
    """The workers that this launcher started or took over, until it reaps them; one thread."""

    def __init__(
        self,
        command: Sequence[str],
        cwd: Path,
        environment: Mapping[str, str],
        logs: Path,
        template: TemplateKeeper | None = None,
    ) -> None:
        self._command = tuple(command)
        self._cwd = cwd
        self._environment = dict(environment)
        self._logs = logs
        self._marked = -math.inf
        self.template = template
        self._running: dict[str, subprocess.Popen[bytes] | Child | RunningWorker] = {}
        # called in a thread of its own at the end of a worker that we started
        self.on_exit: Callable[[], None] = lambda: None

    def start(
        self,
        attempt_id: str,
        slot: int,
        waits_s: float = 0.0,
        variables: Mapping[str, str] = NO_VARIABLES,
    ) -> None:
        """Start the job's command as a worker in `slot`, and watch it from now on."""
        own = {
            "EDL_SLOT": str(slot),
            "EDL_ATTEMPT_ID": attempt_id,
            "EDL_LAUNCH": attempt_id,  # what Horovod's patch 18 looks for, also in older builds
            "EDL_STACKS": str(self.stacks_of(attempt_id)),
            "EDL_LOG_FILE": str(self.log_of(attempt_id)),
            "EDL_TRAINED_FILE": str(self._trained_of(attempt_id)),
        }
        if waits_s:
            own["EDL_REGISTERS_AT_S"] = f"{time.monotonic() + waits_s:.3f}"
        if self.template is not None and (imports := self.template.imports):
            own["EDL_IMPORTS_FILE"] = str(imports)
        self._logs.mkdir(parents=True, exist_ok=True)  # it may have been removed during a long job
        environment = {**self._environment, **variables, **own}
        write_record = partial(self._write_record, attempt_id)
        process: subprocess.Popen[bytes] | Child | None = None
        if self.template is not None:
            process = self.template.fork(environment, self.log_of(attempt_id), write_record)
        how = "forked"
        if process is None:
            process, how = self._spawn(attempt_id, environment), "started"
            write_record(process.pid)
        self._running[attempt_id] = process
        logger.info("%s %s in slot %d as process %d", how, attempt_id, slot, process.pid)
        with contextlib.suppress(RuntimeError):  # no thread is left: its end is seen a little later
            threading.Thread(target=self._await, args=(process.pid,), daemon=True).start()

    def _write_record(self, attempt_id: str, pid: int) -> None:
        with contextlib.suppress(OSError):  # then an agent finds the worker by its process group
            self._record_of(attempt_id).write_text(f"{identity(pid)}\n")

    def _await(self, pid: int) -> None:
        """Wait until the child process `pid` has ended, and call `on_exit`."""
        with contextlib.suppress(ChildProcessError):  # it was reaped before
            # It is not reaped here.
            os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
            self.on_exit()

    def _spawn(self, attempt_id: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        with self.log_of(attempt_id).open("ab") as log:
            try:
                return subprocess.Popen(
                    self._command,
                    cwd=self._cwd,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                reason = error.strerror or str(error)
                try:
                    check_command(self._command, self._cwd, environment.get("PATH"))
                except UsageError as wrong:
                    reason = str(wrong)
                log.write(f"edl: cannot start {' '.join(self._command)}: {reason}\n".encode())
                raise OSError(error.errno, reason) from error

    def close(self) -> None:
        if self.template is not None:
            self.template.close()
            self.template.remove_imports()

    def orphans(self) -> tuple[RunningWorker, ...]:
        numbers = {
            log.stem: int(name.removeprefix("w"))
            for name, log in named_logs(self._logs).items()
            if name.removeprefix("w").isdigit()
        }
        return tuple(
            replace(one, worker=numbers.get(one.attempt_id))
            for one in find(self._environment, self._record_of)
            if one.attempt_id not in self._running
        )

    def watch(self, orphans: Iterable[RunningWorker]) -> None:
        self._running |= {one.attempt_id: one for one in orphans}

    def release(self) -> None:
        """Stop watching all workers, without ending them: no later method ends or reaps them."""
        self._running.clear()

    def keep_logs(self, now: float) -> None:
        if now - self._marked >= MARK_EACH_S:
            self._marked = now
            mark_as_used(self._logs)

    def log_of(self, attempt_id: str) -> Path:
        return self._logs / f"{attempt_id}.log"

    def name(self, attempt_id: str, name: str) -> None:
        """Make `NAME.log` a link to the log of a worker, in place of one of an earlier run."""
        link, target = self._logs / f"{name}.log", self.log_of(attempt_id).name
        with contextlib.suppress(OSError):  # the directory was removed
            if link.is_symlink() and os.readlink(link) == target:
                return
            link.unlink(missing_ok=True)
            link.symlink_to(target)

    def stacks_of(self, attempt_id: str) -> Path:
        return self._logs / f"{attempt_id}.stacks"

    def _record_of(self, attempt_id: str) -> Path:
        return self._logs / f"{attempt_id}.process"

    def _trained_of(self, attempt_id: str) -> Path:
        return self._logs / f"{attempt_id}.trained"

    def pid_of(self, attempt_id: str) -> int | None:
        process = self._running.get(attempt_id)
        return process.pid if process is not None else None

    def reap(self) -> dict[str, End]:
        """Return, once each, how workers ended; the rest of their process groups is killed."""
        ends = {}
        for attempt_id, process in list(self._running.items()):
            if (end := self._end_of(attempt_id, process)) is not None:
                ends[attempt_id] = end
                del self._running[attempt_id]
                stacks = self.stacks_of(attempt_id)
                used = [self._record_of(attempt_id), self._trained_of(attempt_id)]
                with contextlib.suppress(OSError):  # a disk that fails ends no worker
                    used += [stacks] if stacks.stat().st_size == 0 else []
                for path in used:
                    with contextlib.suppress(OSError):
                        path.unlink()
        return ends

    def _end_of(
        self, attempt_id: str, process: subprocess.Popen[bytes] | Child | RunningWorker
    ) -> End | None:
        """Return how a worker has ended, with its process group killed; None while it runs."""
        said = None
        if isinstance(process, RunningWorker):
            if (code := process.poll()) is not None:
                kill_helpers(process)
        else:
            try:
                # Not reaped yet, so its pid stays taken.
                if not os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                    return None
                said, code = script_end(process.pid), exit_code(process)  # in this order
            except ChildProcessError:  # the program of `edl.run` has reaped all its children
                code = UNKNOWN_EXIT
                if isinstance(process, subprocess.Popen):
                    process.poll()  # else it warns of a process that runs
        if code is None:
            return None
        return End(code, _age_s(self._trained_of(attempt_id)), said, isinstance(process, Child))

    def disable_template(self) -> None:
        """End the template for good: a worker forked from it failed before its first step."""
        if self.template is not None and not self.template.why_none:
            self.template.disable("a worker that was forked from it failed before its first step")

    def ended_scripts(self) -> dict[str, ScriptEnd]:
        ends = {attempt_id: script_end(one.pid) for attempt_id, one in self._running.items()}
        return {attempt_id: end for attempt_id, end in ends.items() if end is not None}

    def end(self, attempt_id: str, kill: bool) -> None:
        process = self._running.get(attempt_id)
        # After the end of a worker that was taken over, its pid may be another process's.
        over = isinstance(process, RunningWorker) and process.poll() is not None
        if process is not None and not over:
            signal_group(process.pid, signal.SIGKILL if kill else signal.SIGTERM)

    def kill_all(self, timeout_s: float) -> None:
        for attempt_id in self._running:
            self.end(attempt_id, kill=True)
        deadline = time.monotonic() + timeout_s
        while self.reap() or (self._running and time.monotonic() < deadline):
            time.sleep(0.01)

    def __len__(self) -> int:
        return len(self._running)


def log_directory(
    state: Path, job: str, fresh: bool, kept_jobs: int = 20, kept_s: float = 86400.0
) -> Path:
    """Return the job's log directory here, made if missing; `fresh`: old logs put aside."""
    jobs = state / "jobs"
    logs = jobs / job / "logs"
    if fresh:
        # The logs of the previous run, which may have crashed, go into `runN`.
        if left := [path for kind in KINDS for path in logs.glob(kind)]:
            run = logs / f"run{max(_numbered(logs), default=0) + 1}"
            run.mkdir()
            for path in left:
                with contextlib.suppress(FileNotFoundError):  # an agent that ends has removed it
                    path.rename(run / path.name)
        for old in earlier_runs(logs)[:-KEPT_RUNS]:
            shutil.rmtree(old, ignore_errors=True)
        # Those of old jobs go, whole, with those of their earlier runs.
        others = [path / "logs" for path in jobs.glob("*") if path.is_dir()]
        aged = sorted(((last_use_s(path), path) for path in others), reverse=True)
        for used, path in aged[kept_jobs:]:
            if time.time() - used > kept_s:
                shutil.rmtree(path, ignore_errors=True)  # who has the secret can read the job
    logs.mkdir(parents=True, exist_ok=True)
    return logs


def earlier_runs(logs: Path) -> list[Path]:
    return [run for _, run in sorted(_numbered(logs).items())]


def _numbered(logs: Path) -> dict[int, Path]:
    runs = {path.name.removeprefix("run"): path for path in logs.glob("run*")}
    return {int(number): path for number, path in runs.items() if number.isdigit()}


def _age_s(path: Path) -> float | None:
    """Return the seconds since the time in a file (monotonic; its own may be another clock's)."""
    try:
        return max(0.0, time.monotonic() - float(path.read_text()))
    except OSError:
        return None
    except ValueError:  # it was being written when its worker was killed
        return 0.0


def exit_code(child: subprocess.Popen[bytes] | Child) -> int:
    signal_group(child.pid, signal.SIGKILL)
    return child.wait()


def script_end(pid: int) -> ScriptEnd | None:
    """Return how a script has ended, as its process says by its own name; None while it runs."""
    try:
        name = Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    except OSError:
        return None
    return ScriptEnd.read(name)


def signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        logger.debug("process group %d is gone", pid)


# ------------------------------------------------------------
# Tie a process to its parent (Linux only).


_PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None)


def die_with_parent() -> None:
    """Let the kernel kill this process when its parent dies, unless that was before the call."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def behind_a_shell() -> None:
    # horovodrun signals the children of the shell that starts us, then kills the shell. But Bash as
    # /bin/sh replaces itself by its last command: we would be killed in its place. So the parent
    # stands in: it passes signals on, and exits with our code.
    began = os.getpid()
    if os.getppid() != os.getsid(0):  # the leader of the session is horovodrun's
        return
    child = os.fork()
    if child == 0:
        die_with_parent()
        if os.getppid() != began:
            os._exit(1)
        return

    def pass_on(number: int, frame: FrameType | None) -> None:
        os.kill(child, number)

    with handled(TO_END, pass_on):
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    os._exit(exit_status(code))


def is_unread(output: int) -> bool:
    poll = select.poll()
    poll.register(output, 0)
    return any(event & (select.POLLERR | select.POLLHUP) for _, event in poll.poll(0))


# ------------------------------------------------------------
# Find the workers of this host that do not answer their agent. It asks only workers whose ZooKeeper
# session has ended or that were evicted. Both are on the same host, so the network cannot be the
# cause: a worker that does not answer is frozen, or too overloaded to be of use.


ASK_TIMEOUT_S = 0.5
_OF_A_THREAD = ("comm", "wchan", "syscall")  # in /proc; syscall only with the right to trace it


class UnresponsiveWorkers:
    """A detector of workers here that do not answer, which also records where they hang."""

    def __init__(self, store: JobStore, host: str, workers: Workers, stack_signal: int) -> None:
        self._store = store
        self._host = host
        self._workers = workers
        self._signal = stack_signal
        self._doors: dict[str, tuple[str, int]] = {}  # attempt id -> address and port
        self._unreported: dict[Path, Process] = {}  # by the file with the stacks of the process

    def update(
        self, processes: Sequence[Process], snapshot: Snapshot, now: float
    ) -> tuple[Process, ...]:
        """Ask suspect workers over HTTP whether they run; note since when each has not answered."""
        for path, process in list(self._unreported.items()):
            worker_frozen(self._store, process, self._host, str(path), snapshot)
            del self._unreported[path]
        ring = {m.id: (m.address, m.port) for m in snapshot.ring}
        # A worker that an earlier agent left, frozen, may have no record but in the ring.
        of_ring = {p.attempt_id: ring[p.worker] for p in processes if p.worker in ring}
        self._doors = of_ring | self._doors
        self._doors |= {m.attempt_id: (m.address, m.port) for m in snapshot.members}
        alive = {p.attempt_id for p in processes if p.alive}
        self._doors = {attempt_id: self._doors[attempt_id] for attempt_id in alive & {*self._doors}}
        asked = [p.attempt_id for p in to_ask(processes, snapshot) if p.attempt_id in self._doors]
        answers = ask_all(
            {n: self._doors[attempt_id] for n, attempt_id in enumerate(asked)}, ASK_TIMEOUT_S
        )
        silent = {asked[n] for n, got in answers.items() if got.liveness is Liveness.SILENT}
        return tuple(
            replace(p, unresponsive_since=since(p.unresponsive_since, p.attempt_id in silent, now))
            for p in processes
        )

    def update_suspended(self, state: State, snapshot: Snapshot, now: float) -> State:
        processes = (
            replace(p, suspended_since=since(p.suspended_since, self._is_suspended(p), now))
            for p in state.processes
        )
        state = replace(state, processes=tuple(processes))
        asked = waiting_members(snapshot, state, now)
        waiting = answering(asked, self._store.nodes.run, ASK_TIMEOUT_S) if asked else frozenset()
        return replace(state, waiting=waiting)

    def _is_suspended(self, process: Process) -> bool:
        pid = self._workers.pid_of(process.attempt_id)
        if pid is None or not process.alive:
            return False
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
        except OSError:
            return False
        return stat.rpartition(")")[2].split()[:1] == ["T"]

    def write_stacks(self, process: Process) -> None:
        """Let an unresponsive worker write its stacks; the next `update` records them."""
        path = self._workers.stacks_of(process.attempt_id)
        pid = self._workers.pid_of(process.attempt_id)
        if pid is None:
            return
        obeys = self._signal > 0 and path.exists()  # else the signal would end it
        try:
            with path.open("a") as file:
                file.write(f"{process.name} (process {pid}) does not answer; its threads:\n")
                file.writelines(_native(pid))
            if obeys:
                os.kill(pid, self._signal)
        except OSError as error:
            logger.warning("where %s hangs is not known: %s", process.name, error)
            return
        self._unreported[path] = process


def _native(pid: int) -> list[str]:
    lines = []
    for task in sorted(Path(f"/proc/{pid}/task").iterdir()):
        values = []
        for name in _OF_A_THREAD:
            with contextlib.suppress(OSError):
                values.append(f"{name} {(task / name).read_text(errors='replace').strip()}")
        lines.append(f"  thread {task.name}: {'; '.join(values)}\n")
    return lines
