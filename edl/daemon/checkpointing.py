"""How a job begins, is saved, and ends for good: what its workers do about state on disk.

A job begins afresh, from a checkpoint that the user asked for, or, when all workers have died,
from the newest one of its own. Only the sync root looks: its state then goes to all others.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from edl.checkpoint.format import Checkpoint
from edl.checkpoint.store import CheckpointConfig, Checkpoints, Durable
from edl.config import Config
from edl.core.job_spec import JobSettings
from edl.core.records import Event, Generation, JobState
from edl.daemon.daemon import Daemon
from edl.daemon.mailbox import Mailbox
from edl.daemon.progress import TrainingProgress
from edl.errors import CoordinationError, EdlError, JobFailed, UsageError

logger = logging.getLogger(__name__)

FLUSH_S = 5.0  # for the last news to reach ZooKeeper
ALONE = "alone"  # the job name of a script without a launcher
_NO = ("", "0", "no", "false")
_YES = ("1", "yes", "true")


class Checkpointing:
    """One worker's part in it. Runs in the training thread; without a daemon in a job of one."""

    def __init__(
        self, config: Config, mailbox: Mailbox, position: TrainingProgress, daemon: Daemon | None
    ) -> None:
        self._config = config
        self._mailbox = mailbox
        self._progress = position
        self._daemon = daemon
        self._checkpoints: Checkpoints | None = None
        self.replica: Durable | None = None
        self.stop_requested = False  # by SIGTERM, in a job of one
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
        if self._progress.has_state or self._progress.open:
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
            run=self._daemon.run if self._daemon is not None else uuid.uuid4().hex,
            resume_from=self._resume_from(resume, directory),
        )
        saved = self._daemon.put_saved if self._daemon is not None else lambda _path, _step: None
        checkpoints = Checkpoints(settings, self._tell, saved)
        checkpoints.check_directory()
        self._checkpoints = checkpoints

    @staticmethod
    def _resume_from(resume: str, directory: Path) -> Path | None:
        if resume.lower() in _NO:
            return None
        if resume.lower() in _YES:
            return directory
        return Path(resume).absolute()

    @property
    def settings(self) -> JobSettings:
        """What the job is asked to be; in an elastic one as ZooKeeper has it, once it was read."""
        return self._config.job_settings if self._daemon is None else self._daemon.settings

    def begin(self, generation: Generation | None, warmed_up: bool) -> None:
        """This worker is to bring the job's state and has none: load it, or start afresh.

        ``warmed up``: its model has trained a batch for nothing, so it cannot start afresh.

        Raises:
            CheckpointError, UsageError: what was asked for cannot be resumed.
            JobFailed: nobody is left who holds the state, and none was saved.
        """
        self._generation = generation.number if generation is not None else 0
        try:
            found = self._restore()
            if found is None and warmed_up:
                how = ", and nothing was saved: call edl.checkpoint(directory) in the script"
                if self.saves:
                    how = ", before it was saved"
                elif self._progress.scripted:
                    how = "; start the job again from the script's own checkpoint"
                raise JobFailed(f"all workers died and the job's state with them{how}")
        except EdlError as error:
            self._end_job(str(error))
            raise
        if found is not None:
            self._tell_resumed(generation, found, warmed_up)

    def _restore(self) -> Checkpoint | None:
        if self._checkpoints is not None:
            if self.replica is None:
                raise UsageError("create an edl.Optimizer before `for epoch in loader.epochs(n)`")
            position = self._progress
            return self._checkpoints.restore(position.source, self.replica, position.resume)
        if self.settings.resume.strip().lower() not in _NO:
            raise UsageError("cannot resume: the script does not call edl.checkpoint(directory)")
        return None

    def _tell_resumed(
        self, generation: Generation | None, found: Checkpoint, warmed_up: bool
    ) -> None:
        step = self._progress.step
        details: dict[str, object] = {"path": str(found.path)}
        reason = f"resumed from step {step}"
        if warmed_up and generation is not None and self._daemon is not None:
            with contextlib.suppress(CoordinationError):
                lost = details["lost_steps"] = max(0, self._daemon.last_step() - step)
                reason += f", at least {lost} {'step' if lost == 1 else 'steps'} lost"
            reason = f"all {len(generation.left)} workers died; {reason}"
        else:
            reason += f" of job {found.manifest.job}: {found.path}"
        logger.info("%s", reason)
        self._tell("resumed", step, reason, details)

    # --- while it trains

    def save_if_due(self, rank: int, generation: int) -> None:
        """At a boundary: rank 0 saves when it is time.

        In a job of one, a SIGTERM ends the process here (SystemExit 0), with all saved.

        Raises:
            CheckpointError: the script's state is nothing that can be saved; at the first step.
        """
        if self._checkpoints is None or self.replica is None or rank != 0:
            return
        self._generation = generation
        if self.stop_requested:
            self.save_last()
            raise SystemExit(0)
        try:
            at = self._progress
            self._checkpoints.save_if_due(at.step, at.source, at.ledger, self.replica)
        except EdlError as error:
            self._end_job(str(error))
            raise

    # --- at the end

    def save_last(self) -> None:
        """Save before the end, if this job saves and this worker has a state; bounded in time."""
        if self._checkpoints is None or self.replica is None or not self._progress.has_state:
            return
        at, timeout_s = self._progress, self.settings.save_timeout_s
        self._checkpoints.save_last(at.step, at.source, at.ledger, self.replica, timeout_s)

    def settle(self) -> None:
        """Let a checkpoint that is being written come to its end; bounded in time."""
        if self._checkpoints is not None:
            self._checkpoints.settle(self.settings.save_timeout_s)

    def fail(self, reason: str, error: type[JobFailed] = JobFailed) -> NoReturn:
        """End the job as failed, for all."""
        self._end_job(reason)
        raise error(reason)

    def _end_job(self, reason: str) -> None:
        """Let the job have failed, so that nobody waits for it or starts it again."""
        if self._daemon is None:
            return
        step = self._progress.step
        event = Event(time.time(), "job_failed", self._generation, step, reason)
        self._daemon.end_job(JobState.FAILED, reason, event)
        if not self._daemon.flush(FLUSH_S):
            logger.warning("the end of the job could not be recorded: %s", reason)

    def _tell(self, kind: str, step: int, reason: str, details: Mapping[str, object]) -> None:
        if self._daemon is not None:
            self._mailbox.log(Event(time.time(), kind, self._generation, step, reason, details))
