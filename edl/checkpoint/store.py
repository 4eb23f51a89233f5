"""Save the durable state of a job regularly, and load it into a state source that has no state.

:class:`Checkpoints` does both, for a state that implements :class:`Durable`, by these rules:

1. All workers hold equal states between two steps, so one worker saves: rank 0, between two steps.
   In a job that saves in parts, each saves a part then (:mod:`edl.checkpoint.format`), if all know
   from the records of the step before that rank 0 wants it; else rank 0 saves all.
2. A directory belongs to one training. A start of the job (*run*) reads the files that it wrote
   itself, and all files when it was told to resume. Otherwise it refuses to begin if there are
   files of another run: edl neither continues from them silently nor overwrites them.
3. The newest file is the one of the highest step. If a file is torn, damaged or foreign, a message
   says so, and the file before it is used.
4. A failed save is reported and has no other effect; the next save is tried at its usual time, or,
   after a failed one in parts, at once and by rank 0 alone.
5. Only the newest ring that has begun in a directory writes there (:mod:`edl.checkpoint.format`).
6. A file server that is away holds up no step for ever. From the first step on the training thread
   does not use the directory itself; other threads do, and it waits for them for a limited time.
   What a ring does before its first step (to check, read and claim the directory) has no limit.
"""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial

from edl.checkpoint import format as files
from edl.checkpoint.format import Checkpoint, Manifest
from edl.checkpoint.location import LOOK_S, Location, RemotePath, looked, modified_s, mount_point
from edl.checkpoint.safetensors import nothing
from edl.checkpoint.writer import (
    CheckpointConfig,
    CheckpointPosition,
    CheckpointWriter,
    Durable,
    JobRecords,
)
from edl.errors import CheckpointError, DataError
from edl.events import CheckpointRefusedDetails
from edl.job.state_share import WHOLE_STATE, StateShare
from edl.step.source import NO_FINGERPRINT, SUBSET, Source
from edl.text import is_given_name

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Check whether a checkpoint can be resumed: its data must be those of the script.
#
# `check_source` and `check_logical` compare them, and `check_resumable` looks for a checkpoint at
# all. `warn_of_another_job` compares the names of the jobs.

_OTHER = {
    "total": "a dataset of other size",
    "fingerprint": "other data",
    "seed": "another seed (of the data loader, or of its generator)",
    "shuffle": "another shuffle",
}


def check_source(found: Checkpoint, source: Source) -> None:
    """Check that a checkpoint's sample numbers mean the same samples in this script."""
    # The batch size may differ.
    for name, mine in (
        ("total", source.total),
        ("seed", source.seed),
        ("shuffle", source.shuffle),
        ("fingerprint", source.fingerprint),
    ):
        theirs = found.manifest.source.get(name, "")
        if name == "seed" and not source.needs_same_seed:
            continue
        if name == "fingerprint" and not theirs and SUBSET in source.fingerprint:
            continue  # an earlier edl knew nothing of a Subset's samples
        if theirs != mine:
            what = _OTHER[name]
            if name == "total" and isinstance(theirs, int):
                theirs, mine = source.describe_total(theirs), source.describe_total(source.total)
            theirs, mine = (NO_FINGERPRINT if value == "" else value for value in (theirs, mine))
            raise CheckpointError(
                f"{found.path} was trained with {what}: {theirs} there, {mine} in this script; "
                "a checkpoint continues with the same samples in the same order only"
            )


def check_logical(found: Checkpoint, source: Source, names_directory: bool) -> None:
    """Raise CheckpointError for another number of logical workers, unless the user insists."""
    before, now = found.manifest.source.get("logical"), source.batching.logical
    if before is None or before == now:  # an older edl has not saved the number
        return
    samples = found.manifest.source["batch_size"], source.batch_size
    there, here = (
        f"--logical {logical} ({batch} samples in a step)" if logical else "no logical workers"
        for logical, batch in zip((before, now), samples, strict=True)
    )
    changed = f"{found.path} was trained with {there}, and this start has {here}"
    if names_directory:
        logger.warning("%s: the job goes on with these", changed)
        return
    same = f"give --logical {before}" if before else "leave out --logical"
    raise CheckpointError(
        f"cannot resume: {changed}; {same}, or insist on it by --resume-from {found.path.parent} "
        "in place of --resume"
    )


