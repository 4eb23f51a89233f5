"""Save the state of a job to disk, load it when the job begins, and record how the job ends.

:class:`Checkpointing` does it for one worker. Rank 0 saves into the directory that the script has
given to ``edl.checkpoint``. A job begins afresh, from a checkpoint that the user asked for, or,
when all workers have died, from the newest checkpoint of its own (:mod:`edl.worker.checkpointing`).
"""

from __future__ import annotations

import contextlib
import logging
import sys
import time
from dataclasses import dataclass, replace
from typing import NoReturn

from edl.checkpoint.format import Checkpoint, OwnerSuperseded, owner_of
from edl.checkpoint.location import Location, RemotePath, location
from edl.checkpoint.store import Checkpoints, LoggedSteps
from edl.checkpoint.writer import CheckpointConfig, CheckpointPosition, Durable, JobRecords
from edl.config import Config
from edl.errors import CoordinationError, EdlError, JobFailed, UsageError
from edl.events import Details, Event, JobFailedDetails, JobStoppedDetails, ResumedDetails
from edl.host.process import STOPPED_EXIT
from edl.http.client import ask_all
from edl.job.run import JobEnd, Preemption, halted, lookup_limit_s
from edl.job.script import Arithmetic, fits_of, passed_too_far
from edl.job.stall import SAVING
from edl.job.state_share import StateShare
from edl.records import Generation, JobState
from edl.spec import RESUME_AUTO, RESUME_NO, JobSettings, resume_directory
from edl.step.source import TrainingLength
from edl.text import ALONE, counted
from edl.worker.activity import waits
from edl.worker.coordinator import Coordinator
from edl.worker.progress import LoaderProgress, TrainingProgress
from edl.worker.shared_state import SharedState

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Load the state of a job from a checkpoint when its training begins: `JobStart`.
#
# Only the state source does this; it then sends the state to all other workers.
# :class:`Checkpointing <edl.worker.checkpointing.Checkpointing>` calls it, saves checkpoints, and
# records how the job ends.


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


ASKED = 8  # members of a ring that are named in its claim
ASK_S = 2.0  # for each to answer
FLUSH_S = 5.0  # for the last news to reach ZooKeeper

UNCHECKED = (
    "edl.checkpoint(sharded=True): rank 0 saves alone, because this job does not compare its "
    "workers' states (EDL_STATE_CHECK_STEPS=0), so nothing would show that parts differ"
)


def _members(generation: Generation) -> tuple[str, ...]:
    return tuple(f"{m.address}:{m.port}" for m in generation.members[:ASKED] if m.port)


