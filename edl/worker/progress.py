"""Define a worker's progress in its job, which is equal on all workers of a ring between two steps.

:class:`TrainingProgress` is the base class. The position in the data is kept either by edl's own
loader (:class:`LoaderProgress`), with a ledger of what is trained, or by the script itself
(:class:`ScriptProgress`).
"""

from __future__ import annotations

import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import Enum
from typing import Any, ClassVar, Protocol

from edl.checkpoint.format import Manifest
from edl.checkpoint.writer import CheckpointPosition
from edl.errors import UsageError
from edl.job.script import DoneFit, as_json, fits_of
from edl.records import WorkerProgress
from edl.ring.ring import Ring
from edl.spec import JobSettings
from edl.step.batching import Batching, size_changes
from edl.step.engine import BATCH_END, LeasesLost, StepEnd, StepEngine, StepSkipped, StepSuperseded
from edl.step.ledger import Ledger, complete_batch, complete_step, free_leases, grant, restore
from edl.step.noise import NoiseScale, Squares, noise_sample
from edl.step.record import (
    EpochLeft,
    RecentSteps,
    StepRecords,
    global_samples,
    requested_batch,
    stopping,
    wanting_to_stop,
)
from edl.step.source import (
    NO_LENGTH,
    AlignedSource,
    Source,
    StreamSource,
    TrainingLength,
    UpdateOrder,
    check_same_data,
)
from edl.step.state_check import NEVER
from edl.worker.sampler import AlignedSampler, BatchSampler, StreamReader, StreamSampler
from edl.worker.shared_state import SharedState

# ------------------------------------------------------------
# Measure the gradient noise scale on one worker (`noise_scale`).
#
# `GradientNoise` has the estimate. What a worker measures in a step (the squared norms of two
# gradients) is sent with its step record of the next step, so it needs no message of its own, and
# all workers compute the same estimate. A step counts only if all workers with samples in it have
# measured it: a worker that missed the step, and received the state of the others instead, has no
# measurement of it.


USUAL_STEPS = 50  # between two measurements, where the job does not say: 0.2 % of a short step


class GradientNoise:
    """The estimate of the gradient noise scale on one worker, and this worker's measurements."""

    def __init__(self) -> None:
        # Used by the training thread, or by one for which it waits. Equal on all workers that have
        # completed the same steps; `before`: before the last of these.
        self.scale = self.before = NoiseScale()
        # the script needs the estimate, which is then measured without a setting
        self.asked = False
        self._settings: Callable[[], JobSettings] = JobSettings
        self._shared: SharedState | None = None
        self._open = Squares()  # measured in the open step
        self._squares = Squares()  # measured in the last complete step
        self._counted: dict[int, int] = {}  # samples by worker in the last complete step

    def follow(self, settings: Callable[[], JobSettings], shared: SharedState) -> None:
        """Measure as often as the job's settings and its policy say, from now on."""
        self._settings, self._shared = settings, shared

    def is_due(self, step: int) -> bool:
        """Return whether to measure the gradients of the job's step `step`, counted from 0."""
        every = self._every
        return every > 0 and step % every == 0

    def turn(self, step: int) -> int:
        """Return the measurement's index: it says which eighth of a large gradient is measured."""
        return step // max(1, self._every)

    @property
    def _every(self) -> int:
        """The number of steps from one measurement to the next; 0: nothing is measured."""
        every = self._settings().noise_scale_steps
        policy = self._shared.policy if self._shared is not None else None
        if not every and (self.asked or (policy is not None and policy.needs_noise)):
            return USUAL_STEPS
        return every

    def measured(self, own: float, mean: float) -> None:
        """Record the squared norms of the gradients of the open step, for the next step record."""
        self._open = Squares(own, mean)

    def row(self) -> dict[str, int]:
        """Return the step record's fields with this worker's measurement of the step before."""
        return {"own_square": _bits(self._squares.own), "mean_square": _bits(self._squares.mean)}

    def complete(self, records: StepRecords, step: int) -> None:
        """Update the estimate after a complete step, from the measurements in its step records."""
        # Of the gradients of the step before, which had the samples `_counted`.
        own, mean = records.column("own_square"), records.column("mean_square")
        self.before = self.scale
        if own.any():
            workers = records.values("worker")
            rows = zip(workers, own.tolist(), mean.tolist(), strict=True)
            squares = {worker: Squares(_value(a), _value(b)) for worker, a, b in rows}
            found = noise_sample(self._counted, squares)
            if found is not None:
                batch = sum(self._counted.values())
                self.scale = self.scale.after(found, batch, step + 1)
        samples = zip(records.values("worker"), records.values("samples"), strict=True)
        self._counted = dict(samples)
        self._squares, self._open = self._open, Squares()  # for the next record

    def header(self) -> dict[str, Any]:
        """Return `scale` and `before` as JSON values, which newcomers get by `take_over`."""
        return {
            "scale": self.scale.to_json(),
            "before": self.before.to_json(),
            "counted": sorted(self._counted.items()),
        }

    def take_over(self, header: Mapping[str, Any], missed: bool) -> None:
        """Replace this worker's estimate with the one of the state source."""
        self.scale = NoiseScale.from_json(header["scale"])
        self.before = NoiseScale.from_json(header["before"])
        self._counted = {int(worker): int(samples) for worker, samples in header["counted"]}
        if missed:
            self._squares = self._open = Squares()

    def resume(self, saved: Mapping[str, Any]) -> None:
        """Restore the estimate from the values in a checkpoint; empty: nothing was measured."""
        self.scale = self.before = NoiseScale.from_json(saved) if saved else NoiseScale()