def warn_of_another_job(found: Checkpoint, job: str) -> None:
    """Warn of a checkpoint of another given name: a sweep may share a directory by mistake."""
    before = found.manifest.job
    if job != before and is_given_name(job) and is_given_name(before):
        logger.warning(
            "job %s goes on from a checkpoint of job %s, %s, and saves there from now on "
            "(--resume=auto), and job %s cannot save there any more: if these are two trainings, "
            "stop this one, and give each a directory of its own",
            *(job, before, found.path, before),
        )


def check_resumable(directory: Location) -> None:
    """Check that `directory` has a checkpoint to resume from, reading only headers of files."""
    refused: list[str] = []
    for path in files.checkpoint_files(directory):
        try:
            files.read_manifest(path)
        except CheckpointError as error:
            refused.append(str(error))
        else:
            return
    raise nothing_to_resume(directory, refused)


def nothing_to_resume(directory: Location, refused: Sequence[str]) -> CheckpointError:
    why = f"; refused: {'; '.join(refused)}" if refused else ""
    return CheckpointError(
        f"cannot resume: there is no checkpoint in {directory}{why}; start without --resume to "
        "begin afresh"
    )


# ------------------------------------------------------------
# Keep beside a job's checkpoints up to which step its log was written (`LoggedSteps`).
#
# A job that continues from a checkpoint trains some steps again. By this file it does not log them
# again.

FILE = "logged.json"


class LoggedSteps:
    """The highest logged step by series, in the file `logged.json` of a checkpoint directory."""

    # In a directory with a URL nothing is kept: a write there would hold up the training.

    def __init__(self, directory: Location) -> None:
        self._path = None if isinstance(directory, RemotePath) else directory / FILE
        self._told = False
        self._lock = threading.Lock()
        self._unwritten: dict[str, int] = {}
        self._is_writing = False

    def read(self) -> dict[str, int]:
        if self._path is None:
            return {}
        if (found := looked(self._read, LOOK_S, otherwise=None)) is None:
            self._tell(f"{self._path} was not read in {LOOK_S:g} s")
        return found or {}

    def put(self, series: str, step: int) -> None:
        if self._path is None:
            return
        # While one write waits for a file server, later ones wait for nothing.
        with self._lock:
            self._unwritten[series] = step
            waits = self._is_writing
            self._is_writing = True
        if not waits and not looked(self._write_all, LOOK_S, otherwise=False):
            self._tell(f"{self._path} was not written in {LOOK_S:g} s")

    def forget(self) -> None:
        """Remove the file, as a job that starts afresh logs from its first step."""
        if self._path is None:
            return
        try:
            self._path.unlink(missing_ok=True)
        except OSError as error:
            logger.warning("steps of this job may not be logged: %s", error)

    def _read(self) -> dict[str, int]:
        assert self._path is not None
        try:
            found = json.loads(self._path.read_text(encoding="utf-8"))
            return {str(name): int(step) for name, step in found.items()}
        except (OSError, ValueError, AttributeError, TypeError):
            return {}

    def _write_all(self) -> bool:
        """Write the file until nothing is left to be written; return True."""
        while True:
            with self._lock:
                steps, self._unwritten = self._unwritten, {}
                if not steps:
                    self._is_writing = False
                    return True
            self._write(steps)

    def _write(self, steps: Mapping[str, int]) -> None:
        assert self._path is not None
        partial = self._path.with_name(f".{FILE}.{os.getpid()}")
        try:
            partial.write_text(json.dumps({**self._read(), **steps}), encoding="utf-8")
            partial.rename(self._path)
        except OSError as error:
            self._tell(str(error))

    def _tell(self, why: str) -> None:
        if not self._told:
            logger.warning("steps may be logged twice after a restart of the job: %s", why)
        self._told = True


