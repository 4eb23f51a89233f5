"""Define what a worker's training thread needs from the side that coordinates the job.

:class:`Coordinator` is the interface. There are three implementations:
:class:`edl.daemon.daemon.Daemon` keeps the job's membership in ZooKeeper, :mod:`edl.testing.memory`
keeps it in memory, and :class:`edl.worker.job_of_one.JobOfOne` is for a script without a launcher.
Only ``start``, ``script_of_job``, ``last_step``, ``exchange_before_training``, ``flush`` and
``close`` wait for ZooKeeper or another process. All other methods return at once, and what they
publish is written later.
"""

from __future__ import annotations

from typing import Protocol

from edl.core.events import Event
from edl.core.job.ending import JobEnd
from edl.core.job.signature import ScriptOfJob
from edl.core.job_spec import JobSettings
from edl.core.records import Generation, Member, RingFailure, Stage
from edl.core.sizes import Sizes
from edl.worker.policy_side import PolicySide


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
