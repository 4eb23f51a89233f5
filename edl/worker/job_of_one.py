"""Coordinate the job of a script that no launcher started: it has one worker and no others.

``edl.init()`` uses a :class:`JobOfOne` in such a script, where other workers have a daemon.
"""

from __future__ import annotations

import os
import uuid

from edl.config import Config
from edl.core.events import Event
from edl.core.job.ending import JobEnd
from edl.core.job.signature import ScriptOfJob
from edl.core.records import Generation, Member, RingFailure, RingMember, Stage
from edl.core.sizes import Sizes
from edl.worker.policy_side import NoPolicy

NUMBER = 0  # of the job's only generation


class JobOfOne:
    """The coordinator of a job that has one worker and no launcher; it publishes nothing."""

    is_shared = False
    away = False

    def __init__(self, config: Config) -> None:
        self._config = config
        self.settings, self.sizes = config.job_settings.of_size(1), Sizes()
        self.run = uuid.uuid4().hex
        self.leave_requested = False
        self.policy = NoPolicy()

    def start(self) -> tuple[Member, Generation | None]:
        """Return the record of the only worker (id 0), and the only generation (number 0)."""
        config, attempt = self._config, ""
        member = Member(0, config.host, config.slot, config.own_address, 0, os.getpid(), attempt)
        ring_member = RingMember(member.id, member.host, member.slot, member.address, member.port)
        reason = "a job of one worker"
        return member, Generation(NUMBER, 0, (ring_member,), member.id, (member.id,), (), reason)

    def script_of_job(self) -> ScriptOfJob:
        """Return an empty description, since there is no other worker."""
        return ScriptOfJob()

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Return the message of this worker, `payload`, alone."""
        return [payload]

    def campaign(self) -> None:
        """Do nothing, since a job of one worker needs no leader."""

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None:
        """Ignore `stage` and all numbers, since nobody else needs to know them."""

    def report_broken(self, failure: RingFailure) -> None:
        """Ignore `failure`, since nobody could repair the ring of the only worker."""

    def put_saved(self, directory: str, step: int) -> None:
        """Do not publish that `directory` has a checkpoint of `step`: nobody else needs it."""

    def last_step(self) -> int:
        """Return 0 as the last step that a leader has published, since this job has no leader."""
        return 0

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        """Ignore `end` and `event`, since nobody else needs to know how the job ended."""

    released_from = ""

    def release_others(self, generation: Generation | None) -> None:
        """Ignore `generation`, since no other worker can wait in its ring for this one."""

    def flush(self, timeout_s: float) -> bool:
        """Return True at once, whatever `timeout_s` is, since nothing has to be published."""
        return True

    def resign(self) -> None:
        """Do nothing, since there is no election to leave."""

    def close(self) -> None:
        """Do nothing, since no connection to a coordination service is open."""
