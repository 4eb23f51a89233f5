"""Keep a worker's position in the data of edl's loader: step, epoch, ledger and open step.

:class:`LoaderProgress` is that position. It changes when a step is complete and when the worker
enters a new generation. Both times it is computed from the step records or the generation, so all
workers get the same result.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from edl.checkpoint.saved_state import CheckpointPosition
from edl.core.job.fits import DoneFit, as_json, fits_of
from edl.core.step.aligned import AlignedSource
from edl.core.step.batching import Batching, size_changes
from edl.core.step.engine import StepEngine
from edl.core.step.epoch_end import EpochLeft
from edl.core.step.ledger import Ledger, complete_batch, complete_step, free_leases, grant, restore
from edl.core.step.recent_steps import RecentSteps
from edl.core.step.source import Source, check_same_data
from edl.core.step.step_events import BATCH_END, LeasesLost, StepEnd, StepSkipped, StepSuperseded
from edl.core.step.step_record import (
    StepRecords,
    global_samples,
    requested_batch,
    stopping,
    wanting_to_stop,
)
from edl.core.step.stream import StreamSource
from edl.core.step.training_length import NO_LENGTH, TrainingLength
from edl.core.step.update_order import UpdateOrder
from edl.errors import UsageError
from edl.worker.gradient_noise import GradientNoise
from edl.worker.progress import Exchange, Receive, TrainingProgress
from edl.worker.sampler import AlignedSampler, BatchSampler
from edl.worker.stream_sampler import StreamReader, StreamSampler

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

    def exchanged(self, answer: list[bytes]) -> None:
        """Count an exchange of messages; keep `answer`, the payloads of all in rank order."""
        self.exchanges, self.answer = self.exchanges + 1, answer

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

    def resume(
        self,
        step: int,
        ledger: Mapping[str, Any],
        samples: int,
        noise: Mapping[str, Any] | None = None,
        chosen: int = 0,
        seed: int = -1,
        fit_stopped: str = "",
        batches: Sequence[Sequence[int]] = (),
    ) -> None:
        """Go on from the position in a checkpoint."""
        saved = restore(ledger)
        known = saved.epoch * self.source.known_total + saved.done  # if an older edl saved it
        self.trained = self.trained_before = known if samples < 0 else samples
        self.noise.resume(noise or {})
        self.seed, self.fit_stopped = self.seed if seed < 0 else seed, fit_stopped
        self.batches_resumed = size_changes(batches)  # they make no ramp of the learning rate
        if chosen and self.source.batching.is_chosen:
            self._take_batching(self.source.batching.choosing(chosen))
        if saved.finished:  # it was made after the last step of its epoch
            saved = self.source.start(saved.epoch + 1)
        self._ledger = self._granted(free_leases(saved, ()))  # held by workers of an earlier start
        self.sampler.enter(saved.epoch, resumes=True)
        self.sampler.set_microbatches(self.ledger)
        self.step, self.has_state = step, True

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
