"""Gradient accumulation: which backward passes only add up, and what each adds.

Autograd adds what it has computed to the gradient of a parameter. A hook right before that weighs
it by the samples of its batch, so that the sums of all workers can be sent as they are
(:mod:`edl.core.step.weighting`). `torch.autograd.grad` adds nothing, and passes no such hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from edl.errors import UsageError
from edl.framework.reduction import StepReduction
from edl.worker.worker import Worker


@dataclass(slots=True, eq=False)
class Contribution:
    """What the backward pass that runs adds to the gradient of ``parameter``."""

    parameter: torch.nn.Parameter
    begin: Callable[[], None]  # called before something is added
    weighted_in: int = -1  # the number of the backward pass in which it was weighted
    is_padding: bool = False  # it is of padding, and there was nothing that it is added to
    node: Any = None  # of autograd, which does the addition; kept alive with its hooks


class Accumulation:
    """The backward passes of one optimizer's steps.

    Args:
        passes_per_step: so many make a step; one that ends sooner sends what there is.

    Attributes:
        passes: how many have ended in all.
        expected: gradients are accumulated in this script.
        is_watched: what is added is seen before it is.
        counts_passes: after a number of them that the script has given to the optimizer.
    """

    def __init__(self, worker: Worker, reduction: StepReduction, passes_per_step: int) -> None:
        self.passes = 0
        self._worker = worker
        self._reduction = reduction
        self._no_sync = False
        self._per_step = passes_per_step
        self._left = passes_per_step  # of this step
        self._parts: list[Contribution] = []
        self.counts_passes = self.expected = passes_per_step > 1
        self.is_watched = self.expected
        if self.expected:
            worker.loader.progress.announces_late = True

    # --- passes

    @property
    def adds_up(self) -> bool:
        """The backward pass that runs is not the last one of its step."""
        return self._no_sync or self._left > 1 or self.is_between_microbatches

    @property
    def is_between_microbatches(self) -> bool:
        """More pieces of the batch in hand follow: there is nothing to update by, yet."""
        return self._worker.loader.open and self._worker.loader.step_input.pieces_left > 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Backward passes add up gradients on this worker, and send none.

        Raises:
            UsageError: see :meth:`expect_microbatches`.
        """
        self.expected = True
        self.expect_microbatches()
        self.watch_all()
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    def expect_microbatches(self, several: bool = False) -> None:
        """The loader hands out batches in pieces, if it does: they are added up, too.

        Raises:
            UsageError: the script accumulates gradients itself, or has ``several`` optimizers.
        """
        if not in_pieces(self._worker):
            return
        if several:
            raise UsageError(f"micro_batch is for {ONE_UPDATE}, and it has several optimizers")
        if self._no_sync or self.expected or self._per_step > 1:
            raise UsageError(
                "micro_batch splits batches whose gradients edl adds up, and this script adds up "
                "those of several itself; leave out micro_batch, or edl.no_sync() and "
                "backward_passes_per_step"
            )
        self.watch_all()

    def leave_out(self) -> bool:
        """The script is done with a batch, or a piece; whether its step goes on."""
        if self._no_sync or (
            self.is_between_microbatches and not self._worker.loader.step_input.may_grow
        ):
            self._worker.loader.accumulate()
        return self._no_sync or self.is_between_microbatches

    def end_pass(self) -> bool:
        """A backward pass has ended: whether it has added up, and sent nothing."""
        added_up = self.adds_up
        self.passes += 1
        self._left -= 1
        return added_up

    def break_off(self) -> None:
        """An exception has broken off a backward pass, which is none of its step's."""
        self.passes += 1

    def begin_step(self) -> bool:
        """No step is open: whether there are sums of one that the script has left."""
        left, self._left = self._left, self._per_step
        return left < self._per_step

    # --- what they add

    def watch(self, parameter: torch.nn.Parameter, begin: Callable[[], None]) -> Contribution:
        """Weigh what is added to the gradient of ``parameter``, once anything is accumulated.

        ``begin`` is called before something is added, then or when :meth:`watch_all` says so.
        """
        part = Contribution(parameter, begin)
        self._parts.append(part)
        if self.is_watched:
            self._hook(part)
        return part

    def watch_all(self) -> None:
        """From now on all that is added is to be seen before it is."""
        if not self.is_watched:
            self.is_watched = True
            for part in self._parts:
                self._hook(part)

    def is_padding(self, part: Contribution, name: str) -> bool:
        """Whether the gradient is of padding alone; for a pass that has just added to it.

        Raises:
            UsageError: it was not weighted, for the parameter is no longer what was hooked.
        """
        if part.weighted_in == self.passes:
            return part.is_padding
        if self._weight() != 1.0:
            raise UsageError(
                f"the dtype or the device of {name} has changed since edl.Optimizer; wrap the "
                "optimizer when the model is as it is to be trained"
            )
        return False

    def _hook(self, part: Contribution) -> None:
        with requiring_gradient(part.parameter) as parameter:
            view: Any = parameter.view_as(parameter)
            part.node = view.grad_fn.next_functions[0][0]
        part.node.register_prehook(lambda computed: self._weigh(part, *computed))

    def _weigh(
        self, part: Contribution, computed: torch.Tensor | None
    ) -> tuple[torch.Tensor] | None:
        """What is to be added; None: what was computed."""
        part.begin()
        part.weighted_in, part.is_padding = self.passes, False
        weight = self._weight()
        if weight == 1.0 or computed is None:
            return None
        if weight == 0.0:  # 0 * inf would be nan
            part.is_padding = part.parameter.grad is None
            return (torch.zeros_like(computed),)
        return (computed * weight,)

    def _weight(self) -> float:
        """1 also where nothing is added to what was there, and the sum is weighted when sent."""
        loader, reduction = self._worker.loader, self._reduction
        if not loader.open or reduction.step.done or not (self.adds_up or loader.step_input.summed):
            return 1.0
        return reduction.weights.part


ONE_UPDATE = "a script that makes one update with each batch"


def in_pieces(worker: Worker) -> bool:
    """Whether the loader hands out batches in pieces."""
    progress = worker.loader.progress
    return progress.attached and progress.source.batching.micro_batch > 0


@contextlib.contextmanager
def requiring_gradient(parameter: torch.nn.Parameter) -> Iterator[torch.nn.Parameter]:
    """PyTorch takes a hook only then."""
    required = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        yield parameter
    finally:
        parameter.requires_grad_(required)
