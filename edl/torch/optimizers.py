"""Coordinate all optimizers of a script, and the backward passes that compute their gradients.

:class:`Optimizers` does it. With one optimizer :meth:`torch.optim.Optimizer.step` ends a step. With
several, a step ends when the next backward pass begins after an update, or when the script asks for
the next batch. One that takes two backward passes for an update (SAM) is treated like several. All
gradients that the updates of a step need are reduced before the first of these updates. See
:mod:`edl.step.engine`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from edl.binding.loop import RandomNumbers
from edl.errors import UsageError
from edl.step.engine import OptimizerStep, StepState
from edl.torch.gradients import Accumulation, BackwardEnd
from edl.worker import activity
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

MANY_SKIPPED = 100  # in a row; a GradScaler that begins at 2**16 skips 20 or so
BROKEN_OFF = (
    "backward() raised an exception in this batch, and the script is done with the batch without "
    "an update, which the other workers make: where the script handles the exception, let it call "
    "optimizer.zero_grad() and optimizer.step(); if it clips or scales gradients, "
    "optimizer.synchronize() and the same between the two; inside of edl.no_sync(), "
    "edl.notify_batch_end() leaves the batch out"
)

UPDATE_FAILED = (
    "optimizer.step() raised an exception in this batch, and the script goes on without its "
    "update, which the other workers make: the models would differ. Let the exception end the "
    "script, so that the others train on and a new worker takes its place; if memory is short, "
    "give the loader a smaller batch_size, or micro_batch"
)


class OptimizerReduction(Protocol):
    """The interface through which `Optimizers` directs the reduction of one optimizer."""

    accumulation: Accumulation

    @property
    def step(self) -> OptimizerStep:
        """The current step of this optimizer: its number, its state and its events so far."""

    @property
    def exchanges(self) -> bool:
        """Whether `exchange` may be called: a step is open, not reduced, and there are others."""

    @property
    def is_broken_off(self) -> bool:
        """Whether a backward pass of the current step was ended by an exception."""

    @property
    def has_sums(self) -> bool:
        """Whether gradients were accumulated in the current step and not sent yet."""

    def exchange(self, payload: bytes) -> list[bytes]:
        """Send `payload` to all workers in the current step; return all payloads in rank order."""

    def refuse_changed(self) -> None:
        """Raise UsageError if the script has changed a gradient that is reduced in this step."""

    def backward_ended(self) -> None:
        """Reduce the gradients of this optimizer at the end of a backward pass."""

    def backward_failed(self) -> None:
        """Mark gradients as void that were sent in a backward pass that an exception has ended."""

    def finish(self) -> None:
        """Wait until each gradient of this optimizer is the mean over the global batch."""

    def skip(self) -> None:
        """Reduce the current step's gradients with all workers, and end it without an update."""

    def note_skipped(self) -> None:
        """Record at the end of a step, in `LastStep.skipped`, whether the update was skipped."""

    def begin_piece(self, seed: int) -> None:
        """Prepare for the pass of a logical worker; `seed` is the script's own random seed."""

    def end_batch(self) -> None:
        """Prepare for the next batch; end a step whose reduced gradients were not applied."""


