"""Wait for the generation that repairs a broken ring, and end a job whose rings break for ever.

:class:`Repairs` does that; when repairs are in vain, :class:`edl.core.job.repair_count.RepairCount`
decides.
"""

from __future__ import annotations

from collections.abc import Callable

from edl.core.job.repair_count import RepairCount
from edl.core.job.ring_failure import short_error
from edl.core.records import Generation
from edl.errors import JobFailed, RendezvousFailed, RingError
from edl.worker.checkpointing import Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.newcomer import NEWS_SLICE_S
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState


class Repairs:
    """Lets the training thread wait for repairs of its rings, which one object counts."""

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
        self._count: RepairCount | None = None  # the settings are known when the job is

    def wait(self, worker: int, failed: int, error: RingError) -> Generation:
        """Wait until the leader has published the generation that repairs a ring, and return it."""
        settings = self._coordinator.settings
        # A leader waits repair_timeout_s for workers that are not proven dead. Another leader gets
        # the same time again, but three times this time is the end in any case.
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
        """Count the repair by `generation`; end the job if repairs are in vain."""
        if not generation.members:  # the job stops
            return
        if self._count is None:
            self._count = RepairCount(self._coordinator.settings.elastic_timeout_s)
        progress = self._progress()
        reason = self._count.why_in_vain(
            generation.worker_ids,
            (progress.step, progress.exchanges, progress.leaves),
            is_built=not isinstance(error, RendezvousFailed),
            why=short_error(getattr(error, "detail", str(error))),
            now_s=self._now_s(),
        )
        if not reason:
            return
        try:
            # The worker whose state the repair would go on from saves a last checkpoint.
            self._checkpointing.fail_together(reason, int(worker != generation.state_source))
        except JobFailed as failed:
            raise failed from error
