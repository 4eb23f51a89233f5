"""Save the durable state of a job regularly, and load it into a state source that has no state.

:class:`Checkpoints` does both, for a state that implements :class:`Durable`, by these rules:

1. All workers hold equal states between two steps, so one worker saves: rank 0, between two steps.
   The training thread copies the state; another thread writes the file.
2. A directory belongs to one training. A start of the job (*run*) reads the files that it wrote
   itself, and all files when it was told to resume. Otherwise it refuses to begin if there are
   files of another run: edl neither continues from them silently nor overwrites them.
3. The newest file is the one of the highest step. If a file is torn, damaged or foreign, a message
   says so, and the file before it is used.
4. A failed save is reported and has no other effect; the next save is tried at its usual time.
5. Only the newest ring that has begun in a directory writes there (:mod:`edl.checkpoint.owner`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from edl.checkpoint import format as files
from edl.checkpoint import unchanged
from edl.checkpoint.format import Checkpoint, Manifest, PackedState
from edl.checkpoint.location import Location, RemotePath, modified_s
from edl.checkpoint.owner import Owner, OwnerSuperseded, check_run, renew, take_over
from edl.checkpoint.resumable import check_source, nothing_to_resume
from edl.checkpoint.safetensors import nothing
from edl.checkpoint.unchanged import UnchangedTensors
from edl.core.events import (
    CheckpointDetails,
    CheckpointFailedDetails,
    CheckpointRefusedDetails,
    Details,
)
from edl.core.step.ledger import Ledger
from edl.core.step.source import Source
from edl.errors import CheckpointError, DataError, EdlError
from edl.mount_point import mount_point

logger = logging.getLogger(__name__)

LogEvent = Callable[[Details, int, str], None]  # what, step, reason
# Step, ledger, samples, gradient noise scale, global batch and script's seed of a checkpoint.
Resume = Callable[[int, Mapping[str, Any], int, Mapping[str, Any], int, int], None]


class Durable(Protocol):
    """The interface to copy and load the state that a checkpoint holds.

    The state is that of the model, the optimizer and the tracked objects.

    Attributes:
        framework: the name of the framework, which checkpoints record.
    """

    framework: str

    def capture(self) -> Any:
        """Return a copy of the state that later steps do not change; the training thread calls it.

        It has the form that :func:`edl.checkpoint.format.pack_state` takes.
        """

    def restore(self, state: Any) -> None:
        """Load ``state``, which :meth:`capture` returned, into the model, optimizer and objects.

        Raises:
            CheckpointError: if the state does not fit the script's model, optimizer or tracked
                objects.
        """


@dataclass(frozen=True)
class CheckpointPosition:
    """The job's position in its data, which a checkpoint stores with the job's state.

    Attributes:
        step: how many updates the job has made.
        source: the description of the training data.
        ledger: which positions of the epoch are done, leased and free, with the epoch's number.
        samples: how many samples the job has trained, over all epochs.
        noise: the estimate of the gradient noise scale, as JSON values; empty: none.
        fits: the finished calls of Keras' ``fit``, the first one first, each as the fields of an
            :class:`edl.core.job.fits.DoneFit` by name.
        seed: the seed that the script has given to its framework last, in a job with logical
            workers; -1: not known.
        arithmetic: what the last bits of rank 0's results depend on, as the fields of an
            :class:`edl.core.job.signature.Arithmetic` by name; empty: not known.
    """

    step: int
    source: Source
    ledger: Ledger
    samples: int
    noise: Mapping[str, Any] = field(default_factory=dict)
    fits: Sequence[Mapping[str, Any]] = ()
    seed: int = -1
    arithmetic: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class CheckpointConfig:
    """The settings of a job's checkpoints, as one start of the job has them.

    Attributes:
        directory: where checkpoints are written: a local directory, or one with a URL.
        every_s: seconds between the begins of two saves.
        keep: how many of the newest checkpoints are kept when a new one is written.
        job: the name of the job.
        run: the identifier of this start of the job.
        resume_from: a directory to continue from, ``directory`` or another one; None: the job was
            not told to resume.
        or_begin: whether the job begins afresh if ``resume_from`` has no file of a checkpoint; else
            that is an error. Damaged files, or another directory that is missing, are an error in
            any case.
    """

    directory: Location
    every_s: float
    keep: int
    job: str
    run: str
    resume_from: Location | None = None
    or_begin: bool = False


class Checkpoints:
    """An object that saves and restores one worker's state. Only the training thread may use it.

    Each worker has one. Call :meth:`check_directory`, in a state source without state
    :meth:`restore`, with each new ring :meth:`take_over`, and then, as rank 0, :meth:`save_if_due`.

    Args:
        config: the settings: the directory, the interval, and more.
        log: writes an event to the job's log, called as ``log(details, step, reason)``; called from
            the thread that writes a checkpoint, too.
        saved: called with the path of the directory and the step when a checkpoint is written (from
            the writing thread) or was restored (from the caller's).
        learned: returns the job's scaling profile (its measured throughput at each number of
            workers) as JSON values; called from the writing thread.

    Attributes:
        generation: the number of the generation of this worker's ring; 0 before :meth:`take_over`.
        superseded: why this ring must not save any more, as the writing thread has found before a
            save; empty: it has not found that.
    """

    def __init__(
        self,
        config: CheckpointConfig,
        log: LogEvent,
        saved: Callable[[str, int], None],
        learned: Callable[[], Mapping[str, Any]] = dict,
    ) -> None:
        self._config = config
        self._log = log
        self._saved = saved
        self._learned = learned
        self._last_step = -1  # of the last good file of this worker
        self._why_failed = "its last checkpoint was not written"
        self.generation = 0  # of the ring that saves
        self.superseded = ""  # why this ring must not save any more
        self._replaced: tuple[str, ...] = ()  # runs from which this one has the directory
        self._due_at: float | None = None
        self._writing: threading.Thread | None = None
        self._unchanged = UnchangedTensors(config.directory)

    def check_directory(self) -> None:
        """Create the directory of checkpoints, and check that files can be written into it.

        Raises:
            CheckpointError: if that fails.
        """
        directory = self._config.directory
        name = f".{id(self)}-{time.monotonic_ns()}.probe"
        try:
            if isinstance(directory, RemotePath):
                directory.make_directory()
                (directory / name).write_whole([b"edl"], nothing)
            else:
                directory.mkdir(parents=True, exist_ok=True)
                (directory / name).touch()
            (directory / name).unlink()
        except OSError as error:
            raise CheckpointError(
                f"edl.checkpoint: cannot write into {directory}: {error.strerror}; it must be a "
                "directory that all hosts of the job share"
            ) from error

    def take_over(self, generation: int) -> None:
        """Claim the directory of checkpoints for this worker's new ring.

        Older rings find the claim before their next save, and save no more.

        Args:
            generation: the number of the ring's generation.

        Raises:
            CheckpointError: if a later ring has claimed the directory, or the claim cannot be
                written into it.
        """
        self.generation = generation
        try:
            self._replaced = take_over(self._config.directory, self._owner).replaced
        except OSError as error:
            raise CheckpointError(
                f"edl.checkpoint: cannot write into {self._config.directory}: {error.strerror}"
            ) from error

    @property
    def _owner(self) -> Owner:
        """The ring that this worker is in, as the owner of the directory of checkpoints."""
        return Owner(self._config.job, self._config.run, self.generation, self._replaced)

    # --- restoring

    def restore(
        self,
        source: Source,
        replica: Durable,
        resume: Resume,
        fits: int = 0,
    ) -> Checkpoint | None:
        """Load the newest good checkpoint that this start of the job may read.

        It may read the checkpoints that it wrote itself, and all others in the directory that it
        was told to resume from. What it wrote itself comes first.

        Args:
            source: the description of the script's training data, which must be that of the
                checkpoint.
            replica: the model, optimizer and tracked objects to load the state into.
            resume: called, after the state is loaded, with the position that belongs to the
                checkpoint: step, ledger, samples, gradient noise scale, global batch (0: the job
                does not choose it) and the seed of the script.
            fits: how many calls of Keras' ``fit`` the script has done. If the checkpoint was made
                after more or fewer of them, it is returned, but its state is not loaded and
                ``resume`` is not called.

        Returns:
            The checkpoint; None for a fresh start: there is no checkpoint to read, and no file of
            another run.

        Raises:
            CheckpointError: if there is nothing to resume from (and ``or_begin`` is not set), if
                the directory has files of another run, or if the checkpoint is of another
                framework, model or data set, or another order of the data.
        """
        found = self._find()
        if found is None:
            return None
        if found.manifest.framework != replica.framework:
            raise CheckpointError(
                f"{found.path} is of a {found.manifest.framework} job, and this is a "
                f"{replica.framework} script"
            )
        check_source(found, source)
        if len(found.manifest.fits) != fits:
            return found
        try:
            replica.restore(found.state)
            about = found.manifest
            chosen = int(about.source.get("chosen", 0))
            resume(about.step, about.ledger, about.samples, about.noise, chosen, about.seed)
        except DataError as error:
            raise CheckpointError(f"{found.path} cannot be used: {error}") from error
        if found.path.parent == self._config.directory:
            self._last_step = found.manifest.step
            self._unchanged.restored(found)
        self._saved(str(found.path.parent), found.manifest.step)
        return found

    def _find(self) -> Checkpoint | None:
        """Return the newest good checkpoint to continue from; None for a fresh start.

        Checkpoints of another start of the job are read only in the directory that the job was told
        to resume from.

        Raises:
            CheckpointError: if there is nothing to resume from (and ``or_begin`` is not set), or if
                files of another run or damaged files keep a fresh start from using the directory.
        """
        config = self._config
        resumes_here = config.resume_from == config.directory
        found, refused, others = self._newest(config.directory, own_only=not resumes_here)
        if found is not None:
            return found
        if others and not resumes_here:
            hint = "`edl run --resume` (or EDL_RESUME=1) continues it"
            if config.resume_from is not None:
                hint = f"you resume from {config.resume_from}, which starts another one"
            raise CheckpointError(
                f"{config.directory} has checkpoints of another run ({others[0]}): {hint}; to "
                "start afresh choose another directory, or remove it"
            )
        if config.resume_from is not None and not resumes_here:
            if not config.resume_from.is_dir():
                raise CheckpointError(f"cannot resume: there is no directory {config.resume_from}")
            found, refused, _ = self._newest(config.resume_from, own_only=False)
        if found is None and config.resume_from is not None and not config.or_begin:
            raise nothing_to_resume(config.resume_from, refused)
        if found is None and refused:
            raise CheckpointError(
                f"{config.directory} has files in the way: {'; '.join(refused)}; remove them"
            )
        return found

    def _newest(
        self, directory: Location, own_only: bool
    ) -> tuple[Checkpoint | None, list[str], list[str]]:
        """Find the newest good checkpoint in a directory; log each damaged file before it.

        Args:
            directory: where to look.
            own_only: whether to skip files of other starts of the job.

        Returns:
            The checkpoint, or None if there is none; the reasons why newer files were refused; and,
            for each skipped file, its job and step as text.

        Raises:
            CheckpointError: if the directory cannot be listed.
        """
        refused: list[str] = []
        others: list[str] = []
        for path in files.checkpoint_files(directory):
            try:
                manifest = files.read_manifest(path)
                if own_only and manifest.run != self._config.run:
                    others.append(f"job {manifest.job}, step {manifest.step}")
                    continue
                return files.read_checkpoint(path), refused, others
            except CheckpointError as error:
                logger.warning("%s", error)
                self._log(CheckpointRefusedDetails(str(path)), 0, str(error))
                refused.append(str(error))
        return None, refused, others

    # --- saving

    def save_if_due(self, at: CheckpointPosition, replica: Durable, at_once: bool = False) -> None:
        """Save a checkpoint if ``every_s`` seconds have passed; rank 0 calls it between two steps.

        The state is copied before this returns, and written by another thread. The state before the
        first step is saved at once, unless this worker has read it from a checkpoint. Later saves
        follow every ``every_s`` seconds; a worker that becomes rank 0 counts them from the newest
        checkpoint. A save whose time comes while the one before is still being written is made at a
        later boundary.

        Args:
            at: the job's position.
            replica: the model, optimizer and tracked objects to save.
            at_once: whether to save in any case, however new the newest checkpoint is.

        Raises:
            CheckpointError: if the state before the first step cannot be stored. Later failures are
                only logged.
        """
        now = time.monotonic()
        if self._due_at is None:
            begins = at.step == 0 and self._last_step < 0
            if begins or self._last_step >= 0:  # the job begins, or it has resumed: nobody writes
                files.remove_leftovers(self._config.directory)
            self._due_at = now
            if not begins:
                self._due_at += self._config.every_s - self._age_of_newest()
        if at_once:
            self._due_at = -math.inf
        if now < self._due_at or (self._writing is not None and self._writing.is_alive()):
            return
        self._due_at = now + self._config.every_s
        self._save(at, replica)

    def hasten(self) -> None:
        """Make the next :meth:`save_if_due` save, however new the newest checkpoint is.

        It has no effect, also later, on a worker that has not called :meth:`save_if_due` yet: only
        rank 0, which saves, calls that method.
        """
        self._due_at = -math.inf if self._due_at is not None else None

    def _age_of_newest(self) -> float:
        """Return the seconds since the last save, from which a new rank 0 counts on.

        They are the age of the newest checkpoint in the directory, by this host's clock, cut to 0
        to ``every_s``. They are ``every_s`` if there is no checkpoint (save now), and 0 (save in
        ``every_s`` seconds) if the directory cannot be read. They are also 0, whatever the age, if
        this worker itself has read or written a checkpoint: it counts from now. If the new rank 0
        always counted from its own beginning, a job whose workers all live for less than
        ``every_s`` would never save. A difference between the clocks of two hosts shifts only this
        one save, by ``every_s`` at most.
        """
        if self._last_step >= 0:  # this worker has read it, or written it
            return 0.0
        try:
            newest = next(iter(files.checkpoint_files(self._config.directory)), None)
            age_s = time.time() - modified_s(newest) if newest is not None else math.inf
        except (CheckpointError, OSError):
            return 0.0
        return min(max(0.0, age_s), self._config.every_s)

    def save_last(
        self, at: CheckpointPosition, replica: Durable, timeout_s: float, late: str = ""
    ) -> str:
        """Save the state before the job ends, and wait until it is written.

        First a save that is still being written is waited for. Nothing more is saved if this worker
        has read or written the checkpoint of this step already.

        Args:
            at: the job's position.
            replica: the model, optimizer and tracked objects to save.
            timeout_s: how many seconds to wait for the writing at most, in all. If they are over
                before the state is copied, it is not copied.
            late: the clause that says that the time was too short; empty: the usual one.

        Returns:
            Why the checkpoint was not written, as a sentence, which is also logged; empty: it was.

        Raises:
            CheckpointError: if the state before the first step cannot be stored.
        """
        deadline = time.monotonic() + timeout_s
        in_time = self.wait_for_writes(timeout_s) and time.monotonic() < deadline
        if in_time and self._last_step != at.step:
            self._save(at, replica)
            in_time = self.wait_for_writes(deadline - time.monotonic())
        if not in_time and self._last_step != at.step:
            late = late or f"it takes longer than {timeout_s:g} s (EDL_SAVE_TIMEOUT_S)"
            self._failed(at.step, late)
        return "" if self._last_step == at.step else self._why_failed

    def newest_saved(self) -> tuple[int, str]:
        """Return the step and the directory of the newest checkpoint that a job can resume from.

        It is the newest one with an intact header, of this start of the job or another one; the
        step is -1 if there is none, or if the directory cannot be read.
        """
        directory = self._config.directory
        try:
            for path in files.checkpoint_files(directory):
                with suppress(CheckpointError):
                    return files.read_manifest(path).step, str(directory)
        except CheckpointError as error:
            logger.warning("%s", error)
        return -1, str(directory)

    def wait_for_writes(self, timeout_s: float) -> bool:
        """Wait, for at most ``timeout_s`` seconds, until no checkpoint is being written.

        Returns:
            True if no checkpoint is being written; False, after a warning in the log, if one still
            was when the time was up.
        """
        if self._writing is not None:
            self._writing.join(max(0.0, timeout_s))
            if self._writing.is_alive():
                logger.warning("a checkpoint is still being written after %.1f s", timeout_s)
                return False
        return True

    def _save(self, at: CheckpointPosition, replica: Durable) -> None:
        """Copy the state, start a thread that writes it into a file, and return without waiting.

        Args:
            at: the job's position.
            replica: the model, optimizer and tracked objects to save.

        Raises:
            CheckpointError: if the state before the first step cannot be stored; if that happens
                later, it is logged only.
        """
        began = time.monotonic()
        config, source = self._config, at.source
        manifest = Manifest(
            job=config.job,
            run=config.run,
            step=at.step,
            epoch=at.ledger.epoch,
            framework=replica.framework,
            source={
                "total": source.total,
                "seed": source.seed,
                "shuffle": source.shuffle,
                "batch_size": source.batch_size,
                "chosen": source.batching.chosen,
                "fingerprint": source.fingerprint,
            },
            ledger=at.ledger.snapshot(),
            saved_at=time.time(),
            samples=at.samples,
            noise=at.noise,
            fits=at.fits,
            seed=at.seed,
            arithmetic=at.arithmetic,
        )
        try:
            state = files.pack_state(replica.capture())
        except CheckpointError as error:
            if at.step == 0:
                raise
            self._failed(at.step, str(error))
            return
        capture_s = time.monotonic() - began
        self._writing = threading.Thread(
            target=self._write,
            args=(manifest, self._owner, state, capture_s),
            name="edl-checkpoint",
            daemon=True,
        )
        self._writing.start()

    def _failed(self, step: int, why: str, superseded: bool = False) -> None:
        """Log that a checkpoint was not written; keep the reason, for :meth:`save_last` to return.

        Args:
            step: the number of the step.
            why: the reason, as a clause.
            superseded: whether a newer ring writes checkpoints.
        """
        reason = f"the checkpoint of step {step} was not written: {why}"
        logger.warning("%s", reason)
        self._why_failed = reason
        directory = self._config.directory
        disk = "" if isinstance(directory, RemotePath) else mount_point(directory)
        self._log(CheckpointFailedDetails(str(directory), disk, superseded), step, reason)

    def _write(
        self, manifest: Manifest, owner: Owner, state: PackedState, capture_s: float
    ) -> None:
        """Write a checkpoint and remove old ones; this runs in its own thread, and logs a failure.

        If a newer ring has claimed the directory, nothing is written, and ``superseded`` is set.

        Args:
            manifest: the job's position, without what the job has learned, which is added.
            owner: the ring that saves, which claims the directory again.
            state: the state to write.
            capture_s: how many seconds the training thread took to copy the state, for the log.
        """
        began = time.monotonic()
        directory, step = self._config.directory, manifest.step
        path = files.path_of(directory, step)
        try:
            renew(directory, owner)
            manifest = replace(manifest, learned=self._learned())
            check = partial(check_run, directory, owner)
            records, aside = self._unchanged.set_aside(step, state, check)

            def check_all() -> None:
                """Check that this ring may write, and that no file is gone that is named."""
                check()
                unchanged.check_named(path, records)

            size = aside + files.write(path, manifest, state, check_all, records)
            write_s = time.monotonic() - began
            self._last_step = step
            self._saved(str(directory), step)
            files.prune(directory, step, self._config.keep)
            unchanged.remove_unreferenced(directory)
        except OwnerSuperseded as error:
            self.superseded = str(error)
            self._failed(step, str(error), superseded=True)
            return
        except EdlError as error:
            self._failed(step, str(error))
            return
        except OSError as error:
            self._failed(step, f"{error.strerror or error}: {error.filename or path}")
            return
        reason = (
            f"step {step} is in {path}: {size / 1e6:.1f} MB, training paused "
            f"{1000 * capture_s:.0f} ms, written in {write_s:.2f} s"
        )
        logger.info("%s", reason)
        self._log(CheckpointDetails(str(path), size, capture_s, write_s), step, reason)