def _bits(value: float) -> int:
    return int(struct.unpack("<q", struct.pack("<d", value))[0])


def _value(bits: int) -> float:
    return float(struct.unpack("<d", struct.pack("<q", bits))[0])


Exchange = Callable[[bytes], list[bytes]]


class Receive(Enum):
    """The part of the job's state that a worker takes from the broadcast of the state source."""

    NOTHING = "nothing"  # it has the state already, and just takes part in the broadcast
    STEP = "step"  # it missed the last update: it takes what that update has changed
    RESYNC = "resync"  # its state differed: it takes all but what is each worker's own
    ALL = "all"  # it is a newcomer: it takes everything


class Shared(Protocol):
    """A state that is the same on all workers: a framework's, or a script's own."""

    def synchronise(self, ring: Ring, root: int, receive: Receive) -> None:
        """Broadcast the state from the rank `root`; with `NOTHING` this worker's stays the same."""


class TrainingProgress(ABC):
    """The steps that the job has made, as one worker knows them."""

    unit: ClassVar[str]  # what the steps are, as a plural for messages, such as "steps"
    without_checkpoint: ClassVar[str]  # ends the message that all workers and the state are lost

    def __init__(self) -> None:
        self.members: tuple[int, ...] = (0,)  # of the ring, in rank order
        self.step = 0  # steps that the job has completed
        self.has_state = False  # it holds the job's state, which it gets in its first ring
        # `exchanges`: the exchanges of messages that the job has completed. `leaves`: how often all
        # workers have left a loop over an epoch with a batch in hand.
        self.exchanges = self.leaves = 0
        self.callers: tuple[int, ...] = ()  # who has made the last exchange; empty: all
        # of the last exchange, in rank order; empty once it is certain that all have received it
        self.answer: list[bytes] = []
        # the step after which the newest workers joined the training job; the same on all workers
        self.joined_after = NEVER
        self.joined = 0  # as in the step record: when this worker joined
        # `joined_inside`: it joined inside an epoch. `at_epochs`: a newcomer has stepped back, so
        # newcomers join at the start of an epoch.
        self.joined_inside = self.at_epochs = False

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has made; a step counts when its update is made."""
        return self.step

    @property
    def fits_done(self) -> int:
        """The number of fits (calls of Keras' `fit`) that the script has done before this one."""
        return 0

    @property
    def later_fits(self) -> tuple[DoneFit, ...]:
        """The fits before the resumed checkpoint, while the script has yet to pass over some."""
        return ()

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch is trained; always True without edl's loader."""
        return True

    @property
    def takes_newcomers(self) -> bool:
        """Whether the script allows newcomers to join after the batch that is in training."""
        return True

    def exchanged(self, answer: list[bytes]) -> None:
        """Count an exchange of messages; keep `answer`, the payloads of all in rank order."""
        self.exchanges, self.answer = self.exchanges + 1, answer

    def reopen(self) -> None:
        """Take back that the training has ended here, since others train on."""
        return

    @abstractmethod
    def may_pause(self, repaired_at: int) -> bool:
        """Return whether all workers, now between two steps, can pause; `repaired_at` -1: never."""

    @abstractmethod
    def row(self) -> dict[str, int]:
        """Return the fields of this worker's next step record that say where it is in its data."""

    @property
    @abstractmethod
    def epoch_progress(self) -> dict[str, Any]:
        """The fields of `WorkerProgress` about the data, by field name."""

    @abstractmethod
    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Set `members` to those of a new ring, and adapt the position in the data to them."""

    @abstractmethod
    def header(self) -> dict[str, Any]:
        """Return this progress as JSON values, which the state source sends to other workers."""

    @abstractmethod
    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Move to the progress of the state source."""

    def passes_over(self, header: Mapping[str, Any], exchange: Exchange) -> bool:
        """Return whether some workers have to pass over fits before they get the job's state."""
        return False

    def report(
        self, generation: int, size: int, median_step_s: float, now_s: float
    ) -> WorkerProgress:
        """Return the progress that the daemon publishes, for the leader and `edl status`."""
        return WorkerProgress(
            generation=generation,
            size=size,
            step=self.step,
            **self.epoch_progress,
            median_step_s=median_step_s,
            counted_at=now_s,
            updated_at=now_s,
        )


# ------------------------------------------------------------
# Keep a worker's position in the data of edl's loader: step, epoch, ledger and open step.
#
# `LoaderProgress` is that position. It changes when a step is complete and when the worker enters a
# new generation. Both times it is computed from the step records or the generation, so all workers
# get the same result.


CHANGES_KEPT = 64  # changes of the global batch; an old one no longer affects the learning rate


class LoaderProgress(TrainingProgress):
    """One worker's position in the epochs of edl's own loader."""

    unit = "steps"
    without_checkpoint = ", and nothing was saved: call edl.checkpoint(directory) in the script"

    def __init__(self) -> None:
        super().__init__()
        self.length = NO_LENGTH  # of the job; of the script, until it has the job's state
        self._worker = 0
        self._source: Source | None = None
        self._sampler: BatchSampler | None = None
        self._ledger: Ledger | None = None
        self._upcoming: Ledger | None = None  # of the next epoch, if others have begun it
        self.seed = -1  # of random numbers; with logical workers the script's; -1: not known yet
        self.engine = StepEngine()
        self.update_order = UpdateOrder()
        self.noise = GradientNoise()
        self.optimizers = 0  # how many the script has
        self._updated = 0  # the optimizers, as bits, that made updates in the step before this one
        self.step_batches = 1  # the most that a worker had in a step
        self._recent = RecentSteps()
        self.samples_total = 0  # trained by all workers since this one joined the job
        self.trained = 0  # samples trained by all workers since the job began, over all epochs
        self.trained_before = 0  # the value of trained before the last complete step
        self.batches: tuple[tuple[int, int], ...] = ()  # changes of the global batch: step, size
        self.batches_resumed: tuple[tuple[int, int], ...] = ()  # those of before the job's resume
        self.on_choice: Callable[[int, int], None] = lambda before, now: None  # of a global batch
        self.untrained = 0  # samples of epochs that all workers have left before their end
        self.has_stepped = False  # this worker has taken part in a step of the ring
        self.stop = ""  # why all stop training after the last complete step, if they do
        self.fits: tuple[DoneFit, ...] = ()  # done before the present one
        self.fit_stopped = ""  # why callbacks have stopped the present fit, if that is over
        self.fits_ahead: tuple[DoneFit, ...] = ()  # before the checkpoint's, if these are more

    def attach(self, source: Source, worker: int, reader: StreamReader | None = None) -> None:
        """Declare the data that the job trains on, and begin epoch 0."""
        if self._source is not None:
            raise UsageError(
                "this script has two edl data loaders; a job trains on one (use the framework's "
                "own loader for evaluation; at a prompt, edl.init() begins a new job)"
            )
        self._worker, self._source = worker, source
        self.noise.asked |= source.batching.is_chosen
        self.engine.late |= source.batching.micro_batch > 0
        self.engine.logical = source.batching.logical > 0
        if isinstance(source, StreamSource):
            assert reader is not None
            self._sampler = StreamSampler(source, worker, reader)
        elif isinstance(source, AlignedSource):
            self._sampler = AlignedSampler(source, worker)
        else:
            self._sampler = BatchSampler(source, worker)
        if worker in self.members:  # a newcomer gets leases when it enters the ring
            self._sampler.take_place(self.members)
        self._ledger = self._start(0)
        self._sampler.enter(0)

    @property
    def has_called(self) -> bool:
        """Whether the last exchange was this worker's, too, and not made apart from it."""
        return not self.callers or self._worker in self.callers

    @property
    def attached(self) -> bool:
        """Whether the script has created a data loader of edl."""
        return self._source is not None

    @property
    def source(self) -> Source:
        """The data that the job trains on."""
        if self._source is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._source

    @property
    def sampler(self) -> BatchSampler:
        """The sampler that forms this worker's batches."""
        if self._sampler is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._sampler

    @property
    def ledger(self) -> Ledger:
        """The record of which positions of this worker's epoch are done, leased and free."""
        if self._ledger is None:
            raise UsageError("create an edl.DataLoader before training")
        return self._ledger

    @property
    def epoch_left(self) -> EpochLeft:
        """The present epoch: its number, its samples (0: a stream), and how many are trained."""
        ledger = self.ledger
        return EpochLeft(ledger.epoch, ledger.done, self.source.known_total, ledger.finished)

    def next_epoch(self) -> None:
        """Begin the next epoch; the job does not train what is left of the present one."""
        self.abandon()
        if self._upcoming is not None:
            self._ledger, self._upcoming = self._upcoming, None
        else:
            self._ledger = self._start(self.ledger.epoch + 1)
        self.sampler.enter(self.ledger.epoch)
        self.update_order = self.update_order.next_epoch()

    def abandon(self) -> None:
        """Drop the open step and its batches, because the script has left its loop."""
        self.engine.handle(StepSkipped())

    @property
    def steps_made(self) -> int:
        """The number of steps that the job has made."""
        if self.optimizers < 2:  # a step ends with its update
            return self.step
        # The open step counts as soon as one of several optimizers has made its update.
        return self.step - int(self.engine.completed_by_peers) + int(self.engine.updates > 0)

    @property
    def fits_done(self) -> int:
        """The number of fits that the script has done before this one."""
        return len(self.fits)

    @property
    def later_fits(self) -> tuple[DoneFit, ...]:
        """The fits before the resumed checkpoint, while the script has yet to pass over some."""
        return self.fits_ahead if len(self.fits_ahead) > len(self.fits) else ()

    @property
    def begins_epoch(self) -> bool:
        """Whether nothing of the epoch is trained."""
        return self.ledger.done == 0

    @property
    def takes_newcomers(self) -> bool:
        """Whether newcomers may join after the batch in training; with one optimizer, always."""
        if self.optimizers < 2:
            return True
        # What this worker has left in the epoch when the present batch is trained.
        left = self.sampler.left(self.ledger, self.engine.batches.untrained)
        return self.update_order.takes_newcomers(left <= 0 and not self.ledger.free)

    def end_batch(self) -> None:
        """End the present batch: all optimizers have made updates with it, so it is done."""
        if self.engine.in_hand:
            self.update_order = self.update_order.after_batch()
        self.engine.handle(BATCH_END)
        if self._ledger is not None:
            self._ledger = complete_batch(self._ledger)

    def complete(self, records: StepRecords) -> None:
        """Move the ledger and all counters past a step whose update is in the model."""
        counted_by = self.engine.updates if self.optimizers > 1 else None
        policy = self.source.policy(len(records))
        self._ledger = complete_step(self.ledger, records, policy, counted_by)
        self.noise.complete(records, self.step)
        samples = global_samples(records) if self.engine.batches.part == 0 else 0
        self._recent.add(samples, self.source.batching.of_all(len(records)))
        self.samples_total += samples
        if self.engine.batches.part == 0:
            self.trained_before, self.trained = self.trained, self.trained + samples
        self.batches = self.batches_with(records)
        stops, reason = stopping(wanting_to_stop(records))
        self.stop = reason if stops else ""
        self.step_batches = max(self.step_batches, int(records.column("batches").max()))
        self._remove_trained()
        self.close_step(trained=True)
        self.step, self.has_stepped = self.step + 1, True
        self.answer = []  # each worker has the answer, or could not have come to this step
        size, before = len(records), self.source.batching
        wished = requested_batch(records) if before.is_chosen else 0
        if wished and before.choosing(wished).of_all(size) != before.of_all(size):
            self._take_batching(before.choosing(wished))  # from the next step on
            self._ledger = self._granted(self.ledger)
            self.on_choice(before.of_all(size), self.source.batching.of_all(size))
        self.sampler.set_microbatches(self.ledger, after_step=True)

    def _take_batching(self, batching: Batching) -> None:
        """Form batches of the sizes of `batching`; keep those of the open step as they are."""
        self._source = replace(self.source, batching=batching)
        if self._worker in self.members:
            self.sampler.use(self._source, self.members, self.engine.batches.untrained)

    def iterations_of_epoch(self, began_with: int) -> int:
        """Return how many iterations the script's loop makes in an epoch, rounded up."""
        if self.has_stepped:
            return self.iterations_now
        # Before its first step a newcomer gets the number that the first workers got.
        return replace(self.source.batching, chosen=0).iterations(self.source.total, began_with)

    @property
    def iterations_now(self) -> int:
        """The number of iterations per epoch with the present workers; not of a stream."""
        return self.source.batching.iterations(self.source.total, len(self.members))

    def batches_with(self, records: StepRecords) -> tuple[tuple[int, int], ...]:
        """Return the newest changes of the global batch, up to the open step: (step, samples)."""
        in_step = max(self.step_batches, int(records.column("batches").max()))
        now = self.source.batching.of_all(len(self.members)) * in_step
        if self.batches and self.batches[-1][1] == now:
            return self.batches
        return (*self.batches, (self.step, now))[-CHANGES_KEPT:]

    def close_step(self, trained: bool = False) -> None:
        """Close the open step, which this worker (`trained`), or only others, have completed."""
        updated = self.engine.updated
        self.engine.handle(StepEnd(trained))
        if self.optimizers > 1:
            self._updated, self.update_order = updated, self.update_order.after_step(updated)

    def _remove_trained(self) -> None:
        for batch in self.engine.batches.untrained:
            self.sampler.trained(batch)

    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Adapt to a new ring: free the leases of workers that left, and grant leases to all."""
        self.members = members
        self.answer = self.answer if in_step else []  # all have come to this switch after that
        if self._sampler is not None and self._worker in members:
            self._sampler.take_place(members)
            self._sampler.regroup(self.engine.batches.untrained)
        if self._ledger is not None and not self._ledger.finished:
            in_hand = self.step_batches if in_step else 0
            ledger = self.source.regroup(self._ledger, members, in_hand)
            self.sampler.microbatches += self.source.added_pieces(self._ledger, members, in_hand)
            waits = in_step and isinstance(self.source, AlignedSource)  # for the end of the step
            self._ledger = ledger if waits else self._granted(ledger)
        # In a repair, members that begin the open step's batch only now divide it as the others do.
        if not in_step and self._sampler is not None and self._worker in members:
            self._sampler.set_microbatches(self.ledger)

    def row(self) -> dict[str, int]:
        """Return the step record's fields about the ledger, the open step and the noise."""
        ledger, open_step = self.ledger, self.engine
        return {
            "epoch": ledger.epoch,
            "wanted": self.sampler.wanted(ledger, max(self.step_batches, open_step.batches.count)),
            "ledger": ledger.digest(),
            "batches": open_step.batches.count,
            "late": int(open_step.late),
            "part": open_step.batches.part,
            "counted": open_step.batches.counted,
            "updated": self._updated,
            **self.noise.row(),
        }

    @property
    def epoch_progress(self) -> dict[str, Any]:
        """The fields of `WorkerProgress` about the data, to report."""
        ledger, noise, total = self.ledger, self.noise.scale, self.source.known_total
        batch = self.source.batching.of_all(len(self.members)) if self.members else 0
        of_step = batch * (self._recent.batches or self.step_batches)
        return {
            "noise_scale": noise.samples,
            "noise_is_biased": noise.is_biased,
            "global_batch": batch,
            "epoch": ledger.epoch,
            "epoch_done": ledger.done,
            "epoch_total": total,
            "left": self.length.left(ledger.epoch, ledger.done, total, self.step, of_step),
            "samples_total": self.samples_total,
            "untrained": self.untrained,
        }

    def may_pause(self, repaired_at: int) -> bool:
        """Return whether all workers, which are between two steps now, can pause."""
        # Until a step is complete after a repair, some have yet to complete one with the others.
        return self.step > repaired_at

    def header(self) -> dict[str, Any]:
        """Return this position (step, epoch, ledger, ...) as JSON values, for `take_over`."""
        return {
            "step": self.step,
            "length": self.length.to_json(),
            "joined_after": self.joined_after,
            "trained": self.trained,
            "trained_before": self.trained_before,
            "batches": self.batches,
            "batches_resumed": self.batches_resumed,
            "noise": self.noise.header(),
            "ledger": self.ledger.snapshot(),
            "stop": self.stop,
            "fit_stopped": self.fit_stopped,
            "seed": self.seed,
            "fingerprint": self.source.fingerprint,
            "order_seed": self.source.seed,
            "shuffle": self.source.shuffle,
            "batching": self.source.batching.to_json(),
            "prefetch_batches": self.source.prefetch_batches,
            **self.sampler.header(),
            "step_batches": self.step_batches,
            "updated": self._updated,
            "schedule": self.update_order.snapshot(),
            "untrained": self.untrained,
            "exchanges": self.exchanges,
            "late": self.engine.late,
            "leaves": self.leaves,
            "answer": [len(payload) for payload in self.answer],  # the payloads are sent separately
            "callers": self.callers,
            "fits": as_json(self.later_fits or self.fits),
        }

    def passes_over(self, header: Mapping[str, Any], exchange: Exchange) -> bool:
        """Return whether some workers must pass over fits first; all of the ring call it."""
        fits = fits_of(header["fits"])
        if not fits:  # no worker passes over one: all are in their first, or the job cannot begin
            return False
        counts = [int(count) for count in exchange(str(len(self.fits)).encode())]
        self.fits_ahead = fits
        return any(count < len(fits) for count in counts)

    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Move to the position of the state source."""
        check_same_data(self.source, header, self._worker)
        self._upcoming = None  # it was of members that are no more
        if receive is not Receive.ALL and self.has_state:
            made = {"step": self.step, "exchanges": self.exchanges, "leaves": self.leaves}
            missed = tuple(int(header[name]) - count for name, count in made.items())
            # The records of a leave may have gone out with the batch, so others can leave while
            # this worker still waits for an exchange.
            assert missed in ((0, 0, 0), (0, 1, 0), (0, 0, 1), (0, 1, 1), (1, 0, 0)), missed
        self.stop = str(header["stop"])
        ledger = restore(header["ledger"])
        self.step_batches = int(header["step_batches"])
        self.sampler.take_over(header)
        if receive is Receive.ALL:
            self.sampler.enter(ledger.epoch)
            self.length = TrainingLength.from_json(header["length"])
            self._updated, self.seed = int(header["updated"]), int(header["seed"])
            self.fit_stopped = str(header["fit_stopped"])
            self.engine.late |= bool(header["late"])
            self.update_order = UpdateOrder.restore(header["schedule"])
        if receive is Receive.STEP:  # its samples are in the model that this worker receives
            assert self.engine.is_open
            assert int(header["step"]) == self.step + 1
            self._remove_trained()
            self.engine.handle(StepSuperseded(int(header["updated"])))
            self.has_stepped = True
        if receive is not Receive.ALL:
            ledger = self._in_own_epoch(ledger)
        # A script may give num_workers=os.cpu_count(): all must grant the same leases all the same.
        ahead = int(header["prefetch_batches"])
        self._source = replace(self.source, prefetch_batches=ahead)
        batching = Batching.from_json(header["batching"])
        if batching != self.source.batching:
            self._take_batching(batching)
        if not self.sampler.agrees_with(ledger):
            # This worker held leases of a generation that never came to be. What it has loaded from
            # them belongs to other workers now.
            self.sampler.enter(ledger.epoch)
            self.engine.handle(LeasesLost())
        is_behind = receive is not Receive.NOTHING and int(header["step"]) != self.step
        self.step, self._ledger, self.has_state = int(header["step"]), ledger, True
        self.joined_after = int(header["joined_after"])
        self.trained = int(header["trained"])
        self.trained_before = int(header["trained_before"])
        self.batches = size_changes(header["batches"])
        self.batches_resumed = size_changes(header["batches_resumed"])
        self.noise.take_over(header["noise"], is_behind)
        # The state source may have left the epoch already, or this worker.
        self.untrained = max(self.untrained, int(header["untrained"]))
        self.exchanges, self.leaves = int(header["exchanges"]), int(header["leaves"])
        self.callers = tuple(header.get("callers", ()))  # an older edl sends none

    def _in_own_epoch(self, received: Ledger) -> Ledger:
        """Return the ledger for this worker's epoch, given the state source's (`received`)."""
        epoch = self.ledger.epoch
        if received.epoch > epoch:
            # This worker's epoch is over.
            self._upcoming = received
            return replace(self.source.start(epoch), free=())
        if received.epoch < epoch:  # which the state source is about to leave: this one begins anew
            return self._start(epoch)
        return received

    @property
    def place(self) -> CheckpointPosition:
        """The job's position in its data (step, epoch, ledger), as a checkpoint stores it."""
        at = self.step, self.source, self.ledger, self.trained, self.noise.scale.to_json()
        return CheckpointPosition(
            *at,
            as_json(self.fits),
            self.seed,
            self.fit_stopped,
            length=self.length,
            batches=self.batches or self.batches_resumed,
        )

    def resume(self, before: Manifest) -> None:
        """Go on from the position in a checkpoint."""
        saved = restore(before.ledger)
        known = saved.epoch * self.source.known_total + saved.done  # if an older edl saved it
        self.trained = self.trained_before = known if before.samples < 0 else before.samples
        self.noise.resume(before.noise)
        self.seed = self.seed if before.seed < 0 else before.seed
        self.fit_stopped = before.fit_stopped
        self.batches_resumed = size_changes(before.batches)  # they make no ramp of the rate
        chosen = int(before.source.get("chosen", 0))
        if chosen and self.source.batching.is_chosen:
            self._take_batching(self.source.batching.choosing(chosen))
        if saved.finished:  # it was made after the last step of its epoch
            saved = self.source.start(saved.epoch + 1)
        self._ledger = self._granted(free_leases(saved, ()))  # held by workers of an earlier start
        self.sampler.enter(saved.epoch, resumes=True)
        self.sampler.set_microbatches(self.ledger)
        self.step, self.has_state = before.step, True

    def _start(self, epoch: int) -> Ledger:
        """Return the ledger of an epoch of which nothing is trained or in training, with leases."""
        ledger = self._granted(self.source.start(epoch))
        self.sampler.set_microbatches(ledger)
        return ledger

    def _granted(self, ledger: Ledger) -> Ledger:
        """Return `ledger` with free positions leased to each ring member that holds too few."""
        source, size = self.source, len(self.members)
        needs = [(w, source.lacks(ledger, w, self.step_batches, size)) for w in self.members]
        return grant(ledger, needs, source.policy(size))


# ------------------------------------------------------------
# Keep the progress of a script that keeps its own place in its data: how often it has saved.
#
# `ScriptProgress` has that number. A step is from one save of the script's state to the next. There
# is no ledger: which samples are trained, and what is redone, is up to the script (docs/adr/0010).


class Comparable(Enum):
    """Whether the workers of a script hold the same state when they save it, as far as known."""

    UNKNOWN = "unknown"  # no two workers have compared a save yet
    YES = "yes"  # they were equal at the first comparison, so they must be at all later saves
    NO = "no"  # they differed: they are not compared any more


class ScriptProgress(TrainingProgress):
    """The number of saves of the script's state, as the progress of a job without edl's loader."""

    unit = "saves of its state"
    without_checkpoint = "; start the job again from the script's own checkpoint"

    def __init__(self) -> None:
        super().__init__()
        self.ended = False  # the training has ended on this worker, or on its state source
        self.comparable = Comparable.UNKNOWN  # the same on all workers

    def saved(self) -> None:
        """Count a save of the script's state as one more `step`; all workers save together."""
        self.step += 1

    def reopen(self) -> None:
        """Take back the last save, by which the training has ended here, since others train on."""
        self.step -= int(self.ended)
        self.ended = False

    def may_pause(self, repaired_at: int) -> bool:
        """Return True: all workers return to the last save in a repair, so none is in a step."""
        return True

    def row(self) -> dict[str, int]:
        """Return 0 for the step record's fields `epoch`, `wanted` and `ledger`, by name."""
        return {"epoch": 0, "wanted": 0, "ledger": 0}

    @property
    def epoch_progress(self) -> dict[str, int]:
        """An empty dict: no fields, since the script itself keeps its place in its data."""
        return {}

    def enter(self, members: tuple[int, ...], in_step: bool = False) -> None:
        """Note `members`, the worker ids of a new ring in rank order; `in_step` is not used."""
        self.members = members

    def header(self) -> dict[str, Any]:
        """Return this progress as JSON values, which the state source sends to other workers."""
        return {
            "step": self.step,
            "ended": self.ended,
            "joined_after": self.joined_after,
            "comparable": self.comparable.value,
        }

    def take_over(self, header: Mapping[str, Any], receive: Receive) -> None:
        """Replace this progress with the one that the state source sent as `header`."""
        self.step, self.has_state = int(header["step"]), True
        self.ended = bool(header["ended"])
        self.joined_after = int(header["joined_after"])
        self.comparable = Comparable(header["comparable"])
