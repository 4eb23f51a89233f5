"""End the training of one worker: all epochs are trained, or its script has ended before that.

:class:`Finishing` does it: by :meth:`Finishing.finish` when the script has left its loop, by
:meth:`Finishing.script_ended` when the script itself has ended. A job has *finished* when all
workers of its ring end after the same step, whether they have trained all epochs or their scripts
have ended inside one. They then exchange one more step record each. If that fails, a worker that
missed the last step gets its result in the repair of the ring. Another record says whether rank 0
has saved the last checkpoint. If a worker ends while others train on, the job fails, after rank 0
has saved; the error names the workers that have left
(:func:`edl.core.step.step_record.check_together`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from edl import failpoints
from edl.core.events import Details, FinishedDetails
from edl.core.job.ending import JobEnd
from edl.core.job.fits import resumed_too_short
from edl.core.job.stall import FOR_NUMBERS
from edl.core.records import JobState, Stage
from edl.core.step.step_record import StepRecord, Stop
from edl.errors import CheckpointError, UsageError
from edl.worker.checkpointing import FLUSH_S, Checkpointing
from edl.worker.coordinator import Coordinator
from edl.worker.shared_state import SharedState
from edl.worker.steps import WorkerSteps
from edl.worker.switching import Switching

logger = logging.getLogger(__name__)

ENDED_IN_WARM_UP = (
    "the script of w{worker} ended while it warmed up, before it had joined the job. A newcomer "
    "gets one batch, which counts for nothing, and joins when its loop asks for more: a decision "
    "to end must not depend on that batch (edl.is_warming_up(), edl.step())"
)


class Finishing:
    """One worker's part in the end of the job; it runs in the training thread."""

    def __init__(
        self,
        steps: Callable[[], WorkerSteps],
        switching: Switching,
        checkpointing: Checkpointing,
        shared: SharedState,
        coordinator: Coordinator,
        log_event: Callable[[Details, str], None],
    ) -> None:
        # it has begun to end its training, as its script has trained to its end
        self.finished = False
        self.is_over = False  # the end of the training is complete, with its last checkpoint
        self.told_to_leave = False  # a signal handler sets it
        # The script has come to the end of a fit, and another may follow; `FitProgress` sets it.
        self.has_trained_all = False
        # Completes the step of the batch trained last when the script has ended; the framework's
        # loader sets it.
        self.end_batch: Callable[[], None] = lambda: None
        # After it: raises UsageError if the script may not end there, NewcomerDiffers if this
        # worker may, and the others train on; set for unchanged Horovod scripts.
        self.check_end: Callable[[], None] = lambda: None
        self._steps = steps
        self._switching = switching
        self._checkpointing = checkpointing
        self._shared = shared
        self._coordinator = coordinator
        self._log_event = log_event
        self._unsaved = ""  # why the last checkpoint of a job without a launcher is missing

    @property
    def ends_early(self) -> bool:
        """Whether the script of a worker that was told to leave ends before the worker has left."""
        return self.told_to_leave and self._switching.is_in_ring and not self.finished

    def finish(self, early: bool = False) -> None:
        """End this worker's training together with all others; its script has left the loop."""
        self._shared.check()
        self._steps().leave()
        self._conclude(Stop.FINISHED, cuts_epoch=not early)

    def script_ended(self) -> None:
        """End the training of this worker when its script has ended with success."""
        switching, steps = self._switching, self._steps()
        if self.finished:
            self._check_saved()
            return
        if self.told_to_leave or not switching.is_in_ring:
            return
        if switching.warming_up and self.has_trained_all:
            # It has passed over all fits of its script.
            switching.wait_for_end()
        if switching.warming_up:
            self.check_end()
            raise UsageError(ENDED_IN_WARM_UP.format(worker=switching.worker))
        if switching.generation is None or self._shared.job_state.over:
            return
        if later := steps.progress.later_fits:
            passed = len(self._shared.fits.done)
            self._checkpointing.fail(resumed_too_short(passed, len(later)))
        # Other scripts keep their own place in their data.
        if not (steps.ends_with_script and steps.progress.has_state):
            return
        self._shared.check()
        self.end_batch()
        try:
            self.check_end()
        except UsageError as error:
            self._checkpointing.fail(str(error))
        steps.leave()
        try:
            self._conclude(Stop.ENDED)
        finally:
            self._coordinator.release_others(None)
        self._check_saved()

    def _check_saved(self) -> None:
        """Raise CheckpointError, once, if the last checkpoint is missing in a job of one worker."""
        unsaved, self._unsaved = self._unsaved, ""
        if unsaved:
            raise CheckpointError(f"the job {unsaved}")

    def _row(self, stop: Stop) -> StepRecord:
        """Return this worker's step record about the end of its training, for the present ring."""
        steps, coordinator = self._steps(), self._coordinator
        row = steps.last_record(stop)
        if stop is Stop.ENDED and coordinator.released_from == FOR_NUMBERS:
            self._checkpointing.fail(
                f"w{self._switching.worker} ended its script after step {steps.progress.step}, and "
                "others train on, in edl.mean() or the like; all workers must end after the same "
                "step: count the steps of the job (edl.step()), not those of a worker"
            )
        # Others that wait in the ring for this worker would wait for ever.
        if stop is Stop.ENDED or not steps.ends_with_script:
            coordinator.release_others(self._switching.generation)
        return row

    def _conclude(self, stop: Stop, cuts_epoch: bool = False) -> None:
        """Agree on the end with all other workers, save a last checkpoint, and record the end."""
        steps, switching = self._steps(), self._switching
        self.finished = True
        steps.log_switch_if_due()
        trained_in = steps.trained_in
        switching.finish_together(partial(self._row, stop), steps.compare)
        # A script may end long after its last step, as after an evaluation. A worker that fails in
        # that time has trained to the end, too.
        finished_in = trained_in if stop is Stop.ENDED else switching.number
        failpoints.reached("finish")
        if cuts_epoch:  # the script may not know that it leaves samples out
            steps.note_untrained()
        end_of = Stop.FINISHED if self.has_trained_all else stop
        reason = (
            f"trained {steps.progress.steps_made} {steps.progress.unit}{steps.describe_end(end_of)}"
        )
        end = JobEnd(JobState.FINISHED, reason, finished_in=finished_in)
        unsaved = steps.save_together(partial(self._checkpointing.finish, end))
        if not unsaved:
            self._coordinator.end_job(end)
        else:  # rank 0 has recorded this before all others, if it could
            self._checkpointing.end_unsaved(end, unsaved)
            if not self._coordinator.is_shared:
                self._unsaved = f"{reason}, but {unsaved}"
        self._coordinator.set_stage(Stage.FINISHED)
        self._log_event(FinishedDetails(), reason)
        logger.info("%s", reason)
        if not self._coordinator.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: it has %s", reason)
        self.is_over = True
