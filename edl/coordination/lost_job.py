"""A process's part in writing a job again that ZooKeeper has lost, by rules of ``core``."""

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
    """Called by one thread.

    Args:
        say: shows a sentence.
        probe_timeout_s: for the port of a worker to answer.
    """

    def __init__(self, store: JobStore, say: Callable[[str], None], probe_timeout_s: float) -> None:
        self._store = store
        self._say = say
        self._probe_timeout_s = probe_timeout_s
        self._since: float | None = None

    def is_back(self) -> None:
        """ZooKeeper has the job."""
        self._since = None

    def handle(self, error: UnknownJob, name: str, step: int) -> bool:
        """Write the job again, or wait until another process has; False: it was removed.

        Call it at each ``error`` until :meth:`is_back`. The nodes of this process are lost, too.

        Args:
            name: of this process; with ``step``, the newest complete one, for the event.
        """
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
        """Whether the ring lives, as far as this process can know."""

    @abstractmethod
    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        """Whether it is up to this process, which has missed the job for so long."""

    def _write(self, generation: Generation | None, name: str, step: int) -> bool:
        number = 0 if generation is None else generation.number
        reason = f"ZooKeeper had lost the job and its events; {name} wrote it again"
        event = Event(time.time(), number, step, reason, JobRestoredDetails(name))
        return self._store.write_again(event)


class WorkersLostJob(LostJob):
    """That of a worker, once it has its id ``own``."""

    own = -1

    def _trains(self, generation: Generation | None) -> bool:
        return may_write(self.own, generation, self._store.copy.evicted)

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
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
    """That of a launcher: it writes when no worker is left, who would know more."""

    def _trains(self, generation: Generation | None) -> bool:
        members = () if generation is None else generation.members
        return bool(answering(members, self._store.nodes.run, self._probe_timeout_s))

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        return missed_s >= LAUNCHER_S and not trains
