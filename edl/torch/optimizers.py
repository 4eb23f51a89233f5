"""All optimizers of a script, and the backward passes in which their gradients are computed.

A script with one has its steps ended by :func:`torch.optim.Optimizer.step`. With several, a step
ends when the next backward pass begins after an update, or the next batch is asked for: all that
the updates need was reduced before the first of them. See :mod:`edl.framework.reduction`.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from typing import Protocol

import torch

from edl.core.step.step_state import Step
from edl.errors import UsageError
from edl.framework.reduction import ReductionOrder
from edl.torch.accumulation import Accumulation
from edl.torch.backward import BackwardEnd
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


class OptimizerReduction(Protocol):
    """The reduction of one optimizer's gradients, as :class:`Optimizers` directs it.

    :class:`edl.torch.reduction.GradientReduction` is one, and has more on each method.
    """

    accumulation: Accumulation

    @property
    def step(self) -> Step:
        """This optimizer's part of the open step."""

    @property
    def exchanges(self) -> bool:
        """Whether there are other workers to exchange messages with."""

    @property
    def is_broken_off(self) -> bool:
        """Whether a backward pass of the open step has failed, and nothing was reduced since."""

    @property
    def has_sums(self) -> bool:
        """Whether gradients were added up in the open step and not sent yet."""

    def exchange(self, payload: bytes) -> list[bytes]:
        """Send ``payload`` to all workers, and return what each has sent, in rank order."""

    def refuse_changed(self) -> None:
        """Raise a UsageError if the script has changed gradients that are reduced already."""

    def backward_ended(self) -> None:
        """End a backward pass that has computed gradients of this optimizer."""

    def backward_failed(self) -> None:
        """Forget what was sent in a backward pass that an exception has broken off."""

    def finish(self) -> None:
        """Wait until each gradient of the step is the mean over the global batch."""

    def skip(self) -> None:
        """End the step without an update."""

    def note_skipped(self) -> None:
        """Note that the step ended without an update of this optimizer, if it did."""

    def end_batch(self) -> None:
        """Prepare for the next batch."""


class Optimizers:
    """Those of the script that trains on ``worker``.

    Attributes:
        rounds: what they have reduced in the open step.
        several: there is more than one, or one that wants two backward passes for an update; no
            property, for it is asked once a parameter.
        scaler: which has scaled a loss last.
        backward_end: of the backward pass that runs.
    """

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.reduction_order = ReductionOrder()
        self.several = False
        self.scaler: torch.amp.GradScaler | None = None
        self._reductions: list[OptimizerReduction] = []
        self._computed: list[OptimizerReduction] = []  # in the backward pass that runs
        self._skipped = 0  # batches in a row without an update
        self._owners: dict[torch.nn.Parameter, OptimizerReduction] = {}
        self.backward_end = BackwardEnd(self._backward_ended)

    def add(self, reduction: OptimizerReduction, two_passes: bool = False) -> None:
        """One more; ``two_passes``: it wants two backward passes for an update.

        Raises:
            UsageError: training has begun; or one of them counts its backward passes.
        """
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
        """``owner`` trains ``parameter``.

        Raises:
            UsageError: so does another one.
        """
        if self._owners.setdefault(parameter, owner) is not owner:
            raise UsageError(
                f"{name} is trained by two optimizers; with edl each parameter has one"
            )

    def loss_scale(self) -> float:
        """What the losses of the open step were multiplied by; 1.0 without a scaler."""
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    # --- inside of the forward and backward passes

    def exchange(self) -> Callable[[bytes], list[bytes]] | None:
        """Return what exchanges messages in the open step; None where there is nobody to ask.

        Raises:
            UsageError: with several optimizers.
        """
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
        """The backward pass that runs has computed a gradient of ``reduction``."""
        if reduction not in self._computed:
            self._computed.append(reduction)
        self.backward_end.expect()

    def _backward_ended(self) -> None:
        computed, self._computed = self._computed, []
        if self.several:
            for reduction in self._reductions:
                reduction.refuse_changed()
        with activity.training_here():
            for reduction in self._reductions:  # in an order that is the same on all workers
                if reduction in computed:
                    reduction.backward_ended()

    def see_failure(self) -> None:
        """A backward pass may have been broken off by an exception, which the script handles.

        All optimizers are told that have gradients of it.
        """
        if not self.backward_end.failed:
            return
        self.backward_end.failed = False
        computed, self._computed = self._computed, []
        broken = [each for each in self._reductions if each in computed]
        for reduction in broken:
            reduction.backward_failed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """See :func:`edl.torch.no_sync`."""
        with contextlib.ExitStack() as stack:
            for each in self._reductions:
                stack.enter_context(each.accumulation.no_sync())
            yield

    def leave_out(self) -> bool:
        """The script is done with a batch, without a backward pass; whether its step goes on."""
        self.see_failure()
        return any(each.accumulation.leave_out() for each in self._reductions)

    # --- the end of a step

    def begin_anew(self) -> None:
        """Something is to be reduced: after an update, in the next step.

        Raises:
            UsageError: see :meth:`edl.worker.loader_steps.LoaderSteps.next_part`.
        """
        if self.several and self.worker.loader.step_input.is_between_parts:
            if self.worker.loader.open:
                self._note_skipped()
            self.worker.loader.next_part()

    def begin_update(self, updating: OptimizerReduction) -> None:
        """One makes its update.

        Raises:
            UsageError: with several, another one has added up gradients that are not sent yet.
        """
        if any(each.has_sums and each is not updating for each in self._reductions):
            raise UsageError(
                "with several optimizers, gradients are accumulated for all of them in the same "
                "batches: the backward() before the first optimizer.step() has those of each, "
                "outside of edl.no_sync()"
            )
        self._skipped = 0

    def reduce_broken_off(self, updating: OptimizerReduction) -> None:
        """Before an update: with several, what the others have reduced at the end of a pass.

        The pass was broken off here, so that nothing has come to its end.
        """
        if any(each.is_broken_off for each in self._reductions):
            for each in self._reductions:
                if each is updating or each.is_broken_off:
                    each.finish()

    def skip(self) -> None:
        """The script ends the step, with or without a backward pass or an update.

        Raises:
            UsageError: an exception has broken off its backward pass, on this worker alone.
        """
        self._refuse_broken_off()
        if not self._is_decided:
            for each in self._reductions:
                each.skip()
        if self.several:
            self._end_step()

    def end_batch(self) -> None:
        """The script wants its next batch: a step that is reduced and not applied was skipped.

        Raises:
            UsageError: an exception has broken off its backward pass, on this worker alone.
        """
        if self.worker.loader.open:
            self._refuse_broken_off()
            self._count_skipped()
            if self._is_decided:
                self._end_step()
        for each in self._reductions:
            each.end_batch()

    def _refuse_broken_off(self) -> None:
        self.see_failure()
        step = self.worker.loader.step_input
        if not step.may_grow and any(each.is_broken_off for each in self._reductions):
            raise UsageError(BROKEN_OFF)

    def _count_skipped(self) -> None:
        """Warn, once, of a script that computes gradients and trains nothing."""
        updates = self.worker.loader.step_input.updates
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
        """With several: what becomes of the open step is known, as far as it has come."""
        updates = self.worker.loader.step_input.updates
        return self.several and bool(
            updates or any(each.step.is_decided for each in self._reductions)
        )

    def _end_updated_step(self) -> None:
        if self.worker.loader.step_input.updates:
            self._end_step()

    def _end_step(self) -> None:
        self._note_skipped()
        self.worker.loader.end()

    def _note_skipped(self) -> None:
        for each in self._reductions:
            each.note_skipped()
