"""Write a job again that ZooKeeper has lost: what one process of the job does for it.

A worker has a :class:`WorkersLostJob`, a launcher a :class:`LaunchersLostJob`. The workers of the
ring try first, in the order of their ranks, and a launcher writes only when no worker answers;
:mod:`edl.core.job.lost_job` has the rules.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable

from edl.coordination.job_store import JobStore
from edl.core.events import Event, JobRestoredDetails
from edl.core.job.lost_job import LAUNCHER_S, PATIENCE_S, begins_s, is_newest, may_write
from edl.core.records import Generation
from edl.errors import CoordinationError, UnknownJob
from edl.http.client import answering, ask_all

logger = logging.getLogger(__name__)

LOST = "ZooKeeper has lost the job; training goes on, and its processes write it again"


class LostJob(ABC):
    """The procedure by which one process of a job writes the job again after ZooKeeper lost it."""

    def __init__(self, store: JobStore, say: Callable[[str], None], probe_timeout_s: float) -> None:
        self._store = store
        self._say = say
        self._probe_timeout_s = probe_timeout_s
        self._since: float | None = None

    def is_back(self) -> None:
        """Note that this process has read the job from ZooKeeper, which ends a loss."""
        self._since = None

    def handle(self, error: UnknownJob, name: str, step: int) -> bool:
        """Write the lost job again if it is this process's turn; return whether to go on trying."""
        try:
            if not self._store.was_lost(error):
                return False
            now = time.monotonic()
            if self._since is None:
                self._since = now
                self._say(LOST)
            missed_s, generation = now - self._since, self._store.copy.generation
            trains = self._trains(generation)
            if self._writes(generation, missed_s, trains) and self._write(generation, name, step):
                return True
            return trains or missed_s < PATIENCE_S
        except CoordinationError as away:
            logger.info("%s", away)
            return True

    @abstractmethod
    def _trains(self, generation: Generation | None) -> bool:
        """Return whether the ring still trains, as far as this process can know."""

    @abstractmethod
    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        """Return whether it is this process's turn to write the job into ZooKeeper again."""

    def _write(self, generation: Generation | None, name: str, step: int) -> bool:
        """Write the job again, with an event that reports it."""
        number = 0 if generation is None else generation.number
        reason = f"ZooKeeper had lost the job and its events; {name} wrote it again"
        event = Event(time.time(), number, step, reason, JobRestoredDetails(name))
        return self._store.write_again(event)


class WorkersLostJob(LostJob):
    """The procedure for a worker: the workers try in rank order to write the lost job again."""

    own = -1  # The id of this worker, which the caller sets; -1 until it has one

    def _trains(self, generation: Generation | None) -> bool:
        return may_write(self.own, generation, self._store.copy.evicted)

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        """Return whether it is this worker's turn to write the lost job again."""
        if not trains or missed_s < begins_s(self.own, generation):
            return False
        members = () if generation is None else (*generation.members, *generation.previous)
        others = {
            member.id: (member.address, member.port) for member in members if member.id != self.own
        }
        run = self._store.nodes.run
        newest = (
            int(health.report.get("newest_generation", 0))
            for worker, health in ask_all(others, self._probe_timeout_s).items()
            if health.answer(run).name == f"w{worker}"
        )
        return is_newest(generation, newest)


class LaunchersLostJob(LostJob):
    """The procedure for a launcher: it writes a lost job again only if no worker answers."""

    # Workers come first: a live one may have read newer nodes of the job.

    # Whether this launcher may write the job at all; True until the caller sets it. An agent that
    # `edl host` keeps for one start of a job sets it to False: its copy may be older than the stop
    # and the removal of the job.
    # Whether this launcher may write the job. The agent that `edl host` keeps for one start of a
    # job may not: its copy may be older than the stop and the removal of the job.
    writes = True

    def _trains(self, generation: Generation | None) -> bool:
        members = () if generation is None else generation.members
        return bool(answering(members, self._store.nodes.run, self._probe_timeout_s))

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        return self.writes and missed_s >= LAUNCHER_S and not trains
