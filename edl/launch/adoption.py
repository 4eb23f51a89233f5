"""The workers that an agent left behind when it was killed: found, and taken over by the next one.

A worker carries in its environment which job it belongs to, the secret of that start of the job,
its host's name, its slot, and the token of its start; and it leads its own process group. That is
proof enough, and needs no ZooKeeper: it also finds workers that have not registered yet, and
frozen ones whose session is over.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass

import psutil

from edl.core.host.process import UNKNOWN_EXIT
from edl.core.records import Host

SAME = ("EDL_JOB", "EDL_SECRET", "EDL_HOST")


@dataclass(frozen=True)
class Found:
    """A worker process that somebody else has started."""

    process: psutil.Process
    launch: str
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


def find(environment: Mapping[str, str]) -> tuple[Found, ...]:
    """The living workers that belong to the same job and host as workers of ``environment``."""
    wanted = {name: environment.get(name) for name in SAME}
    found = []
    for process in psutil.process_iter():
        try:
            theirs = process.environ()
            if (
                {name: theirs.get(name) for name in SAME} == wanted
                and theirs.get("EDL_LAUNCH")
                and theirs.get("EDL_SLOT", "").isdigit()
                and os.getpgid(process.pid) == process.pid  # not a helper of a worker
                and not _is_zombie(process)
            ):
                found.append(Found(process, theirs["EDL_LAUNCH"], int(theirs["EDL_SLOT"])))
        except (psutil.Error, OSError):
            continue  # it ended meanwhile, or belongs to another user
    return tuple(sorted(found, key=lambda one: (one.slot, one.launch)))


def has_died(former: Host) -> bool:
    """Whether the agent that ZooKeeper still has for this host is surely gone."""
    return not psutil.pid_exists(former.pid)


def _is_zombie(process: psutil.Process) -> bool:
    return bool(process.status() == psutil.STATUS_ZOMBIE)