class Checkpoints:
    def __init__(self, config: CheckpointConfig, records: JobRecords) -> None:
        self._config = config
        self._records = records
        self._due_at: float | None = None
        self._refused = set[Location]()  # checkpoints that are not intact
        self.writer = CheckpointWriter(config, records)  # in a thread of its own

    def check_directory(self) -> None:
        directory = self._config.directory
        name = f".{id(self)}-{time.monotonic_ns()}.probe"
        try:
            if isinstance(directory, RemotePath):
                directory.make_directory()
                (directory / name).write_whole([b"edl"], nothing)
            else:
                directory.mkdir(parents=True, exist_ok=True)
                (directory / name).touch()
                self.writer.disk = mount_point(directory)
            (directory / name).unlink()
        except OSError as error:
            raise CheckpointError(
                f"edl.checkpoint: cannot write into {directory}: {error.strerror}; it must be a "
                "directory that all hosts of the job share"
            ) from error

    # --- restoring

    def restore(
        self,
        source: Source,
        replica: Durable,
        resume: Callable[[Manifest], None],
        fits: int = 0,
    ) -> Checkpoint | None:
        """Load the newest good checkpoint; with another number of `fits` it is only returned."""
        found = self._find()
        if found is None:
            return None
        if found.manifest.framework != replica.framework:
            raise CheckpointError(
                f"{found.path} is of a {found.manifest.framework} job, and this is a "
                f"{replica.framework} script"
            )
        check_source(found, source)
        check_logical(found, source, self._config.names_directory)
        if len(found.manifest.fits) != fits:
            return found
        try:
            replica.restore(found.state)
            resume(found.manifest)
        except DataError as error:
            raise CheckpointError(f"{found.path} cannot be used: {error}") from error
        if self._config.or_begin:
            warn_of_another_job(found, self._config.job)
        if found.path.parent == self._config.directory:
            self.writer.restored(found)
        self._records.saved(str(found.path.parent), found.manifest.step)
        return found

    def _find(self) -> Checkpoint | None:
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
                self._records.log(CheckpointRefusedDetails(str(path)), 0, str(error))
                refused.append(str(error))
                self._refused.add(path)
        return None, refused, others

    # --- saving

    def wants_parts(self, size: int) -> bool:
        may_begin = self._in_parts(size) and not self.writer.is_writing
        return may_begin and self._due_at is not None and self._is_due(self._due_at)

    def _in_parts(self, size: int) -> bool:
        return self._config.sharded and size > 1 and not self.writer.parts_failed

    def _is_due(self, due_at: float) -> bool:
        return time.monotonic() >= due_at or self.writer.parts_failed

    def distrust_parts(self) -> None:
        """Let rank 0 save all at the next boundary: states differed, and parts may mix them."""
        self.writer.parts_failed = self._config.sharded

    def save_part(self, at: CheckpointPosition, replica: Durable, share: StateShare) -> None:
        """Save this worker's part of a checkpoint, which all workers have agreed on; not rank 0."""
        # Else there is no checkpoint this time.
        if not self.writer.is_writing:
            self.writer.save(at, replica, share)

    def save_if_due(
        self,
        at: CheckpointPosition,
        replica: Durable,
        at_once: bool = False,
        size: int = 1,
        agreed: bool = False,
    ) -> None:
        """Save if `every_s` have passed, as rank 0 between steps: copy now, write in a thread."""
        now = time.monotonic()
        if self._due_at is None:
            begins = at.step == 0 and self.writer.last_step < 0
            # The job begins, or it has resumed just now: nobody writes.
            if begins or self.writer.last_step == at.step:
                files.remove_leftovers(self._config.directory)
            self._due_at = now
            if not begins:
                self._due_at += self._config.every_s - self._age_of_newest()
        if at_once:
            self._due_at = -math.inf
        if not self._is_due(self._due_at):
            return
        if self.writer.is_writing:
            limit_s = max(self._config.every_s, self._config.save_timeout_s)
            self.writer.failed_if_slow(at.step, limit_s)
            return
        in_parts = self._in_parts(size) and at.step > 0 and not at_once
        if in_parts and not agreed:
            return  # it stays due, and the next record says that
        self._due_at = now + self._config.every_s
        self.writer.save(at, replica, StateShare(0, size) if in_parts else WHOLE_STATE)

    def hasten(self) -> None:
        self._due_at = -math.inf if self._due_at is not None else None

    def _age_of_newest(self) -> float:
        """Return the seconds since the last save, from which a new rank 0 counts on."""

        def look() -> float:
            try:
                newest = next(iter(files.checkpoint_files(self._config.directory)), None)
                return time.time() - modified_s(newest) if newest is not None else math.inf
            except (CheckpointError, OSError):
                return 0.0

        # Else a job whose workers all live for less than `every_s` would never save. Clocks that
        # differ shift this one save only.
        if self.writer.last_step >= 0:  # this worker has read it, or written it
            return 0.0
        return min(max(0.0, looked(look, LOOK_S, otherwise=0.0)), self._config.every_s)

    def save_last_part(
        self, at: CheckpointPosition, replica: Durable, share: StateShare, timeout_s: float
    ) -> None:
        if self._config.sharded and self.writer.wait(timeout_s):
            self.writer.save(at, replica, share)

    def save_last(
        self,
        at: CheckpointPosition,
        replica: Durable,
        timeout_s: float,
        late: str = "",
        size: int = 1,
    ) -> str:
        """Save before the job ends, and wait till it is written; return why it was not, or ""."""
        writer, deadline = self.writer, time.monotonic() + timeout_s
        writer.hurry()
        in_time = writer.wait(timeout_s) and time.monotonic() < deadline
        if in_time and writer.last_step != at.step and self._in_parts(size):
            left_s = deadline - time.monotonic()
            writer.save(at, replica, StateShare(0, size), left_s)
            in_time = writer.wait(left_s)
        if in_time and writer.last_step != at.step:
            writer.save(at, replica)
            in_time = writer.wait(deadline - time.monotonic())
        if not in_time and writer.last_step != at.step:
            late = late or f"it takes longer than {timeout_s:g} s (EDL_SAVE_TIMEOUT_S)"
            writer.failed(at.step, late)
        return "" if writer.last_step == at.step else writer.why_failed

    def newest_saved(self, step: int | None, limit_s: float) -> tuple[int | None, str]:
        """Return the step (-1: none; None: not known) and directory of the newest checkpoint."""
        # One of another start may have been refused as damaged: of an earlier step, it counts only
        # if this worker has restored and written none.
        known, directory = self.writer.last_step, str(self._config.directory)
        if known == step:
            return known, directory
        found = looked(partial(self._look_for_newest, step), limit_s, otherwise=None)
        if found is None and known >= 0:
            found = known
        return found, directory

    def _look_for_newest(self, step: int | None) -> int | None:
        known, limit = self.writer.last_step, math.inf if step is None else step
        others: list[int] = []  # steps of checkpoints of other starts
        try:
            for path in files.checkpoint_files(self._config.directory):
                if files.step_of(path) > limit or path in self._refused:
                    continue
                with suppress(CheckpointError):
                    found = files.read_manifest(path)
                    if found.run == self._config.run:
                        return max(known, found.step)
                    others.append(found.step)
        except CheckpointError as error:
            logger.warning("%s", error)
            return None
        if known >= 0:
            return known
        return None if step in others else max(others, default=-1)
