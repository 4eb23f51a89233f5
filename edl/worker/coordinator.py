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
    """The interface through which one worker takes part in its job, from start() to close().

    Attributes:
        leave_requested: whether a signal handler has asked that this worker leaves the job. The
            implementation may set it back to False when it has taken note of it.
    """

    leave_requested: bool  # set by a signal handler, which must take no lock

    @property
    def is_shared(self) -> bool:
        """Whether other workers may be in this job, now or later; False only without a launcher."""

    @property
    def settings(self) -> JobSettings:
        """The settings of the job, as its launcher wrote them, once :meth:`start` has read them."""

    @property
    def sizes(self) -> Sizes:
        """The numbers of workers that the job may have, from ``min_np``; a smaller ring pauses."""

    @property
    def away(self) -> bool:
        """Whether the store of the job's membership (ZooKeeper) is out of reach now.

        False if the job has no such store.
        """

    @property
    def policy(self) -> PolicySide:
        """This worker's access to the job's policy and to its scaling profile."""

    @property
    def run(self) -> str:
        """The identifier of this start of the job; each start of a job has its own."""

    def start(self) -> tuple[Member, Generation | None]:
        """Register this worker with the job, and wait until that is done.

        It is called once, before the other methods.

        Returns:
            The worker's record, and the job's newest generation; None for a job that has none yet.

        Raises:
            CoordinationError: ZooKeeper does not answer.
            UnknownJob: there is no such job.
        """

    def script_of_job(self) -> ScriptOfJob:
        """Ask the workers in the ring, one by one, to describe the model and fits of their script.

        The description has the shape of each of the model's tensors, by name, the fits (calls of
        Keras' ``fit``) that are done, and how many are begun. It has no weights. The call waits for
        the answers.

        Returns:
            The first answer that is not empty; an empty one if no worker gives one.
        """

    def campaign(self) -> None:
        """Make this worker a candidate for leader; from now on it may lead the job.

        A worker that is a candidate already stays one.
        """

    def set_stage(
        self,
        stage: Stage,
        generation: int | None = None,
        newest_generation: int | None = None,
        fits: int | None = None,
    ) -> None:
        """Publish a new stage of this worker; a number that is None stays as it was before.

        The call does not wait until it is published; :meth:`flush` does.

        Args:
            stage: the stage of the worker, such as ready to join, or active in a ring.
            generation: the number of the generation in whose ring the worker is.
            newest_generation: the number of the newest generation that a newcomer will not enter
                any more.
            fits: the number of fits (calls of Keras' ``fit``) that are done before the one for
                which a newcomer is ready.
        """

    def report_broken(self, failure: RingFailure) -> None:
        """Report a ``failure``: which ring failed, and which step this worker had completed.

        The call does not wait until it is published; a later report takes its place.
        """

    def put_saved(self, directory: str, step: int) -> None:
        """Publish that ``directory`` holds a checkpoint of the step ``step``.

        It takes the place of the checkpoint published before. The call does not wait until it is
        published. Any thread may call it.
        """

    def last_step(self) -> int:
        """Return the number of the last step that a leader of the job has published.

        The job may have completed later steps; 0 if no leader has published one.

        Raises:
            CoordinationError: ZooKeeper does not answer.
        """

    def exchange_before_training(self, number: int, payload: bytes) -> list[bytes] | None:
        """Send a message of an unchanged script before its training, and wait for those of all.

        Args:
            number: the number of the exchange in the script, from 0.
            payload: the message of this worker.

        Returns:
            The messages in rank order, without those of workers that were evicted before all had
            sent one; None if the job trains, and has not made this exchange.

        Raises:
            JobFailed: some messages have not come in time, or the job has ended.
            UsageError: the messages of the job are too large, or the job was removed.
            WorkerEvicted: the leader has evicted this worker, or its job is gone.
            CoordinationError: ZooKeeper is still away after ``elastic_timeout_s``.
        """

    def end_job(self, end: JobEnd, event: Event | None = None) -> None:
        """Publish how the job ended, and log an event, unless another worker has published it.

        The call does not wait until it is published; :meth:`flush` does. A second call does
        nothing.

        Args:
            end: the state, reason and exit code of the job.
            event: the event to log; None logs nothing.
        """

    def release_others(self, generation: Generation | None) -> None:
        """Break the ring of ``generation`` as soon as another worker waits in it for this worker.

        It is called when the script of this worker has ended: this worker will not send the
        gradients or numbers that the other worker waits for. The call returns at once; the watch
        lasts until the ring is broken, or until the next call. None for ``generation`` ends it.
        """

    @property
    def released_from(self) -> str:
        """The text for what another worker waited for when :meth:`release_others` broke the ring.

        It is empty if no ring was broken so.
        """

    def flush(self, timeout_s: float) -> bool:
        """Wait until all reports of this worker are published, at most ``timeout_s`` seconds.

        Returns:
            Whether all are published; False when the time is over before.
        """

    def resign(self) -> None:
        """Request that this worker is removed from the job's members and from the election.

        The call does not wait for that. Reports of this worker are still published afterwards;
        :meth:`flush` waits for them.
        """

    def close(self) -> None:
        """Leave the job for good, and close all connections to it; a second call does nothing.

        Reports that are not published yet are published first if ZooKeeper can be reached.
        """
