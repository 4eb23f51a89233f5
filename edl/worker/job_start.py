"""Load the state of a job from a checkpoint when its training begins: :class:`JobStart`.

Only the state source does this; it then sends the state to all other workers. :class:`Checkpointing
<edl.worker.checkpointing.Checkpointing>` calls it, saves checkpoints, and records how the job ends.
"""

from __future__ import annotations

import contextlib
import logging
from dataclasses import dataclass

from edl.checkpoint.format import Checkpoint
from edl.checkpoint.location import Location, location
from edl.checkpoint.saved_state import Durable
from edl.checkpoint.store import Checkpoints
from edl.core.events import ResumedDetails
from edl.core.job.fits import fits_of, passed_too_far
from edl.core.job.signature import Arithmetic
from edl.core.job_spec import RESUME_AUTO, RESUME_NO, JobSettings, resume_directory
from edl.core.plural import counted
from edl.core.records import Generation
from edl.core.step.training_length import TrainingLength
from edl.errors import CoordinationError, JobFailed, UsageError
from edl.worker.coordinator import Coordinator
from edl.worker.loader_progress import LoaderProgress
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)

OTHER_BITS = (
    "from here on the weights have other last bits than in a run that was not stopped: the job "
    "computes with {now}, and computed with {before} when the checkpoint was written"
)


def resumes_or_begins(settings: JobSettings) -> bool:
    """Return whether the job goes on from a checkpoint only if there is one, as in a cluster."""
    return settings.resume.strip().lower() == RESUME_AUTO


def resumed_directory(settings: JobSettings, directory: Location) -> Location | None:
    """Return the directory whose newest checkpoint the job resumes from; None: begin afresh."""
    resume = settings.resume.strip()
    if resume.lower() in RESUME_NO:
        return None
    named = resume_directory(resume)
    return directory if named is None else location(named).absolute()


@dataclass(frozen=True)
class JobStart:
    """The state source's search for a checkpoint with which its job goes on."""

    checkpoints: Checkpoints | None  # None: the script does not call `edl.checkpoint`
    replica: Durable | None  # what is saved; None: the script has not declared it
    loader: LoaderProgress
    coordinator: Coordinator
    shared: SharedState

    def restore(self, worker: int, warmed_up: bool) -> Checkpoint | None:
        """Load the newest checkpoint that this job may resume from; None: the job starts afresh."""
        settings, loader = self.coordinator.settings, self.loader
        if self.checkpoints is None:
            if settings.resume.strip().lower() not in RESUME_NO:
                raise UsageError(
                    "cannot resume: the script does not call edl.checkpoint(directory)"
                )
            return None
        if self.replica is None:
            raise UsageError("create an edl.Optimizer before `for epoch in loader.epochs(n)`")
        found = self.checkpoints.restore(
            loader.source, self.replica, loader.resume, len(loader.fits)
        )
        if found is None:
            return None
        fits, done = fits_of(found.manifest.fits), len(loader.fits)
        if done > len(fits):
            raise JobFailed(passed_too_far(worker, done, len(fits)))
        # A checkpoint of a later fit is not loaded: the script passes over the fits before it.
        loader.fits_ahead = fits
        if not loader.fits and not loader.later_fits:  # a later fit has a length of its own
            self._resume_length(TrainingLength.from_json(found.manifest.length), warmed_up)
        return found

    def _resume_length(self, saved: TrainingLength, restarts: bool) -> None:
        asked = self.loader.length
        may_begin = resumes_or_begins(self.coordinator.settings)
        self.loader.length = asked.resuming(saved, restarts, may_begin)
        if saved.is_below(asked):  # then a fit that a callback had stopped goes on
            self.loader.fit_stopped = ""

    def describe(
        self, found: Checkpoint, generation: Generation, step: int, warmed_up: bool
    ) -> tuple[ResumedDetails, str]:
        """Return the event that the job was resumed, and its reason; log it here, too."""
        lost_steps: int | None = None
        reason = f"resumed from step {step}"
        if warmed_up:  # the job had trained until all its workers died
            with contextlib.suppress(CoordinationError):
                lost_steps = max(0, self.coordinator.last_step() - step)
                reason += f", at least {counted(lost_steps, 'step')} lost"
            reason = f"all {len(generation.left)} workers died; {reason}"
        else:
            reason += f" of job {found.manifest.job}: {found.path}"
        logger.info("%s", reason)
        before = Arithmetic.from_json(found.manifest.arithmetic)
        if (now := self.shared.arithmetic()).why_unlike(before):
            logger.warning("%s", OTHER_BITS.format(now=now, before=before))
        return ResumedDetails(str(found.path), lost_steps), reason
