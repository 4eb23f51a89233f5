"""Limit what the jobs of a host use, by systemd: each run has a slice, and its agents are in it.

A slice is a group of processes whose memory, processors and tasks Linux limits together. systemd
makes it and keeps it, so it outlives `edl host`. The limits are so much for each slot, so they
change with the slots of the job.

`systemd-run` has to run as root. So nothing that a tenant has written may reach it: neither the
environment of the manifest, with which it could load a library, nor the command. They go to
``run_as``, in a file that only this process has, and that becomes the user of the job first.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from edl.cluster.host import run_as
from edl.cluster.host.users import NO_USERS, JobUser, JobUsers
from edl.cluster.host_jobs import ProcessSignal, RunProcess, SlotLimits
from edl.cluster.records import HostAssignment
from edl.cluster.store import HostOwner
from edl.errors import UsageError
from edl.host.adoption import is_known_dead
from edl.secret_file import derived

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Say which process owns a host of a cluster, and let one machine have only one for each host.


class HostLock:
    """A lock that at most one process on this machine holds for a host name, until it ends."""

    def __init__(self, mark: str) -> None:
        # An abstract socket, which the kernel closes with the process. A frozen `edl host` keeps
        # it: otherwise it would end, when it wakes, what its successor has started.
        self._name = f"\0edl-host-{mark}"
        self._socket: socket.socket | None = None

    def take(self) -> bool:
        """Take the lock and return True; return False at once if another process has it."""
        one = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            one.bind(self._name)
        except OSError:
            one.close()
            return False
        self._socket = one
        return True


def is_dead(owner: HostOwner) -> bool:
    return is_known_dead(owner.machine, owner.pid)


# ------------------------------------------------------------
# Mark, find and signal the processes of a cluster's jobs on this host.
#
# `edl host` gives each agent the environment variable `EDL_CLUSTER_RUN`, which the agent's workers
# inherit, and so do the processes that they start: `MARK/JOB/RUN`. The mark is made of the
# cluster's secret and the names of the cluster and the host, so that neither another cluster nor
# another host that shares this machine has the same one. It reveals nothing. What a process shows
# of its environment in `/proc` is all that is needed to find it again: `edl host` keeps no list.
#
# A process that a user's script starts with an emptied environment is not found, unless it belongs
# to the process group of a worker. Nor is a process that overwrites the memory of its environment,
# from which SPT_NOENV keeps setproctitle.


RUN_VARIABLE = "EDL_CLUSTER_RUN"
_MARK_LENGTH = 32
_STARTED = 19  # in /proc/PID/stat, after the name: in ticks since the machine came up
_PROC = Path("/proc")


def host_mark(secret: str, cluster: str, host: str) -> str:
    return derived(secret, "processes", f"{cluster}/{host}")[:_MARK_LENGTH]


def run_mark(mark: str, job: str, run: str) -> str:
    return f"{mark}/{job}/{run}"


def agent_words(job: str, run: str) -> tuple[str, ...]:
    return ("agent", "--job", job, "--run", run)


def find_processes(mark: str, users: JobUsers = NO_USERS) -> tuple[RunProcess, ...]:
    found = []
    wanted = f"{RUN_VARIABLE}={mark}/".encode()
    for name in os.listdir(_PROC):
        if name.isdigit() and int(name) != os.getpid():
            with contextlib.suppress(OSError):  # it ended meanwhile, or belongs to another user
                environment = (_PROC / name / "environ").read_bytes()
                if wanted in environment and (one := _process(int(name), environment, mark)):
                    # others could give their processes the same environment
                    user = users.find(one.job)
                    if user is None or (_PROC / name).stat().st_uid == user.uid:
                        found.append(one)
    return tuple(sorted(found, key=lambda one: one.pid))


def find_surely(
    find: Callable[[], Sequence[RunProcess]], assigned: HostAssignment
) -> tuple[RunProcess, ...]:
    """Return the living processes of a host; look twice before a run that ends has none."""
    found = find()
    living = {one.of_run for one in found}
    if any(e.ends and (job, e.run) not in living for job, e in assigned.jobs.items()):
        # One that a dying process has just started may be missed once, and one that only the first
        # look has found may have started another one.
        both = {one.identity: one for one in (*found, *find())}
        found = sorted(both.values(), key=lambda one: one.identity)
    return tuple(found)


def start_of(pid: int) -> int | None:
    try:
        text = (_PROC / str(pid) / "stat").read_text(errors="replace")  # a name may be cut anywhere
    except OSError:
        return None
    fields = text.rpartition(")")[2].split()
    return None if fields[0] in "ZX" else int(fields[_STARTED])


def signal_process(order: ProcessSignal) -> None:
    process = order.process
    if start_of(process.pid) != process.started:
        return  # its pid may belong to another process by now
    number = signal.SIGKILL if order.kill else signal.SIGTERM
    what = "agent" if process.is_agent else "process"
    logger.info(
        "%s for %s %d of job %s: %s", number.name, what, process.pid, process.job, order.reason
    )
    with contextlib.suppress(ProcessLookupError):
        # a whole group, but SIGTERM for an agent is for it alone
        alone = process.is_agent and not order.kill
        if not alone and os.getpgid(process.pid) == process.pid:
            os.killpg(process.pid, number)
        else:
            os.kill(process.pid, number)


def _process(pid: int, environment: bytes, mark: str) -> RunProcess | None:
    """Return the process `pid` as one of a job's run; None if it belongs to no run of this host."""
    values = dict(
        pair.split(b"=", 1) for pair in environment.split(b"\0") if pair.startswith(b"EDL_")
    )
    parts = os.fsdecode(values.get(RUN_VARIABLE.encode(), b"")).split("/")
    started = start_of(pid)
    if started is None or len(parts) != 3 or parts[0] != mark:
        return None
    _, job, run = parts
    attempt_id = os.fsdecode(values.get(b"EDL_ATTEMPT_ID", b""))
    line = b"\0" + (_PROC / str(pid) / "cmdline").read_bytes() if not attempt_id else b""
    words = b"\0".join(word.encode() for word in agent_words(job, run))
    return RunProcess(pid, started, job, run, attempt_id, b"\0" + words + b"\0" in line)


