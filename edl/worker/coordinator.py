"""What a worker's training thread needs of the side that coordinates the job.

:class:`edl.daemon.daemon.Daemon` keeps it in ZooKeeper, :mod:`edl.testing.memory` in memory, and
:class:`edl.worker.job_of_one.JobOfOne` is for a script without a launcher. None of the methods
waits for anybody, but :meth:`Coordinator.flush` and :meth:`Coordinator.script_of_job`.
"""

from __future__ import annotations

from typing import Protocol

from edl.core.events import Event
from edl.core.job.signature import ScriptOfJob
from edl.core.job_spec import JobSettings
from edl.core.records import Generation, JobEnd, Member, RingFailure, Stage
from edl.core.sizes import Sizes
from edl.worker.policy_side import PolicySide


class Coordinator(Protocol):
    """One worker's part in the job's membership, from :meth:`start` to :meth:`close`."""

    leave_requested: bool  # by a signal handler, which must take no lock

    @property
    def is_shared(self) -> bool:
        """Other workers may be in this job, now or later."""

    @property
    def settings(self) -> JobSettings:
        """Those of the job, as its launcher has written them, once :meth:`start` has read them."""

    @property
    def sizes(self) -> Sizes:
        """How many workers the job may have; too few pause."""

    @property
    def away(self) -> bool:
        """Nobody can be heard and nobody can lead, for now."""

    @property
    def policy(self) -> PolicySide:
        """This worker's side of the job's policy."""

    @property
    def run(self) -> str:
        """An identity of this start of the job."""

    def start(self) -> tuple[Member, Generation | None]:
        """Register this worker; its record, and the job's generation when it has one already."""

    def script_of_job(self) -> ScriptOfJob:
        """Ask the workers in the ring for model and fits of their script.

        Returns:
            The answer of the first that answers; an empty one if nobody does in time.
        """

    def campaign(self) -> None:
        """Become a candidate; from now on this worker may lead."""

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None:
        """Make a new stage of this worker known, and what else is given."""

    def report_broken(self, failure: RingFailure) -> None:
        """Say that a ring failed, and what was complete."""

    def put_saved(self, directory: str, step: int) -> None:
        """Make known that a checkpoint of ``step`` is in ``directory``."""

    def last_step(self) -> int:
        """The last step that a leader has reported."""

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        """Make known how the job ended; the first worker to say so counts, and logs ``event``."""

    def release_others(self, generation: Generation | None) -> None:
        """The script of this worker has ended: cut the ring of ``generation`` if others need it to.

        That is when one of them waits for gradients, or for numbers, which this worker will not
        send. None: no more.
        """

    @property
    def released_from(self) -> str:
        """What another worker waited for when the ring was cut for that; empty: nothing."""

    def flush(self, timeout_s: float) -> bool:
        """Wait until all of the above is known; False at the deadline."""

    def resign(self) -> None:
        """Take no more part in ring and election; what is to be made known still is."""

    def close(self) -> None:
        """Leave the job for good. Idempotent."""
