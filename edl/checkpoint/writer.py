"""Write the checkpoints of one worker, each in a thread of its own: :class:`CheckpointWriter`.

The training thread copies the state; another thread writes it. Either rank 0 writes the whole
state, or each worker of the ring writes a part of it (:mod:`edl.checkpoint.format`). Then rank 0
waits for all parts before it writes the checkpoint, which names them.
"""

from __future__ import annotations

import logging
import threading
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Protocol

from edl.checkpoint import format as files
from edl.checkpoint.format import (
    Checkpoint,
    Manifest,
    Owner,
    OwnerSuperseded,
    PackedState,
    PartMissing,
    PartPlace,
    check_run,
    gather_parts,
    named_parts,
    remove_parts,
    renew,
    take_over,
    write_part,
)
from edl.checkpoint.location import Location, file_bytes
from edl.checkpoint.safetensors import nothing, serialized, write_whole
from edl.checkpoint.tensors import UNCHANGED, TensorRecord, named_files
from edl.errors import CheckpointError, EdlError
from edl.events import CheckpointDetails, CheckpointFailedDetails, Details
from edl.job.state_share import WHOLE_STATE, StateShare, parts_limit_s
from edl.step.ledger import Ledger
from edl.step.source import NO_LENGTH, Source, TrainingLength

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Write tensors that do not change once, and not into each checkpoint.
#
# A model that is fine-tuned has most of its weights frozen. `UnchangedTensors` compares each
# checkpoint with the one before by checksums: tensors that are equal in both go into a file of
# their own, `unchanged-NNNNNNNNNNNN-XXXXXXXX.safetensors`, and this checkpoint and the later ones
# name that file in place of the data, as long as the tensors stay as they are. Rules:
#
# 1. Such a file is written once, under a name that no other file gets, and never changed.
# 2. A worker names, for the tensors that it saves, only files that it has written itself, or that
#    belong to the checkpoint from which it has restored the state, whose every byte was checked. A
#    worker that has neither restored nor saved begins with a whole checkpoint, or a whole part.
# 3. A checkpoint gets its name only while all files that it names are there (`check_named`).
# 4. A file goes when no checkpoint names it, and all checkpoints are newer than it
#    (`remove_unreferenced`).

LEAST = 1 << 20  # bytes of tensors; for fewer no file is written


class UnchangedTensors:
    """The tensors of the newest checkpoint that one worker has written or read in a directory."""

    def __init__(self, directory: Location) -> None:
        self._directory = directory
        self._step = -1  # of that checkpoint; -1: there is none
        self._before: Mapping[str, TensorRecord] = {}

    def restored(self, checkpoint: Checkpoint) -> None:
        """Note that this worker has read `checkpoint`, every byte of it, from the directory."""
        self._step, self._before = checkpoint.manifest.step, checkpoint.tensors

    def set_aside(
        self, step: int, state: PackedState, check: Callable[[], None] = nothing
    ) -> tuple[Mapping[str, TensorRecord], int]:
        """Write tensors that are as in the checkpoint before into a file of their own, once."""
        before = self._before if self._step < step else {}
        kept = {name for name in files.names_in(self._directory) if UNCHANGED.fullmatch(name)}
        found, fresh = dict[str, TensorRecord](), list[str]()
        for name, blob in state.blobs.items():
            record = found[name] = TensorRecord.of(blob)
            if (former := before.get(name)) is not None and record.is_unchanged(former):
                if former.file in kept:
                    found[name] = former
                elif blob.data.nbytes:
                    fresh.append(name)
        size = 0
        blobs = {name: state.blobs[name] for name in fresh}
        if sum(blob.data.nbytes for blob in blobs.values()) >= LEAST:
            path = self._directory / f"unchanged-{step:012d}-{uuid.uuid4().hex[:8]}.safetensors"
            size = write_whole(path, serialized(blobs, {}), check)
            found |= {name: replace(found[name], file=path.name) for name in fresh}
        self._step, self._before = step, found
        return found, size


