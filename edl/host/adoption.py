"""Find the workers that a killed agent left running, so that the next agent can take them over.

A worker is known by its environment (job, run, secret, host, slot, start attempt), so none of an
earlier run is found. Its helper processes have the same variables, even in a session of their own:
so the launcher writes pid and start time of the worker itself into a file beside its log. None of
this needs ZooKeeper: unregistered and frozen workers are found, too.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl.host.devices import DEVICE
from edl.host.process import UNKNOWN_EXIT, Process
from edl.records import Host

# ------------------------------------------------------------
# Say whether a process that once ran on this machine is known to be dead.


def machine_name() -> str:
    """Return a text by which two processes know whether they see the same process ids."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    namespace = os.readlink("/proc/self/ns/pid").partition("[")[2].rstrip("]")
    return f"{socket.gethostname()} ({boot}, {namespace})"


def is_known_dead(machine: str, pid: int) -> bool:
    return machine == machine_name() and not psutil.pid_exists(pid)


SAME = ("EDL_JOB", "EDL_RUN", "EDL_SECRET", "EDL_HOST")
_STARTED = 19  # in /proc/PID/stat, after the name: in ticks since the machine came up


@dataclass(frozen=True)
class RunningWorker:
    """A worker process that an earlier agent started and that `find` has found running."""

    process: psutil.Process
    attempt_id: str
    slot: int
    device: int | None = None  # None: it was given none
    worker: int | None = None  # None: not known, or none yet

    @property
    def pid(self) -> int:
        """The process id of the worker; once it has ended, another process may have this id."""
        return self.process.pid

    def as_process(self, now: float) -> Process:
        began = now - max(0.0, time.time() - self.process.create_time())
        return Process(self.slot, self.attempt_id, began, worker=self.worker, device=self.device)

    def poll(self) -> int | None:
        """Return None while it runs, then `UNKNOWN_EXIT`: only its parent could learn more."""
        try:
            ended = not self.process.is_running()
            return UNKNOWN_EXIT if ended or _is_zombie(self.process) else None
        except psutil.NoSuchProcess:
            return UNKNOWN_EXIT


def identity(pid: int) -> str:
    """Return pid and start time of a process, which no later one has; empty without a process."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")  # a name may be cut anywhere
    except OSError:
        return ""
    fields = text.rpartition(")")[2].split()
    return f"{pid} since {fields[_STARTED]}"


def recorded_pid(record: Path) -> int | None:
    """Return the pid of the process that a file names by its `identity`; None: it has ended."""
    try:
        written = record.read_text().strip()
        pid = int(written.partition(" ")[0])
    except (OSError, ValueError):
        return None
    return pid if written == identity(pid) else None


def find(
    environment: Mapping[str, str], record_of: Callable[[str], Path]
) -> tuple[RunningWorker, ...]:
    """Find all workers on this host of this job, run, secret and host name, our own included."""
    wanted = {name: environment.get(name) for name in SAME}
    found = []
    for process in psutil.process_iter():
        try:
            theirs = process.environ()
            if (
                {name: theirs.get(name) for name in SAME} == wanted
                and theirs.get("EDL_ATTEMPT_ID")
                and theirs.get("EDL_SLOT", "").isdigit()
                and _is_worker(process.pid, record_of(theirs["EDL_ATTEMPT_ID"]))
                and not _is_zombie(process)
            ):
                slot, device = int(theirs["EDL_SLOT"]), theirs.get(DEVICE, "")
                given = int(device) if device.isdigit() else None
                found.append(RunningWorker(process, theirs["EDL_ATTEMPT_ID"], slot, given))
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to another user
    return tuple(sorted(found, key=lambda one: (one.slot, one.attempt_id)))


def kill_helpers(worker: RunningWorker) -> None:
    """Kill what a worker, which has ended, has left in the process group that it led."""
    for process in psutil.process_iter():
        try:
            if (
                # The pid may belong to another process and group by now: a helper's environment
                # proves it.
                os.getpgid(process.pid) == worker.pid
                and process.environ().get("EDL_ATTEMPT_ID") == worker.attempt_id
            ):
                os.killpg(worker.pid, signal.SIGKILL)
                return
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to another user


def _is_worker(pid: int, record: Path) -> bool:
    try:
        recorded = record.read_text().strip()
    except OSError:
        recorded = ""  # the file was removed, or the disk was full
    return recorded == identity(pid) if recorded else os.getpgid(pid) == pid


def has_died(former: Host) -> bool:
    return not psutil.pid_exists(former.pid)


def has_died_here(former: Host, host: Host) -> bool:
    """Return whether an earlier agent is known to have run on this machine and to have ended."""
    return former.address == host.address and is_known_dead(former.machine, former.pid)


def _is_zombie(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_ZOMBIE)


# ------------------------------------------------------------
# Tell when the logs of a job were last in use. A job may train for days without a line of output,
# so they also count as used while a process runs here that a file beside them names. Processes of
# other hosts that share the directory are not seen from here: their launchers mark it
# (`mark_as_used`).


MARK_EACH_S = 3600.0  # much less than the day for which unused logs are kept


def last_use_s(logs: Path) -> float:
    """Return when logs were last used, in seconds since 1970; infinity: by a live process."""
    with contextlib.suppress(OSError):
        if any(recorded_pid(record) is not None for record in logs.glob("*.process")):
            return math.inf
    times = [0.0]
    with contextlib.suppress(OSError):
        for path in (logs.parent, logs, *logs.glob("*.log")):
            with contextlib.suppress(OSError):  # another process removes what is old, too
                times.append(path.lstat().st_mtime)
    return max(times)


def mark_as_used(logs: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(logs)
