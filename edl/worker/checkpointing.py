"""How a job begins, is saved, and ends for good: what its workers do about state on disk.

A job begins afresh, from a checkpoint that the user asked for, or, when all workers have died,
from the newest one of its own. Only the state source looks: its state then goes to all others.
"""

from __future__ import annotations

import contextlib
import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

from edl.checkpoint.format import Checkpoint
from edl.checkpoint.store import CheckpointConfig, Checkpoints, Durable
from edl.config import Config
from edl.core.events import Details, Event, JobFailedDetails, ResumedDetails
from edl.core.host.process import STOPPED_EXIT
from edl.core.job.fits import fits_of, passed_too_far
from edl.core.job.stall import SAVING
from edl.core.job_spec import JobSettings
from edl.core.plural import counted
from edl.core.records import Generation, JobEnd, JobState
from edl.errors import CoordinationError, EdlError, JobFailed, UsageError
from edl.worker.activity import waits
from edl.worker.coordinator import Coordinator
from edl.worker.loader_progress import LoaderProgress
from edl.worker.progress import TrainingProgress
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)

FLUSH_S = 5.0  # for the last news to reach ZooKeeper
ALONE = "alone"  # the job name of a script without a launcher
_NO = ("", "0", "no", "false")
_YES = ("1", "yes", "true")
_AUTO = "auto"