Run = tuple[str, str]  # the name of a job and the token of one of its runs
BOOTED = Path("/run/systemd/system")  # it exists where systemd runs the machine
ASK_S = 10.0  # for systemd to answer
_PASSED = ("PATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL")  # of the environment of `edl host`


class StartCommand(NamedTuple):
    """A command by which another command runs with the limits of a run's systemd slice."""

    words: Sequence[str]  # the command line
    environment: Mapping[str, str]  # all environment variables of it
    descriptor: int  # a file that it must inherit


class Slices:
    def __init__(self, limits: SlotLimits, mark: str) -> None:
        self._limits = limits
        self._group = f"edl-{_digest(mark)}"
        self._slots: dict[Run, int] = {}  # for which the limits of a run are set
        self._failed: dict[Run, str] = {}  # why they could not be set
        self._has_listed = False

    def limit(self, slots: Mapping[Run, int]) -> None:
        for run, count in slots.items():
            if self._slots.get(run) == count:
                continue
            properties = self._limits.properties(count)
            why = _systemctl("set-property", "--runtime", self._name(run), *properties)
            if why:
                self._failed[run] = why
                logger.warning("the limits of job %s cannot be set: %s", run[0], why)
            else:
                self._failed.pop(run, None)
                self._slots[run] = count

    @contextmanager
    def launch(
        self,
        run: Run,
        words: Sequence[str],
        environment: Mapping[str, str],
        user: JobUser | None,
        own: Mapping[str, str],
    ) -> Iterator[StartCommand]:
        """While entered, provide what to start so that a command runs in the slice of a run."""
        if run in self._failed or run not in self._slots:
            why = self._failed.get(run, "they were not asked for")
            raise OSError(errno.EPERM, f"its limits cannot be set: {why}")
        command = run_as.UserCommand(
            tuple(words),
            dict(environment),
            None if user is None else (user.uid, user.gid, user.groups),
        )
        descriptor = os.memfd_create("edl-agent")  # a pipe may be too small for an environment
        try:
            os.write(descriptor, json.dumps(command).encode())
            os.lseek(descriptor, 0, os.SEEK_SET)
            scope = f"--slice={self._name(run)}", f"--description=edl agent of job {run[0]}"
            before = ("systemd-run", "--scope", "--quiet", "--collect", *scope, "--")
            stage = (sys.executable, "-I", str(run_as.__file__), str(descriptor))
            passed = {name: own[name] for name in _PASSED if name in own}
            yield StartCommand((*before, *stage), passed, descriptor)
        finally:
            os.close(descriptor)

    def keep_only(self, runs: Collection[Run]) -> None:
        if not self._has_listed:  # an earlier `edl host` may have left some
            self._has_listed = True
            known = {self._name(run) for run in (*runs, *self._slots)}
            words = ("list-units", "--all", "--type=slice", "--plain", "--no-legend")
            listed = _run(("systemctl", *words, f"{self._group}-*.slice"))
            lines = [] if isinstance(listed, str) else listed.stdout.splitlines()
            for name in (line.split()[0] for line in lines if line.strip()):
                if name not in known:
                    _remove(name)
        for run in [run for run in self._slots if run not in runs]:
            del self._slots[run]
            _remove(self._name(run))
        self._failed = {run: why for run, why in self._failed.items() if run in runs}

    def _name(self, run: Run) -> str:
        return f"{self._group}-{_digest('/'.join(run))}.slice"


def check_slices() -> None:
    tools = [name for name in ("systemd-run", "systemctl") if shutil.which(name) is None]
    if os.geteuid() != 0:
        why = "`edl host` to run as root"
    elif tools or not BOOTED.is_dir():
        why = "a machine that systemd has started"
    else:
        return
    raise UsageError(
        f"--memory-per-slot, --cpus-per-slot and --tasks-per-slot need {why}; leave them out, and "
        "start `edl host` in a container or a unit with limits"
    )


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _remove(name: str) -> None:
    for verb in ("stop", "revert"):
        if why := _systemctl(verb, name):
            logger.info("systemctl %s %s: %s", verb, name, why)


def _systemctl(*words: str) -> str:
    """Run systemctl; return why it has failed, "" if it has not."""
    found = _run(("systemctl", *words))
    if isinstance(found, str):
        return found
    return "" if found.returncode == 0 else found.stderr.strip() or f"code {found.returncode}"


def _run(words: Sequence[str]) -> subprocess.CompletedProcess[str] | str:
    """Run a command for a limited time; return how it has ended, or why it did not run."""
    try:
        return subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=ASK_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{words[0]} did not answer within {ASK_S:g} s"
    except OSError as error:
        return f"{words[0]}: {error.strerror}"