class Checkpointing:
    """One worker's part in saving, resuming and ending its job; it runs in the training thread."""

    def __init__(
        self,
        config: Config,
        shared: SharedState,
        progress: LoaderProgress,
        coordinator: Coordinator,
    ) -> None:
        self._config = config
        self._shared = shared
        self.progress: TrainingProgress = progress  # saved only if edl's loader keeps the position
        self._loader = progress
        self._coordinator = coordinator
        self._checkpoints: Checkpoints | None = None
        self._logged: LoggedSteps | None = None
        self.replica: Durable | None = None  # None until the script declares what is to be saved
        self._generation = 0  # for events

    @property
    def saves(self) -> bool:
        """Whether the script has called `edl.checkpoint`, so that this job saves checkpoints."""
        return self._checkpoints is not None

    def attach(self, directory: Location, every_s: float, keep: int, sharded: bool = False) -> None:
        """Save checkpoints of the job into `directory` from now on."""
        if self._checkpoints is not None:
            raise UsageError("edl.checkpoint was called before; a job has one directory")
        if self._loader.has_state or self._loader.engine.is_open:
            raise UsageError("call edl.checkpoint before `for epoch in loader.epochs(n)`")
        if not every_s > 0:
            raise UsageError(f"edl.checkpoint: every_s is {every_s}; it must be positive")
        if keep < 1:
            raise UsageError(f"edl.checkpoint: keep is {keep}; it must be at least 1")
        one_process = isinstance(directory, RemotePath) and directory.is_of_one_process
        if one_process and self._coordinator.is_shared:
            raise UsageError(
                f"edl.checkpoint: {directory} lies in the memory of one process, which no other "
                "worker sees; give a directory that all hosts share, or a URL such as s3://..."
            )
        directory = directory.absolute()
        if sharded and not self.settings.state_check_steps:
            logger.warning("%s", UNCHECKED)
            sharded = False
        settings = CheckpointConfig(
            directory=directory,
            every_s=every_s,
            keep=keep,
            job=self._config.job or ALONE,
            run=self._coordinator.run,
            save_timeout_s=self.settings.save_timeout_s,
            resume_from=resumed_directory(self.settings, directory),
            or_begin=resumes_or_begins(self.settings),
            sharded=sharded,
            names_directory=resume_directory(self.settings.resume) is not None,
        )
        job = self._coordinator
        records = JobRecords(self._log_event, job.put_saved, job.policy.learned)
        checkpoints = Checkpoints(settings, records)
        checkpoints.check_directory()
        self._checkpoints = checkpoints
        self._logged = LoggedSteps(directory)

    @property
    def run(self) -> str:
        """The identifier of this start of the job."""
        return self._coordinator.run

    def logged(self) -> dict[str, int]:
        """Return up to which step the job was logged when it ran last, by the logged names."""
        return {} if self._logged is None else self._logged.read()

    def put_logged(self, names: str, step: int) -> None:
        """Keep beside the checkpoints that the numbers `names` were logged up to `step`."""
        if self._logged is not None:
            self._logged.put(names, step)

    @property
    def settings(self) -> JobSettings:
        """The settings of the job, as its launcher wrote them, once this worker has registered."""
        return self._coordinator.settings

    def begin(self, generation: Generation, warmed_up: bool) -> None:
        """On the state source, load the job's state from a checkpoint, or start the job afresh."""
        self._generation = generation.number
        start = JobStart(
            self._checkpoints, self.replica, self._loader, self._coordinator, self._shared
        )
        try:
            self._refuse_beside_living()
            found = start.restore(generation.state_source, warmed_up)
            # Of a later fit: the script passes over those before it, and this is called again.
            if found is not None and self._loader.later_fits:
                return
            # A model that has trained a warm-up batch cannot start afresh.
            if found is None and warmed_up:
                how = ", before it was saved" if self.saves else self.progress.without_checkpoint
                raise JobFailed(f"all workers died and the job's state with them{how}")
            if self._checkpoints is not None:
                self._checkpoints.writer.members = _members(generation)
                self._checkpoints.writer.take_over(generation.number)  # only this ring saves now
        except OwnerSuperseded:  # the job has not ended: it goes on in another ring
            raise
        except EdlError as error:
            self._end_job(str(error))
            raise
        if found is None and self._logged is not None:
            self._logged.forget()
        if found is not None:
            if found.manifest.learned:
                self._coordinator.policy.put_learned(found.manifest.learned)
            step = self.progress.step
            details, reason = start.describe(found, generation, step, warmed_up)
            self._log_event(details, step, reason)

    def _refuse_beside_living(self) -> None:
        """Raise UsageError if another job trains, and saves into the directory of this one."""
        if self._checkpoints is None:
            return
        config = self._checkpoints.writer.config
        if config.resume_from is None:
            return
        try:
            owner = owner_of(config.directory)
        except OSError:
            return  # the claim fails, too, and says so
        # A job of the same name that trains on is cut off from ZooKeeper: this one takes its place.
        if owner is None or owner.run == config.run or owner.job == config.job:
            return
        places = [one.rpartition(":") for one in owner.members]
        ports = {at: (host, int(port)) for at, (host, _, port) in enumerate(places)}
        for at, health in ask_all(ports, ASK_S).items():
            if health.report.get("run") == owner.run:
                raise UsageError(
                    f"job {owner.job} trains and saves into {config.directory} (it answers at "
                    f"{owner.members[at]}), so this one cannot resume there: end it first (edl "
                    f"stop {owner.job}), or give edl.checkpoint another directory and resume with "
                    f"--resume-from {config.directory}"
                )

    @property
    def _place(self) -> CheckpointPosition:
        return replace(self._loader.place, arithmetic=self._shared.arithmetic().to_json())

    def save_soon(self) -> None:
        """Make the next `save_if_due` save a checkpoint, however recent the last one is."""
        if self._checkpoints is not None:
            self._checkpoints.hasten()

    # --- while it trains

    def wants_parts(self, size: int) -> bool:
        """Return whether all `size` workers shall save parts of a checkpoint; rank 0 asks this."""
        return self._checkpoints is not None and self._checkpoints.wants_parts(size)

    def save_if_due(
        self, share: StateShare, generation: int, at_once: bool = False, parts: bool = False
    ) -> None:
        """Let rank 0 save a checkpoint at a boundary between two steps, when one is due."""
        if self._checkpoints is None or self.replica is None:
            return
        writer = self._checkpoints.writer
        if generation != writer.generation:
            writer.members = _members(self._shared.generation(generation))
        self._generation = writer.generation = generation
        if share.rank != 0:
            if parts:
                self._checkpoints.save_part(self._place, self.replica, share)
            return
        if writer.superseded:
            raise JobFailed(writer.superseded)
        # A SIGTERM without a launcher.
        if self._coordinator.leave_requested and not self._coordinator.is_shared:
            sys.exit(self._save_alone())
        try:
            # Copies the state; another thread writes the file.
            self._checkpoints.save_if_due(self._place, self.replica, at_once, share.size, parts)
        except EdlError as error:  # before the first step: later failures are only logged
            self._end_job(str(error))
            raise

    def save_now(self, rank: int, generation: int) -> None:
        """Let rank 0 save a checkpoint between two steps, however recent the one before is."""
        # Put off to the next boundary while another checkpoint is being written.
        self.save_if_due(StateShare(rank), generation, at_once=True)

    def distrust_parts(self) -> None:
        """Let rank 0 save the whole state at the next boundary: workers' states have differed."""
        if self._checkpoints is not None:
            self._checkpoints.distrust_parts()

    def _save_alone(self) -> int:
        """Save a last checkpoint in a job without a launcher; return the exit code."""
        within_s = self.settings.preempt_within_s
        if within_s is None:
            self.save_last()
            return STOPPED_EXIT
        self._shared.preempt("SIGTERM", within_s)
        end = self._halted(self.save_last())
        logger.warning("%s", end.reason)
        return end.exit_code

    # --- at the end

    @waits(SAVING)
    def save_last(self, size: int = 1) -> str:
        """Save a last checkpoint on rank 0, and wait until it is written; return why it was not."""
        if self._checkpoints is None or self.replica is None or not self._loader.has_state:
            return ""
        preemption, late = self._shared.preemption, ""
        if preemption is not None:
            late = f"it takes longer than the bound of {preemption.within_s:g} s allows"
        at, limit_s = self._place, self._save_limit_s
        return self._checkpoints.save_last(at, self.replica, limit_s, late, size)

    @property
    def _save_limit_s(self) -> float:
        """For how many seconds from now a checkpoint may be written before this worker ends."""
        preemption = self._shared.preemption
        if preemption is None:
            return self.settings.save_timeout_s
        return max(0.0, preemption.save_until_s - self._shared.clock.now_s())

    def save_stopped(self, share: StateShare, generation: int) -> None:
        """Save the last checkpoint of a job that stops; if it is preempted, record its end, too."""
        if self._checkpoints is not None:
            self._checkpoints.writer.generation = generation
        if share.rank != 0:
            if self._checkpoints is not None and self.replica is not None:
                limit_s = self._save_limit_s
                self._checkpoints.save_last_part(self._place, self.replica, share, limit_s)
            return
        unsaved = self.save_last(share.size)
        if self._shared.preemption is not None:
            end = self._halted(unsaved)
            step = self.progress.step
            event = Event(time.time(), self._generation, step, end.reason, JobStoppedDetails())
            self._coordinator.end_job(end, event)
            self._coordinator.flush(FLUSH_S)

    def _halted(self, unsaved: str) -> JobEnd:
        preemption = self._shared.preemption or Preemption("SIGTERM", 0.0, 0.0)
        cause, step = preemption.cause, self.progress.step
        if self._checkpoints is None:
            return halted(cause, step, -1, "", "the script does not call edl.checkpoint")
        limit_s = max(self._save_limit_s, lookup_limit_s(preemption.within_s))
        up_to = step if self._loader.has_state else None
        saved_step, directory = self._checkpoints.newest_saved(up_to, limit_s)
        return halted(cause, step, saved_step, directory, unsaved)

    def finish(self, end: JobEnd) -> str:
        """Save the last checkpoint on rank 0, before any worker records `end`; return why not."""
        unsaved = self.save_last()
        if unsaved:
            self.end_unsaved(end, unsaved)
        return unsaved

    def end_unsaved(self, end: JobEnd, unsaved: str) -> None:
        """Record that the job finished without its last checkpoint, with exit code 1."""
        reason = f"{end.reason}, but {unsaved}"
        self._coordinator.end_job(replace(end, reason=reason, exit_code=1))
        self._coordinator.flush(FLUSH_S)

    def wait_for_writes(self) -> None:
        """Wait for a checkpoint that is being written, at most `save_timeout_s` seconds."""
        if self._checkpoints is not None:
            self._checkpoints.writer.wait(self._save_limit_s)

    def fail(self, reason: str, error: type[JobFailed] = JobFailed) -> NoReturn:
        """End the job as failed for all workers, with the message `reason`."""
        self._end_job(reason)
        raise error(reason)

    @waits(SAVING)
    def fail_together(self, reason: str, rank: int) -> NoReturn:
        """End the job as failed after rank 0 has saved a checkpoint; all of the ring call it."""
        if rank == 0:
            self.save_last()
        elif self.saves:
            # The launchers kill all workers when a job has failed: rank 0 saves first.
            deadline = self._shared.clock.now_s() + self.settings.save_timeout_s + FLUSH_S
            self._shared.wait_for_end(deadline)
        self.fail(reason)

    def _end_job(self, reason: str) -> None:
        """Record that the job has failed: nobody waits for a ring then, or starts the job again."""
        step = self.progress.step
        event = Event(time.time(), self._generation, step, reason, JobFailedDetails())
        self._coordinator.end_job(JobEnd(JobState.FAILED, reason, exit_code=1), event)
        if not self._coordinator.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: %s", reason)

    def _log_event(self, details: Details, step: int, reason: str) -> None:
        self._shared.log(Event(time.time(), self._generation, step, reason, details))
