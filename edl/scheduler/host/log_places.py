"""Find the logs of a host's jobs, and remove the oldest."""

from __future__ import annotations

import os
import shutil
import stat
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from edl.core.names import is_name
from edl.launch.log_use import last_use_s
from edl.launch.named_logs import named_logs
from edl.scheduler.host.job_users import JobUsers
from edl.scheduler.host.log_files import LogOwner

KEPT_RUNS = 100
KEPT_S = 86400.0
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class LogPlaces:
    """The directories of the logs of a host's jobs, and the paths of the logs in them."""

    # the directory with a folder for each job, of which `logs` has the workers' logs; it lies in
    # the state directory of edl
    workers: Path
    agents: Path  # the directory with the logs of the agents of this host, one for each run
    # the users as whom jobs run, who have the logs of their workers
    users: JobUsers = field(default_factory=JobUsers)

    def of_agent(self, job: str, run: str) -> Path:
        """Return the path of the log of a run's agents; the file need not exist."""
        return self.agents / f"{job}-{run}.log"

    def has_log(self, job: str, run: str) -> bool:
        """Return whether the log of a run's agents exists, so that one has run on this host."""
        try:
            return self.of_agent(job, run).exists()
        except OSError:  # such as a stale handle of a file server
            return False

    def of_workers(self, job: str) -> Path:
        """Return the directory of the logs of a job's workers; it need not exist."""
        return self._jobs(job) / job / "logs"

    def state(self, job: str) -> Path:
        """Return the state directory of a job's agents, in which the logs of its workers lie."""
        return self._jobs(job).parent

    def _jobs(self, job: str) -> Path:
        user = self.users.find(job)
        return self.workers if user is None else user.jobs

    def owner(self, job: str) -> int:
        """Return the number of the user to whom the logs of a job's workers belong."""
        user = self.users.find(job)
        return os.geteuid() if user is None else user.uid

    def of_log(self, job: str, log: Path) -> LogOwner:
        """Return whose files are read as a log of a job, and below which directory."""
        if log.parent != self.agents:
            return LogOwner(self.of_workers(job).parent.parent, self.owner(job))
        about = self.agents.stat()
        # It has opened them itself, if no other user can write there.
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & OTHERS_WRITE
        return LogOwner(self.agents, os.geteuid() if is_ours else self.owner(job))

    def of_job(self, job: str) -> dict[str, Path]:
        """Return the logs of a job by name; empty if it had no agent here."""
        agents = {f"agent-{run}": path for path, name, run in self._agent_logs() if name == job}
        return {**named_logs(self.of_workers(job)), **agents} if agents and is_name(job) else {}

    def prune(self, assigned: Iterable[tuple[str, str]], now_s: float | None = None) -> None:
        """Remove logs of runs that ended long ago."""
        stay = {self.of_agent(job, run) for job, run in assigned}
        aged = sorted((_written_s(path), path, job) for path, job, _ in self._agent_logs())
        now_s = time.time() if now_s is None else now_s
        for written_s, path, _ in aged[:-KEPT_RUNS]:
            if path not in stay and now_s - written_s > KEPT_S:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.1").unlink(missing_ok=True)
        left = {job for _, job, _ in self._agent_logs()}
        for job in {job for _, _, job in aged} - left:
            if self.users.find(job) is not None:
                continue  # another user's directory may lead anywhere
            logs = self.of_workers(job)
            if now_s - last_use_s(logs) > KEPT_S:  # other hosts may share the directory
                shutil.rmtree(logs, ignore_errors=True)

    def _agent_logs(self) -> list[tuple[Path, str, str]]:
        """Return (path, job, run) for the log of each run's agents, in the order of the paths."""
        found = []
        for path in sorted(self.agents.glob("*.log")):
            job, _, run = path.stem.rpartition("-")
            found.append((path, job, run))
        return found


def _written_s(log: Path) -> float:
    """Return when a log was last written, in seconds since 1970; 0 if it was removed."""
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0