def check_named(path: Location, records: Mapping[str, TensorRecord]) -> None:
    for other in named_files(path, records):
        file_bytes(other)


def remove_unreferenced(directory: Location) -> None:
    found = {name: UNCHANGED.fullmatch(name) for name in files.names_in(directory)}
    # A worker of an earlier ring may be about to name a file if a checkpoint of its step or an
    # earlier one is there, and one that cannot be read may name any.
    steps = {name: int(match[1]) for name, match in found.items() if match is not None}
    if not steps:
        return
    named, oldest = set[str](), None
    try:
        for path in files.checkpoint_files(directory):
            named |= {record.file for record in files.read_records(path).values()}
            oldest = files.step_of(path)
    except CheckpointError:
        return
    for name, step in steps.items():
        if name not in named and oldest is not None and step < oldest:
            (directory / name).unlink(missing_ok=True)


# ------------------------------------------------------------
# Define what a checkpoint saves: the state, the job's position in its data, and the settings.


@dataclass(frozen=True)
class JobRecords:
    """The job's records that saving and restoring use, as functions, for any thread."""

    log: Callable[[Details, int, str], None]  # (details, step, reason)
    # the directory and step of a checkpoint that was written or restored
    saved: Callable[[str, int], None]
    learned: Callable[[], Mapping[str, Any]] = dict  # the scaling profile, as JSON


class Durable(Protocol):
    framework: str  # which checkpoints record

    def capture(self, share: StateShare = WHOLE_STATE) -> Any:
        """Return a copy, for `pack_state`, of a part of the state; in the training thread."""

    def restore(self, state: Any) -> None:
        """Load `state`, which `capture` returned, into the model, optimizer and objects."""


@dataclass(frozen=True)
class CheckpointPosition:
    """The job's position in its data, which a checkpoint stores with the job's state."""

    step: int  # updates that the job has made
    source: Source
    ledger: Ledger  # of the epoch
    samples: int  # trained over all epochs
    # the gradient noise scale, as JSON; empty: none
    noise: Mapping[str, Any] = field(default_factory=dict)
    fits: Sequence[Mapping[str, Any]] = ()  # calls of Keras' `fit`, as fields of `DoneFit`
    seed: int = -1  # given last to the framework, with logical workers; -1: not known
    fit_stopped: str = ""  # why callbacks have stopped the call of `fit` that has ended; else empty
    # fields of `Arithmetic`; empty: not known
    arithmetic: Mapping[str, Any] = field(default_factory=dict)
    length: TrainingLength = NO_LENGTH
    batches: Sequence[tuple[int, int]] = ()  # of the global batch: (first update with it, samples)


@dataclass(frozen=True)
class CheckpointConfig:
    directory: Location  # where checkpoints are written
    every_s: float  # between the begins of two saves
    keep: int  # the newest ones
    job: str
    run: str  # this start of the job
    save_timeout_s: float  # for the last checkpoint before an end
    resume_from: Location | None = None  # `directory` or another one; None: it does not resume
    # begin afresh if `resume_from` has no checkpoint; damaged files are an error in any case
    or_begin: bool = False
    sharded: bool = False  # each worker saves a part of the state
    names_directory: bool = False  # the user has named `resume_from` (`--resume-from`)


@dataclass(frozen=True)
class _Copy:
    manifest: Manifest  # without what the job has learned, which is added
    owner: Owner  # the ring that saves
    state: PackedState  # what this worker writes of it
    share: StateShare
    capture_s: float  # that the training thread took to copy it
    last_s: float | None  # for the last checkpoint of the job; None: it is not that