class Checkpointing:
    """One worker's part in it. Runs in the training thread.

    ``progress``: how far the job is; what is saved is always a place in edl's own data.
    """

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        progress: LoaderProgress,
        coordinator: Coordinator,
    ) -> None:
        self._config = config
        self._shared = shared
        self.progress: TrainingProgress = progress
        self._loader = progress
        self._coordinator = coordinator
        self._checkpoints: Checkpoints | None = None
        self.replica: Durable | None = None
        self._generation = 0  # for events

    @property
    def saves(self) -> bool:
        """The script has called ``edl.checkpoint``."""
        return self._checkpoints is not None

    def attach(self, directory: Path, every_s: float, keep: int) -> None:
        """Save into ``directory`` from now on.

        Raises:
            UsageError: it is too late, a second call, or values out of range.
            CheckpointError: the directory cannot be written.
        """
        if self._checkpoints is not None:
            raise UsageError("edl.checkpoint was called before; a job has one directory")
        if self._loader.has_state or self._loader.step_input.is_open:
            raise UsageError("call edl.checkpoint before `for epoch in loader.epochs(n)`")
        if not every_s > 0:
            raise UsageError(f"edl.checkpoint: every_s is {every_s}; it must be positive")
        if keep < 1:
            raise UsageError(f"edl.checkpoint: keep is {keep}; it must be at least 1")
        resume = self.settings.resume.strip()
        directory = directory.absolute()
        settings = CheckpointConfig(
            directory=directory,
            every_s=every_s,
            keep=keep,
            job=self._config.job or ALONE,
            run=self._coordinator.run,
            resume_from=self._resume_from(resume, directory),
            or_begin=resume.lower() == _AUTO,
        )
        checkpoints = Checkpoints(
            settings, self._log_event, self._coordinator.put_saved, self._coordinator.policy.learned
        )
        checkpoints.check_directory()
        self._checkpoints = checkpoints

    @staticmethod
    def _resume_from(resume: str, directory: Path) -> Path | None:
        if resume.lower() in _NO:
            return None
        if resume.lower() in (*_YES, _AUTO):
            return directory
        return Path(resume).absolute()

    @property
    def settings(self) -> JobSettings:
        """What the job is asked to be; in an elastic one as ZooKeeper has it, once it was read."""
        return self._coordinator.settings

    def begin(self, generation: Generation, warmed_up: bool) -> None:
        """This worker is to bring the job's state and has none: load it, or start afresh.

        A checkpoint of a later fit is not loaded: its fits are then those that the job passes over
        (``LoaderProgress.fits_ahead``), and this is called again in the next one.

        ``warmed_up``: its model has trained a batch for nothing, so it cannot start afresh.

        Raises:
            CheckpointError, UsageError: what was asked for cannot be resumed.
            JobFailed: nobody is left who holds the state, and none was saved.
        """
        self._generation = generation.number
        try:
            found = self._restore()
            if found is not None and self._is_of_another_fit(found, generation.state_source):
                return
            if found is None and warmed_up:
                how = ", before it was saved" if self.saves else self.progress.without_checkpoint
                raise JobFailed(f"all workers died and the job's state with them{how}")
        except EdlError as error:
            self._end_job(str(error))
            raise
        if self._checkpoints is not None:
            self._checkpoints.take_over(generation.number)
        if found is not None:
            if found.manifest.learned:
                self._coordinator.policy.put_learned(found.manifest.learned)
            self._log_resumed(generation, found, warmed_up)

    def _restore(self) -> Checkpoint | None:
        if self._checkpoints is not None:
            if self.replica is None:
                raise UsageError("create an edl.Optimizer before `for epoch in loader.epochs(n)`")
            loader = self._loader
            return self._checkpoints.restore(
                loader.source, self.replica, loader.resume, len(loader.fits)
            )
        if self.settings.resume.strip().lower() not in _NO:
            raise UsageError("cannot resume: the script does not call edl.checkpoint(directory)")
        return None

    def _is_of_another_fit(self, found: Checkpoint, worker: int) -> bool:
        """Whether the script has to pass over fits before it can take over the checkpoint.

        Raises:
            JobFailed: it has passed over too many.
        """
        fits, done = fits_of(found.manifest.fits), len(self._loader.fits)
        if done > len(fits):
            raise JobFailed(passed_too_far(worker, done, len(fits)))
        self._loader.fits_ahead = fits
        return done < len(fits)

    def save_soon(self) -> None:
        """Save at the next boundary: the job has begun another fit."""
        if self._checkpoints is not None:
            self._checkpoints.hasten()

    def _log_resumed(self, generation: Generation, found: Checkpoint, warmed_up: bool) -> None:
        step = self.progress.step
        lost_steps: int | None = None
        reason = f"resumed from step {step}"
        if warmed_up:
            with contextlib.suppress(CoordinationError):
                lost_steps = max(0, self._coordinator.last_step() - step)
                reason += f", at least {counted(lost_steps, 'step')} lost"
            reason = f"all {len(generation.left)} workers died; {reason}"
        else:
            reason += f" of job {found.manifest.job}: {found.path}"
        logger.info("%s", reason)
        self._log_event(ResumedDetails(str(found.path), lost_steps), step, reason)

    # --- while it trains

    def save_if_due(self, rank: int, generation: int) -> None:
        """At a boundary: rank 0 saves when it is time.

        In a job of one, a SIGTERM ends the process here (SystemExit 143), with all saved.

        Raises:
            JobFailed: another ring of the job has begun to save there.
            CheckpointError: the script's state is nothing that can be saved; at the first step.
        """
        if self._checkpoints is None or self.replica is None:
            return
        self._generation = self._checkpoints.generation = generation
        if rank != 0:
            return
        if self._checkpoints.superseded:
            raise JobFailed(self._checkpoints.superseded)
        if self._coordinator.leave_requested and not self._coordinator.is_shared:
            self.save_last()
            raise SystemExit(STOPPED_EXIT)
        try:
            self._checkpoints.save_if_due(self._loader.place, self.replica)
        except EdlError as error:
            self._end_job(str(error))
            raise

    def save_now(self, rank: int, generation: int) -> None:
        """Between two steps: rank 0 saves, whenever it has before."""
        self.save_soon()
        self.save_if_due(rank, generation)

    # --- at the end

    @waits(SAVING)
    def save_last(self) -> str:
        """Save before the end, if this job saves and this worker has a state; bounded in time.

        Returns:
            Why the last checkpoint was not written; empty: it was, or there is none to write.
        """
        if self._checkpoints is None or self.replica is None or not self._loader.has_state:
            return ""
        timeout_s = self.settings.save_timeout_s
        return self._checkpoints.save_last(self._loader.place, self.replica, timeout_s)

    def finish(self, end: JobEnd) -> str:
        """:meth:`save_last` when all have trained to the end; the first to say if it failed."""
        unsaved = self.save_last()
        if unsaved:
            self.end_unsaved(end, unsaved)
        return unsaved

    def end_unsaved(self, end: JobEnd, unsaved: str) -> None:
        """Let the job have finished without its last checkpoint: not all is done."""
        reason = f"{end.reason}, but {unsaved}"
        self._coordinator.end_job(replace(end, reason=reason, exit_code=1))
        self._coordinator.flush(FLUSH_S)

    def wait_for_writes(self) -> None:
        """Let a checkpoint that is being written come to its end; bounded in time."""
        if self._checkpoints is not None:
            self._checkpoints.wait_for_writes(self.settings.save_timeout_s)

    def fail(self, reason: str, error: type[JobFailed] = JobFailed) -> NoReturn:
        """End the job as failed, for all."""
        self._end_job(reason)
        raise error(reason)

    @waits(SAVING)
    def fail_together(self, reason: str, rank: int) -> NoReturn:
        """End the job as failed where all of the ring are; rank 0 saves before it says so.

        The others wait for it, for their launchers end whoever is left of a job that has failed.

        Raises:
            JobFailed: always.
        """
        if rank == 0:
            self.save_last()
        elif self.saves:
            deadline = self._shared.clock.now_s() + self.settings.save_timeout_s + FLUSH_S
            self._shared.wait_for_end(deadline)
        self.fail(reason)

    def _end_job(self, reason: str) -> None:
        """Let the job have failed, so that nobody waits for it or starts it again."""
        step = self.progress.step
        event = Event(time.time(), self._generation, step, reason, JobFailedDetails())
        self._coordinator.end_job(JobEnd(JobState.FAILED, reason, exit_code=1), event)
        if not self._coordinator.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: %s", reason)

    def _log_event(self, details: Details, step: int, reason: str) -> None:
        self._shared.log(Event(time.time(), self._generation, step, reason, details))
