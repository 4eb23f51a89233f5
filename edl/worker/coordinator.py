"""Define what a worker's training thread needs from the side that coordinates the job.

:class:`Coordinator` is the interface. There are three implementations:
:class:`edl.job.daemon.Daemon` keeps the job's membership in ZooKeeper, :mod:`edl.testing.memory`
keeps it in memory, and :class:`edl.worker.coordinator.JobOfOne` is for a script without a launcher.
Only ``start``, ``script_of_job``, ``last_step``, ``exchange_before_training``, ``flush`` and
``close`` wait for ZooKeeper or another process. All other methods return at once, and what they
publish is written later.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from edl.config import Config
from edl.events import Event
from edl.job.run import JobEnd
from edl.job.script import ScriptOfJob
from edl.records import Generation, JobPolicy, Member, RingFailure, RingMember, Stage
from edl.spec import JobSettings, Sizes

# ------------------------------------------------------------
# Define a worker's access to the job's policy: it proposes a policy, and reads what was measured.
#
# `PolicySide` is the interface. What a policy measures and keeps is the scaling profile: the
# throughput by number of workers.


class PolicySide(Protocol):
    """A worker's access to the job's policy, from any thread; only `learned` may wait."""

    def propose(self, policy: JobPolicy) -> None:
        """Let the job follow `policy` soon; a policy or proposal that it has already stays."""

    def learned(self) -> Mapping[str, Any]:
        """Return the scaling profile as JSON values; empty: not measured, or ZooKeeper is away."""

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Let the job begin with the scaling profile `learned`, unless it has measured its own."""


class NoPolicy:
    """The `PolicySide` of a job of one worker, which has no leader and no policy."""

    def propose(self, policy: JobPolicy) -> None:
        """Ignore `policy`, since a job of one worker follows no policy."""

    def learned(self) -> Mapping[str, Any]:
        """Return an empty profile, since a job of one worker learns none."""
        return {}

    def put_learned(self, learned: Mapping[str, Any]) -> None:
        """Ignore the profile `learned`, since a job of one worker needs no scaling profile."""


# ------------------------------------------------------------
# Coordinate the job of a script that no launcher started: it has one worker and no others.
#
# `edl.init()` uses a `JobOfOne` in such a script, where other workers have a daemon.


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


class Coordinator(Protocol):
    """The interface through which one worker takes part in its job, from start() to close()."""

    leave_requested: bool  # set by a signal handler, which must take no lock

    @property
    def is_shared(self) -> bool:
        """Whether other workers may be in this job, now or later; False only without a launcher."""

    @property
    def settings(self) -> JobSettings:
        """The settings of the job, as its launcher wrote them, once `start` has read them."""

    @property
    def sizes(self) -> Sizes:
        """The numbers of workers that the job may have, from `min_np`; a smaller ring pauses."""

    @property
    def away(self) -> bool:
        """Whether the store of the job's membership (ZooKeeper), if it has one, is out of reach."""

    @property
    def policy(self) -> PolicySide:
        """This worker's access to the job's policy and to its scaling profile."""

    @property
    def run(self) -> str:
        """The identifier of this start of the job; each start of a job has its own."""

    def start(self) -> tuple[Member, Generation | None]:
        """Register this worker with the job, and wait until that is done."""

    def script_of_job(self) -> ScriptOfJob:
        """Ask the workers in the ring, one by one, for the model and fits of their script."""

    def campaign(self) -> None:
        """Make this worker a candidate for leader; from now on it may lead the job."""

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,  # that a newcomer will not enter any more
        fits: int | None = None,  # done before the one for which a newcomer is ready
    ) -> None:
        """Publish a new stage of this worker; a number that is None stays as it was before."""

    def report_broken(self, failure: RingFailure) -> None:
        """Report which ring failed, and which step was complete; a later report takes its place."""

    def put_saved(self, directory: str, step: int) -> None:
        """Publish that `directory` holds a checkpoint of this step; any thread may call it."""

    def last_step(self) -> int:
        """Return the last step that a leader of the job has published; 0: none."""

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Send a message of an unchanged script; return those of all; None: the job trains."""

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        """Publish how the job ended, and log an event, unless another worker has published it."""

    def release_others(self, generation: Generation | None) -> None:
        """Break the ring of `generation` when others wait in it for this worker; None ends that."""

    @property
    def released_from(self) -> str:
        """What another worker waited for when `release_others` broke the ring; empty: nothing."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all reports of this worker are published; return whether they are."""

    def resign(self) -> None:
        """Request that this worker is removed from the job's members and from the election."""

    def close(self) -> None:
        """Leave the job for good, and close all connections to it; a second call does nothing."""
