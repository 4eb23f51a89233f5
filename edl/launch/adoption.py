"""The workers that an agent left behind when it was killed: found, and taken over by the next one.

A worker carries in its environment which job it belongs to, the secret of that start of the job,
its host's name, its slot, and the token of its start. So do the helpers that it has started, also
those with a session of their own: which process is the worker itself was written down beside its
log. That needs no ZooKeeper: it also finds workers that have not registered yet, and frozen ones
whose session is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import psutil

from edl.core.host.process import UNKNOWN_EXIT
from edl.core.records import Host

SAME = ("EDL_JOB", "EDL_SECRET", "EDL_HOST")
_STARTED = 19  # in /proc/PID/stat, after the name: in ticks since the machine came up


@dataclass(frozen=True)
class Found:
    """A worker process that somebody else has started."""

    process: psutil.Process
    attempt_id: str
    slot: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def age_s(self) -> float:
        return max(0.0, time.time() - self.process.create_time())

    def poll(self) -> int | None:
        """UNKNOWN_EXIT once it has ended: only its parent gets the exit code."""
        try:
            ended = not self.process.is_running()
            return UNKNOWN_EXIT if ended or _is_zombie(self.process) else None
        except psutil.NoSuchProcess:
            return UNKNOWN_EXIT


def identity(pid: int) -> str:
    """A process, as no later one with its number is called; empty once it is gone."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return f"{pid} since {fields[_STARTED]}"


def find(environment: Mapping[str, str], record_of: Callable[[str], Path]) -> tuple[Found, ...]:
    """The living workers that belong to the same job and host as workers of ``environment``.

    ``record_of``: where the :func:`identity` of the worker of a launch was written down. If
    somebody has tidied that up, it is the process that leads a group.
    """
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
                found.append(Found(process, theirs["EDL_ATTEMPT_ID"], int(theirs["EDL_SLOT"])))
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to another user
    return tuple(sorted(found, key=lambda one: (one.slot, one.attempt_id)))


def _is_worker(pid: int, record: Path) -> bool:
    """Whether it is the worker itself, and no helper of it."""
    try:
        recorded = record.read_text().strip()
    except OSError:
        recorded = ""  # somebody has tidied up, or the disk was full
    return recorded == identity(pid) if recorded else os.getpgid(pid) == pid


def has_died(former: Host) -> bool:
    """Whether the agent that ZooKeeper still has for this host is surely gone."""
    return not psutil.pid_exists(former.pid)


def _is_zombie(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_ZOMBIE)