class Optimizers:
    """All optimizers of the script, by their reductions, in the order of their creation."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        # More than one, or one that takes two backward passes for an update.
        self.several = False  # no property: it is read once for each parameter
        # Of logical workers: gradients stay local until `step()`, as with Horovod's optimizer.
        self.wait_for_step = False
        self.never_none: frozenset[torch.nn.Parameter] = frozenset()  # zeros if none computes one
        self.scaler: torch.amp.GradScaler | None = None  # the one that was used last
        self._reductions: list[OptimizerReduction] = []
        self._computed: list[OptimizerReduction] = []  # in the current backward pass
        self._skipped = 0  # batches in a row without an update
        self._updating: dict[OptimizerReduction, int] = {}  # the last step whose update was begun
        self._numbers: RandomNumbers | None = None
        self._owners: dict[torch.nn.Parameter, OptimizerReduction] = {}
        self.backward_end = BackwardEnd(self._backward_ended)
        worker.loader.on_reduced = self._reduced

    def add(self, reduction: OptimizerReduction, two_passes: bool = False) -> None:
        """Add the reduction of one more optimizer."""
        progress = self.worker.loader.progress
        if self._reductions and (progress.has_state or self.worker.loader.begun):
            raise UsageError(
                "create each edl.Optimizer before the first batch; at a prompt, edl.init() begins "
                "a new job"
            )
        both = (*self._reductions, reduction)
        several = len(both) > 1 or two_passes
        if several and any(each.accumulation.counts_passes for each in both):
            raise UsageError(
                "with several optimizers, or one that wants two backward passes (SAM), accumulate "
                "gradients inside of edl.no_sync() in place of backward_passes_per_step"
            )
        self._reductions.append(reduction)
        self.several = self.several or several
        if self.several:
            self.worker.loader.before_exchange = self._end_updated_step
            for each in self._reductions:
                each.accumulation.watch_all()

    def own(self, parameter: torch.nn.Parameter, name: str, owner: OptimizerReduction) -> None:
        """Record that one optimizer trains a parameter."""
        if self._owners.setdefault(parameter, owner) is not owner:
            raise UsageError(
                f"{name} is trained by two optimizers; with edl each parameter has one"
            )

    def loss_scale(self) -> float:
        """Return the factor by which the script's GradScaler multiplies losses at present."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    # --- inside of the forward and backward passes

    def exchange(self) -> Callable[[bytes], list[bytes]] | None:
        """Return the function by which SyncBatchNorm exchanges statistics in the current step."""
        first = self._reductions[0]
        if not first.exchanges:
            return None
        if self.several:
            raise UsageError(
                "SyncBatchNorm works with one edl.Optimizer that makes one update for each batch; "
                "with several, use torch.nn.BatchNorm1d, 2d or 3d, whose statistics are each "
                "worker's own"
            )
        return first.exchange

    # --- backward passes

    def computed(self, reduction: OptimizerReduction) -> None:
        """Record that the current backward pass has computed a gradient of `reduction`."""
        if reduction not in self._computed:
            self._computed.append(reduction)
        self.backward_end.expect()

    def _backward_ended(self) -> None:
        """Reduce or accumulate gradients at the end of a backward pass, optimizer by optimizer."""
        computed, self._computed = self._computed, []
        if self.several:
            for reduction in self._reductions:
                reduction.refuse_changed()
        with activity.training_here():
            for reduction in self._reductions:  # in an order that is the same on all workers
                if reduction in computed:
                    reduction.backward_ended()

    def see_failure(self) -> None:
        """Void what a failed backward pass has sent; the script may have caught its exception."""
        if not self.backward_end.failed:
            return
        self.backward_end.failed = False
        computed, self._computed = self._computed, []
        broken = [each for each in self._reductions if each in computed]
        for reduction in broken:
            reduction.backward_failed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Accumulate the gradients of all optimizers in the `with` block, without sending them."""
        with contextlib.ExitStack() as stack:
            for each in self._reductions:
                stack.enter_context(each.accumulation.no_sync())
            yield

    def leave_out(self) -> bool:
        """Leave out a batch without a backward pass; return whether the step goes on."""
        self.see_failure()
        return any(each.accumulation.leave_out() for each in self._reductions)

    # --- the end of a step

    def begin_anew(self) -> None:
        """If an optimizer has made its update, end the step; begin the next on the same batch."""
        if self.several and self.worker.loader.engine.is_between_parts:
            if self.worker.loader.open:
                self._note_skipped()
            self.worker.loader.next_part()

    def begin_update(self, updating: OptimizerReduction) -> None:
        """Check, before an optimizer makes its update, that no other has unsent gradients."""
        if any(each.has_sums and each is not updating for each in self._reductions):
            raise UsageError(
                "with several optimizers, gradients are accumulated for all of them in the same "
                "batches: the backward() before the first optimizer.step() has those of each, "
                "outside of edl.no_sync()"
            )
        self._skipped = 0
        self._updating[updating] = updating.step.number

    def reduce_broken_off(self, updating: OptimizerReduction) -> None:
        """Before an update, reduce gradients of a backward pass that an exception has ended."""
        if any(each.is_broken_off for each in self._reductions):
            # The others have reduced all of these at the end of that pass, and wait for this one.
            for each in self._reductions:
                if each is updating or each.is_broken_off:
                    each.finish()

    def skip(self) -> None:
        """End the current step without an update, with or without a backward pass before."""
        self._refuse_broken_off()
        if not self._is_decided:
            for each in self._reductions:
                each.skip()
        if self.several:
            self._end_step()

    def end_batch(self) -> None:
        """Prepare for the next batch; gradients that were not applied are a skipped update."""
        if self.worker.loader.open:
            self._refuse_broken_off()
            self._count_skipped()
            if self._is_decided:
                self._end_step()
        for each in self._reductions:
            each.end_batch()

    def begin_piece(self, numbers: RandomNumbers) -> None:
        """Prepare for the pass on a batch, whose samples the script gets now."""
        loader, self._numbers = self.worker.loader, numbers
        if loader.engine.logical:
            batch = loader.engine.batches.newest
            numbers.begin_piece(loader.epoch, 0 if batch is None else batch.position)
            for each in self._reductions:
                each.begin_piece(numbers.script)

    def begin_logical_update(self) -> None:
        """Prepare for an update of logical workers, whose means are there."""
        for parameter in self.never_none:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        if self._numbers is not None:
            self._numbers.begin_update(self.worker.step)

    def end_draws(self) -> None:
        """End the worker's own random numbers: what the script draws next is for all alike."""
        if self._numbers is not None:
            self._numbers.end_step()

    def _reduced(self) -> None:
        # With several, nobody knows which update of a batch is the last. Logical workers go on
        # until the update.
        if not (self.several or self.worker.logical):
            self.end_draws()

    def _refuse_broken_off(self) -> None:
        """Raise UsageError if an exception has ended a backward pass or an update of this step."""
        self.see_failure()
        self._refuse_failed_update()
        step = self.worker.loader.engine
        if not step.batches.may_grow and any(each.is_broken_off for each in self._reductions):
            raise UsageError(BROKEN_OFF)

    def _refuse_failed_update(self) -> None:
        """Raise UsageError if an optimizer has begun its update of this step and not ended it."""
        for each, number in self._updating.items():
            if number == each.step.number and each.step.state is StepState.REDUCED:
                raise UsageError(UPDATE_FAILED)

    def _count_skipped(self) -> None:
        """Count batches in a row with reduced gradients and no update; log a warning at 100."""
        updates = self.worker.loader.engine.updates
        if not updates and any(each.step.is_decided for each in self._reductions):
            self._skipped += 1
            if self._skipped == MANY_SKIPPED:
                logger.warning(
                    "%d batches in a row had a backward() and no optimizer.step(): the model does "
                    "not change; call optimizer.step() for each batch",
                    MANY_SKIPPED,
                )

    @property
    def _is_decided(self) -> bool:
        """Whether one of several optimizers has reduced gradients or made an update in the step."""
        updates = self.worker.loader.engine.updates
        return self.several and bool(
            updates or any(each.step.is_decided for each in self._reductions)
        )

    def _end_updated_step(self) -> None:
        if self.worker.loader.engine.updates:
            self._end_step()

    def _end_step(self) -> None:
        self._note_skipped()
        self.worker.loader.end()

    def _note_skipped(self) -> None:
        self._refuse_failed_update()
        for each in self._reductions:
            each.note_skipped()
