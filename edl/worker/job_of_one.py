"""The job of a script that no launcher started: one worker, and nobody to coordinate with."""

from __future__ import annotations

import os
import uuid

from edl.config import Config
from edl.core.events import Event
from edl.core.job.signature import ScriptOfJob
from edl.core.records import Generation, JobEnd, Member, RingFailure, RingMember, Stage
from edl.core.sizes import Sizes
from edl.worker.policy_side import NoPolicy

NUMBER = 0  # of its only generation


class JobOfOne:
    """A :class:`edl.worker.coordinator.Coordinator` that makes nothing known to anybody."""

    is_shared = False
    away = False

    def __init__(self, config: Config) -> None:
        self._config = config
        self.settings, self.sizes = config.job_settings, Sizes()
        self.run = uuid.uuid4().hex
        self.leave_requested = False
        self.policy = NoPolicy()

    def start(self) -> tuple[Member, Generation | None]:
        config, attempt = self._config, ""
        member = Member(0, config.host, config.slot, config.own_address, 0, os.getpid(), attempt)
        ring_member = RingMember(member.id, member.host, member.slot, member.address, member.port)
        reason = "a job of one worker"
        return member, Generation(NUMBER, 0, (ring_member,), member.id, (member.id,), (), reason)

    def script_of_job(self) -> ScriptOfJob:
        return ScriptOfJob()

    def campaign(self) -> None: ...

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None: ...

    def report_broken(self, failure: RingFailure) -> None: ...

    def put_saved(self, directory: str, step: int) -> None: ...

    def last_step(self) -> int:
        return 0

    def end_job(self, end: JobEnd, event: Event | None = None) -> None: ...

    released_from = ""

    def release_others(self, generation: Generation | None) -> None: ...

    def flush(self, timeout_s: float) -> bool:
        return True

    def resign(self) -> None: ...

    def close(self) -> None: ...
