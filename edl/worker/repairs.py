"""Wait for the generation that repairs a broken ring, and end a job whose rings break for ever.

:class:`Repairs` does that. A ring breaks when a worker dies, and then the next ring lacks that
worker. But a collective of the script may fail in each ring, as one does in a callback of
``register_reset_callbacks`` whose arguments are wrong. No repair helps then, so the job fails.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.core.job.ring_failure import short_error
from edl.core.records import Generation
from edl.errors import JobFailed, RendezvousFailed, RingError
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.newcomer import NEWS_SLICE_S
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState

MOST_REPAIRS = 10  # in a row, of the same workers at the same point of the training


class Repairs:
    """The repairs of one worker's rings; it runs in the training thread.

    Args:
        shared: the state that the daemon's threads share with the training thread.
        coordinator: has the job's settings.
        checkpointing: ends a job whose rings break again and again.
        progress: returns the progress of this worker in its job.
    """

    def __init__(
        self,
        shared: SharedState,
        coordinator: Coordinator,
        checkpointing: Checkpointing,
        progress: Callable[[], TrainingProgress],
    ) -> None:
        self._shared = shared
        self._now_s = shared.clock.now_s
        self._coordinator = coordinator
        self._checkpointing = checkpointing
        self._progress = progress
        self._last: object = None  # the members and the progress at the last repair
        self._count = 0  # of the repairs in a row with the same members and progress
        self._since_s = 0.0  # when the first of these was

    def wait(self, worker: int, failed: int, error: RingError) -> Generation:
        """Wait for the generation that the leader makes of the survivors, and return it.

        This worker gives up if none came within repair_timeout_s (for which a leader waits for
        workers not proven dead) + switch_timeout_s. Another leader gets the same time again, but
        after three times this time the worker gives up in any case.

        Args:
            worker: the id of this worker.
            failed: the number of the generation that failed.
            error: how it failed, for the message.

        Raises:
            WorkerEvicted: the leader has evicted this worker.
            JobFailed: no leader made a generation in time; the job has ended; or it ends here,
                because its rings broke again and again (:data:`MOST_REPAIRS`, and for
                elastic_timeout_s if they could not be built), although no worker was lost and no
                step, exchange or leave was completed.
        """
        settings = self._coordinator.settings
        limit = settings.repair_timeout_s + settings.switch_timeout_s
        began = now = self._now_s()
        while now - max(began, self._shared.led_since) < limit and now - began < 3 * limit:
            found = self._shared.wait_for_generation(failed, slice_s=NEWS_SLICE_S, repairs=True)
            if found is not None:
                self._check(found, worker, error)
                return found
            if self._shared.job_state.over:
                raise self.over() from error
            now = self._now_s()
        away = "ZooKeeper is away, so " if self._coordinator.away else ""
        raise JobFailed(
            f"{away}no leader has repaired generation {failed} within {now - began:.0f} s "
            f"({error}); `edl status` says what it waits for"
        ) from error

    def over(self) -> JobFailed:
        """Return the error that other workers have ended the job; its message says how."""
        return JobFailed(f"the job {self._shared.job_end}")

    def _check(self, generation: Generation, worker: int, error: RingError) -> None:
        """Count the repair by ``generation``; end the job if the repairs before it were no use.

        Rings that cannot be built, as while the network between two workers is cut, end it after
        ``elastic_timeout_s`` only. The worker whose state the repair would go on from saves a last
        checkpoint.

        Args:
            generation: the generation that repairs the ring.
            worker: the id of this worker.
            error: how the last ring broke.

        Raises:
            JobFailed: the job ends here.
        """
        if not generation.members:  # the job stops
            return
        progress = self._progress()
        made = progress.step, progress.exchanges, progress.leaves
        now = generation.worker_ids, made
        if now != self._last:
            self._last, self._count, self._since_s = now, 0, self._now_s()
        self._count += 1
        limit_s = self._coordinator.settings.elastic_timeout_s
        is_cut = isinstance(error, RendezvousFailed)
        is_early = is_cut and self._now_s() - self._since_s < limit_s
        if self._count <= MOST_REPAIRS or is_early:
            return
        why = short_error(getattr(error, "detail", str(error)))
        hint = "look for a collective of the script that fails in each ring, as in a reset callback"
        if is_cut:
            hint = "look for what keeps these workers from connecting to each other"
        reason = (
            f"the ring was repaired {self._count - 1} times after step {progress.step} and broke "
            f"again each time, although no worker was lost: {why}; {hint}"
        )
        try:
            self._checkpointing.fail_together(reason, int(worker != generation.state_source))
        except JobFailed as failed:
            raise failed from error