class CheckpointWriter:
    """The part of a worker that writes checkpoints. Only the training thread may use it."""

    def __init__(self, config: CheckpointConfig, records: JobRecords) -> None:
        self.config = config
        self._records = records
        self.generation = 0  # of this worker's ring; 0 before `take_over`
        self.members: tuple[str, ...] = ()  # of the ring, where they answer
        self.superseded = ""  # why this ring must not save any more, as the thread has found
        # the newest that this worker has written, or read in the directory; -1: none
        self.last_step = -1
        self.why_failed = "its last checkpoint was not written"  # why the last one was not
        self.disk = ""  # its mount point; empty: not known, or no disk
        # the last one in parts was not written or is not to be trusted, till the next `save`
        self.parts_failed = False
        self._replaced: tuple[str, ...] = ()  # runs from which this one has the directory
        self._writing: threading.Thread | None = None
        self._begun = (-1, 0.0)  # the step of the last save, and when it began
        self._is_slow = False  # that is told
        self._unchanged = UnchangedTensors(config.directory)
        self._hurry = threading.Event()  # no part is waited for any more
        self._last_part: tuple[int, Location] | None = None  # step and file

    def take_over(self, generation: int) -> None:
        self.generation = generation
        try:
            self._replaced = take_over(self.config.directory, self._owner).replaced
        except OSError as error:
            raise CheckpointError(
                f"edl.checkpoint: cannot claim {self.config.directory}: {error.strerror}"
            ) from error

    def restored(self, found: Checkpoint) -> None:
        self.last_step = found.manifest.step
        self._unchanged.restored(found)

    @property
    def _owner(self) -> Owner:
        config = self.config
        return Owner(config.job, config.run, self.generation, self._replaced, self.members)

    @property
    def is_writing(self) -> bool:
        return self._writing is not None and self._writing.is_alive()

    def save(
        self,
        at: CheckpointPosition,
        replica: Durable,
        share: StateShare = WHOLE_STATE,
        last_s: float | None = None,
    ) -> None:
        """Copy the state, start a thread that writes it into a file, and return without waiting."""
        began = time.monotonic()
        self.parts_failed = False
        config, source = self.config, at.source
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
                "logical": source.batching.logical,
                "fingerprint": source.fingerprint,
            },
            ledger=at.ledger.snapshot(),
            saved_at=time.time(),
            samples=at.samples,
            noise=at.noise,
            fits=at.fits,
            seed=at.seed,
            arithmetic=at.arithmetic,
            fit_stopped=at.fit_stopped,
            length=at.length.to_json(),
            batches=at.batches,
        )
        try:
            state = files.pack_state(replica.capture(share))
            if at.step == 0:
                files.check_plain_values(state)
        except CheckpointError as error:
            if at.step == 0:
                raise
            if share.rank == 0:
                self.failed(at.step, str(error))
            else:
                self._part_failed(at.step, share, str(error))
            return
        capture_s = time.monotonic() - began
        self._begun, self._is_slow = (at.step, time.monotonic()), False
        self._hurry.clear()
        self._writing = threading.Thread(
            target=self._write if share.rank == 0 else self._write_part,
            args=(_Copy(manifest, self._owner, state, share, capture_s, last_s),),
            name="edl-checkpoint",
            daemon=True,
        )
        self._writing.start()

    def wait(self, timeout_s: float) -> bool:
        if self._writing is not None:
            self._writing.join(max(0.0, timeout_s))
            if self._writing.is_alive():
                logger.warning("a checkpoint is still being written after %.1f s", timeout_s)
                return False
        return True

    def hurry(self) -> None:
        """Give up a checkpoint in parts that is being written, unless all parts are there."""
        self._hurry.set()

    def failed(self, step: int, why: str, superseded: bool = False) -> None:
        reason = f"the checkpoint of step {step} was not written: {why}"
        logger.warning("%s", reason)
        self.why_failed = reason
        details = CheckpointFailedDetails(str(self.config.directory), self.disk, superseded)
        self._records.log(details, step, reason)

    def failed_if_slow(self, step: int, limit_s: float) -> None:
        """Report once that `step` is not saved, if the save before it takes too long."""
        before, began_s = self._begun
        taken_s = time.monotonic() - began_s
        if taken_s >= limit_s and not self._is_slow:
            self._is_slow = True
            why = f"that of step {before} has been written for {taken_s:.0f} s, and is not complete"
            self.failed(step, why)

    # --- in the writing thread

    def _write(self, copy: _Copy) -> None:
        began, share, state = time.monotonic(), copy.share, copy.state
        directory, step = self.config.directory, copy.manifest.step
        path = files.path_of(directory, step)
        try:
            renew(directory, copy.owner)
            manifest = replace(copy.manifest, learned=self._records.learned())
            check = partial(check_run, directory, copy.owner)
            records, besides = self._unchanged.set_aside(step, state, check)
            if not share.is_whole:
                place = PartPlace.of(directory, step, copy.owner, share.size)
                besides += write_part(place.path(0), state, records, check)
                limit_s = parts_limit_s(share.size, time.monotonic() - began, copy.last_s)
                others = gather_parts(place, state.elsewhere, limit_s, self._hurry)
                besides += sum(one.size for one in others.values())
                records = named_parts(place, records, others)

            def check_all() -> None:
                check()
                check_named(path, records)

            size = besides + files.write(path, manifest, state, check_all, records)
        except OwnerSuperseded as error:
            self.superseded = str(error)
            self.failed(step, str(error), superseded=True)
            return
        except Exception as error:  # noqa: BLE001 - whatever it is, the job must tell of it
            self.parts_failed |= not share.is_whole
            ends = self._hurry.is_set() or copy.last_s is not None
            if isinstance(error, PartMissing) and ends:  # the caller saves all
                logger.info("the checkpoint of step %d is given up: %s", step, error)
            else:
                self.failed(step, _clause(error, path))
            return
        write_s = time.monotonic() - began
        self.last_step = step
        self._records.saved(str(directory), step)
        reason = (
            f"step {step} is in {path}: {size / 1e6:.1f} MB, training paused "
            f"{1000 * copy.capture_s:.0f} ms, written in {write_s:.2f} s"
        )
        logger.info("%s", reason)
        details = CheckpointDetails(str(path), size, copy.capture_s, write_s)
        self._records.log(details, step, reason)
        try:
            files.prune(directory, step, self.config.keep)
            remove_parts(directory, step)
            remove_unreferenced(directory)
        except (EdlError, OSError) as error:
            logger.warning("old checkpoints stay: %s", _clause(error, directory))

    def _write_part(self, copy: _Copy) -> None:
        began, share = time.monotonic(), copy.share
        directory, step = self.config.directory, copy.manifest.step
        path = PartPlace.of(directory, step, copy.owner, share.size).path(share.rank)
        check = partial(check_run, directory, copy.owner)
        try:
            self._remove_last_part(path)
            records, size = self._unchanged.set_aside(step, copy.state, check)
            self._last_part = (step, path)
            size += write_part(path, copy.state, records, check)
        except (EdlError, OSError) as error:
            self._part_failed(step, share, _clause(error, path))
        else:
            logger.info(
                "part %d of %d of step %d is in %s: %.1f MB, training paused %.0f ms, written in "
                "%.2f s",
                *(share.rank + 1, share.size, step, path, size / 1e6, 1000 * copy.capture_s),
                time.monotonic() - began,
            )

    def _part_failed(self, step: int, share: StateShare, why: str) -> None:
        logger.warning("part %d of step %d was not written: %s", share.rank + 1, step, why)

    def _remove_last_part(self, path: Location) -> None:
        """Remove this worker's last part, if no checkpoint names it; rank 0 may not see it."""
        if self._last_part is not None:
            step, last = self._last_part
            there = files.names_in(last.parent)
            # After the same step it is replaced, as rank 0 may be about to name it.
            if last != path and files.path_of(last.parent, step).name not in there:
                last.unlink(missing_ok=True)
            self._last_part = None


def _clause(error: Exception, path: Location) -> str:
    if isinstance(error, OSError):
        return f"{error.strerror or error}: {error.filename or path}"
    return str(error) if isinstance(error, EdlError) else f"{type(error).__name__}: {error}"
