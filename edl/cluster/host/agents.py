"""Start the agents of a host's jobs, and read from their logs how they have ended.

An agent writes its own lines into a log file in the state directory, not the output of its workers,
which have logs of their own. `edl agent --json` ends with a line that says how it has ended. So
`edl host` knows that also of an agent that it has not started itself, or that ended while no
`edl host` lived.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl.cluster.host.logs import LogPlaces
from edl.cluster.host.processes import RUN_VARIABLE, Slices, agent_words, run_mark, start_of
from edl.cluster.host.users import NO_USERS, SECRETS_VARIABLE, JobUser, JobUsers, SecretFiles
from edl.cluster.host_jobs import LIMITS, LastAgent, RunProcess, after_end
from edl.cluster.manifest import JobManifest
from edl.cluster.records import HostAssignment
from edl.config import STATE_VARIABLE
from edl.errors import CoordinationError
from edl.host.devices import CUDA
from edl.host.process import AgentEnd, AgentResult, exit_status, is_final
from edl.spec import variable
from edl.text import printable

logger = logging.getLogger(__name__)
_STARTS = "edl host: an agent starts"
_TAIL_BYTES = 1 << 16  # of a log that are searched for the line with the end
_LOG_BYTES = 10 << 20  # of an agent's log, after which a new one begins
# Of this process only: an agent gets its own.
_OWN = frozenset(
    variable(name)
    for name in (
        "job",
        "cluster",
        "run",
        "secret",
        "secret_file",
        "host",
        "address",
        "network_interface",
        "zookeeper",
        "slot",
        "device",
        "attempt_id",
        "leave_within_s",
    )
)


@dataclass(frozen=True)
class AgentOptions:
    host: str  # the name of the host
    mark: str  # the mark of the host's processes (`host_mark`)
    slots: int  # the number of slots
    address: str  # the network address of the host
    zookeeper: str  # the ZooKeeper servers
    network_interface: str = ""  # the one that has the address; empty: none was chosen
    leave_within_s: float | None = None  # for the workers of a host that leaves; else None


@dataclass(frozen=True)
class StartOfRun:
    run: str  # the token of the run
    manifest: JobManifest
    secret: str = field(repr=False)  # the secret of the job
    secrets: Mapping[str, bytes] = field(default_factory=dict, repr=False)  # contents, by name


@dataclass
class _RunningAgent:
    run: str  # the token of its run
    since_s: float  # when it was started or found, in seconds of the monotonic clock
    child: subprocess.Popen[bytes] | None = None  # None: another process has started it


class HostAgents:
    def __init__(
        self,
        options: AgentOptions,
        places: LogPlaces,
        environment: Mapping[str, str],
        secret_files: SecretFiles,
        users: JobUsers = NO_USERS,
        slices: Slices | None = None,
    ) -> None:
        self.users = users
        self._slices = slices
        self._options = options
        self._secret_files = secret_files
        self._places = places
        self._environment = dict(environment)
        # called, in any thread, when an agent has ended
        self.on_exit: Callable[[], None] = lambda: None
        self._known: dict[str, _RunningAgent] = {}
        self._ended: dict[str, LastAgent] = {}

    def start(self, start: StartOfRun) -> None:
        job, run = start.manifest.name, start.run
        user = self.users.require(job)
        owner = None if user is None else (user.uid, user.gid)
        directory: Path | None = None
        if start.secrets:
            directory = self._secret_files.write(job, run, start.secrets, owner)
        log = self._open_log(job, run)
        reader, writer = os.pipe()
        try:
            # By a pipe, so that it stands in no environment and in no file.
            os.write(writer, f"{start.secret}\n".encode())
            os.close(writer)
            writer = -1
            if owner is not None:
                os.fchown(reader, *owner)  # it opens the pipe again, by its path
            options = ("--host", self._options.host, "--slots", str(self._options.slots))
            words = (*agent_words(job, run), *options, "--quiet", "--json")
            environment = self._environment_of(start, reader, directory)
            command = [sys.executable, "-m", "edl.cli.main", *words]
            child = self._spawn((job, run), command, environment, user, log, reader)
        finally:
            os.close(log)
            os.close(reader)
            if writer >= 0:
                os.close(writer)
        logger.info("agent %d of job %s, run %s, was started", child.pid, job, run)
        self._known[job] = _RunningAgent(run, time.monotonic(), child)
        self._watch(child.pid)

    def _spawn(
        self,
        run: tuple[str, str],
        command: Sequence[str],
        environment: Mapping[str, str],
        user: JobUser | None,
        log: int,
        secret: int,
    ) -> subprocess.Popen[bytes]:
        with contextlib.ExitStack() as stack:
            inherited: tuple[int, ...] = (secret,)
            own_user = user
            if self._slices is not None:
                launch = self._slices.launch(run, command, environment, user, self._environment)
                start = stack.enter_context(launch)  # it becomes the user itself
                marked = {**start.environment, RUN_VARIABLE: environment[RUN_VARIABLE]}
                command, environment = start.words, marked
                inherited, own_user = (secret, start.descriptor), None
            return subprocess.Popen(
                command,
                cwd="/",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,  # it lives on when this process ends
                pass_fds=inherited,
                user=None if own_user is None else own_user.uid,
                group=None if own_user is None else own_user.gid,
                extra_groups=None if own_user is None else own_user.groups,
                umask=-1 if user is None else 0o077,
            )

    def limit(self, assigned: HostAssignment) -> None:
        if self._slices is not None:
            entries = {run: assigned.jobs[run[0]] for run in self._going_on(assigned)}
            self._slices.limit({run: max(1, len(one.devices)) for run, one in entries.items()})

    def _going_on(self, assigned: HostAssignment) -> set[tuple[str, str]]:
        runs = set()
        for job, entry in assigned.jobs.items():
            last = self._ended.get(job)
            is_over = last is not None and last.run == entry.run and last.is_final
            if not entry.ends and not is_over:
                runs.add((job, entry.run))
        return runs

    def failed_to_start(
        self, job: str, run: str, error: OSError | ValueError, now_s: float
    ) -> None:
        """Note that the agent of a run could not be started; the next one comes after a pause."""
        reason = f"the agent cannot be started: {getattr(error, 'strerror', None) or error}"
        ended = LastAgent(run, None, reason, ended_s=now_s)
        self._ended[job] = after_end(self._ended.get(job), ended, 0.0)

    def children(self) -> tuple[RunProcess, ...]:
        found = []
        for job, known in self._known.items():
            if known.child is not None and known.child.poll() is None:
                started = start_of(known.child.pid)
                if started is not None:
                    one = RunProcess(known.child.pid, started, job, known.run, is_agent=True)
                    found.append(one)
        return tuple(found)

    def observe(
        self, assigned: HostAssignment, processes: Iterable[RunProcess], now_s: float
    ) -> Mapping[str, LastAgent]:
        agents = [one for one in processes if one.is_agent]
        living = {one.job: one.run for one in agents}
        for one in agents:
            known = self._known.get(one.job)
            if known is None or known.run != one.run:
                self._known[one.job] = _RunningAgent(one.run, now_s)
                self._watch(one.pid)
        for job, known in list(self._known.items()):
            code = None if known.child is None else known.child.poll()
            if living.get(job) != known.run and (known.child is None or code is not None):
                del self._known[job]
                ended = self._end_of(job, known.run, code, now_s)
                lived_s = now_s - known.since_s
                self._ended[job] = after_end(self._ended.get(job), ended, lived_s, LIMITS)
                logger.info("the agent of job %s has ended: %s", job, ended.reason)
        for job, entry in assigned.jobs.items():
            last = self._ended.get(job)
            is_new = job not in self._known and (last is None or last.run != entry.run)
            if is_new and self._places.has_log(job, entry.run):  # of an earlier `edl host`
                self._ended[job] = self._end_of(job, entry.run, None, now_s)
        self._ended = {job: one for job, one in self._ended.items() if job in assigned.jobs}
        return self._ended

    def prune(self, assigned: Iterable[tuple[str, str]]) -> None:
        try:
            self._places.prune(assigned)
        except OSError as error:
            logger.warning("old logs cannot be removed: %s", error)

    def tidy(self, assigned: HostAssignment, processes: Iterable[RunProcess]) -> None:
        runs = {one.of_run for one in processes} | self._going_on(assigned)
        self._secret_files.keep_only(runs)
        if self._slices is not None:
            self._slices.keep_only(runs)

    def _watch(self, pid: int) -> None:
        with contextlib.suppress(RuntimeError):  # no thread is left: its end is seen a little later
            threading.Thread(target=self._await, args=(pid,), daemon=True).start()

    def _await(self, pid: int) -> None:
        """Wait until the process `pid` has ended, whoever has started it; then call `on_exit`."""
        with contextlib.suppress(OSError):  # it has ended, or this kernel cannot watch it
            file = os.pidfd_open(pid)
            try:
                ends = select.poll()
                ends.register(file, select.POLLIN)
                ends.poll()
            finally:
                os.close(file)
        self.on_exit()

    def _environment_of(
        self, start: StartOfRun, secret: int, secrets: Path | None
    ) -> dict[str, str]:
        own, options = self._environment, self._options
        if (user := self.users.find(start.manifest.name)) is not None:
            own = user.environment(own)
        found = start.manifest.environment({k: v for k, v in own.items() if k not in _OWN})
        # The manifest does not say which devices the job may see.
        found.pop(CUDA, None)
        found.pop(SECRETS_VARIABLE, None)
        if CUDA in own:
            found[CUDA] = own[CUDA]
        if options.leave_within_s is not None:
            found[variable("leave_within_s")] = f"{options.leave_within_s:g}"
        if options.network_interface:
            found[variable("network_interface")] = options.network_interface
        return {
            **found,
            RUN_VARIABLE: run_mark(options.mark, start.manifest.name, start.run),
            "EDL_HOST": options.host,
            "EDL_ADDRESS": options.address,
            "EDL_ZOOKEEPER": options.zookeeper,
            "EDL_SECRET_FILE": f"/dev/fd/{secret}",
            # Whatever HOME the manifest sets: `edl host` reads the logs there.
            STATE_VARIABLE: str(self._places.state(start.manifest.name)),
            **({SECRETS_VARIABLE: str(secrets)} if secrets is not None else {}),
        }

    def _open_log(self, job: str, run: str) -> int:
        self._places.agents.mkdir(parents=True, exist_ok=True, mode=0o700)
        path = self._places.of_agent(job, run)
        with contextlib.suppress(FileNotFoundError):
            if path.stat().st_size > _LOG_BYTES:
                path.replace(f"{path}.1")
        log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.write(log, f"{_STARTS} at {time.strftime('%Y-%m-%d %H:%M:%S')}\n".encode())
        except OSError:  # a full disk, on which this is tried again and again
            os.close(log)
            raise
        return log

    def _end_of(self, job: str, run: str, code: int | None, now_s: float) -> LastAgent:
        result = _last_result(self._places.of_agent(job, run), run)
        if result is not None:
            reason = printable(result.reason) or f"the agent has ended: {result.end}"
            return LastAgent(
                run,
                result.exit_code,
                reason,
                is_final=is_final(result.end),
                refused=result.end is AgentEnd.REFUSED,
                has_left=result.end is AgentEnd.LEFT,
                ended_s=now_s,
            )
        if code is None:
            return LastAgent(run, None, "the agent was killed", ended_s=now_s)
        status = exit_status(code)
        return LastAgent(run, status, f"the agent has ended with code {status}", ended_s=now_s)


def _last_result(log: Path, run: str) -> AgentResult | None:
    """Return what the last agent that wrote to `log` has said of its end; None: it said nothing."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read(_TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return None
    for line in reversed(lines):
        if line.startswith(_STARTS):
            return None
        if line.startswith("{"):
            with contextlib.suppress(ValueError, TypeError, CoordinationError):
                result = AgentResult.from_json(json.loads(line))
                if result.run in (run, None):
                    return result
    return None
