"""Accumulate gradients: decide which backward passes only add up, and weight what each pass adds.

Autograd adds what a pass has computed to the gradient of a parameter. A hook right before that
addition multiplies the new part by the weight of the samples of its batch, so that the sums of all
workers can be sent as they are (:mod:`edl.core.step.weighting`). ``torch.autograd.grad`` adds
nothing to a gradient, and does not run this hook.
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
    """A record of what the current backward pass adds to the gradient of one parameter.

    Attributes:
        parameter: the parameter whose gradient is accumulated.
        begin: a function that is called before something is added to the gradient.
        weighted_in: the number of the backward pass whose addition was weighted last; -1 at first.
        is_padding: whether that addition came from a padding batch and the gradient was None
            before.
        node: the autograd node that adds to the gradient; the reference keeps its hooks alive.
    """

    parameter: torch.nn.Parameter
    begin: Callable[[], None]  # called before something is added
    weighted_in: int = -1  # the number of the backward pass in which it was weighted
    is_padding: bool = False  # from a padding batch, and not added to anything
    node: Any = None  # of autograd, which does the addition; kept alive with its hooks


class Accumulation:
    """The gradient accumulation of one optimizer; it counts and weights its backward passes.

    Args:
        worker: the worker of this process.
        reduction: the optimizer's part of each step, which has the weights.
        passes_per_step: how many backward passes make a step. A step that ends after fewer passes
            sends the gradients that there are.

    Attributes:
        passes: how many backward passes have ended in all steps so far.
        expected: whether the script accumulates gradients itself.
        is_watched: whether a hook weights each addition to a gradient before it is made.
        counts_passes: whether a step ends after a number of passes that the script gave to the
            optimizer (``backward_passes_per_step``).
    """

    def __init__(self, worker: Worker, reduction: StepReduction, passes_per_step: int) -> None:
        self.passes = 0
        self._worker = worker
        self._reduction = reduction
        self._no_sync = False
        self._per_step = passes_per_step
        self._left = passes_per_step  # backward passes of this step
        self._parts: list[Contribution] = []
        self.counts_passes = self.expected = passes_per_step > 1
        self.is_watched = self.expected
        if self.expected:
            worker.loader.progress.announces_late = True

    # --- passes

    @property
    def adds_up(self) -> bool:
        """Whether the current backward pass only adds to the gradients and ends no step."""
        return self._no_sync or self._left > 1 or self.is_between_microbatches

    @property
    def is_between_microbatches(self) -> bool:
        """Whether more microbatches of the current batch follow, so that no update is due yet."""
        return self._worker.loader.open and self._worker.loader.step_input.pieces_left > 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes in the ``with`` block add up gradients here, and send none.

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
        """Prepare to add up the gradients of microbatches, if the loader splits batches.

        Args:
            several: whether the script has several optimizers.

        Raises:
            UsageError: the loader splits batches, and the script accumulates gradients itself or
                has several optimizers.
        """
        if not in_microbatches(self._worker):
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
        """Leave the current batch, or microbatch, out of the sums of this worker.

        Returns:
            Whether the step goes on: inside of :meth:`no_sync`, and between two microbatches.
        """
        if self._no_sync or (
            self.is_between_microbatches and not self._worker.loader.step_input.may_grow
        ):
            self._worker.loader.accumulate()
        return self._no_sync or self.is_between_microbatches

    def end_pass(self) -> bool:
        """Count a backward pass at its end, and return whether it only added up gradients."""
        added_up = self.adds_up
        self.passes += 1
        self._left -= 1
        return added_up

    def break_off(self) -> None:
        """Count a backward pass that an exception has broken off, as no part of its step."""
        self.passes += 1

    def begin_step(self) -> bool:
        """Count the backward passes of the next step from 0.

        Returns:
            Whether the step before has counted any passes. Between two batches this means that the
            script has left that step unfinished, and its sums are still in the gradients.
        """
        left, self._left = self._left, self._per_step
        return left < self._per_step

    # --- what the passes add

    def watch(self, parameter: torch.nn.Parameter, begin: Callable[[], None]) -> Contribution:
        """Register ``parameter``, so that each addition to its gradient can be weighted.

        The hook that weights is set now if :attr:`is_watched`, otherwise when :meth:`watch_all` is
        called.

        Args:
            parameter: a parameter of the optimizer.
            begin: a function that the hook calls before something is added to the gradient.

        Returns:
            The record that the hook keeps of the parameter, for :meth:`is_padding`.
        """
        part = Contribution(parameter, begin)
        self._parts.append(part)
        if self.is_watched:
            self._hook(part)
        return part

    def watch_all(self) -> None:
        """Set the hooks of all registered parameters, which weight what is added to gradients."""
        if not self.is_watched:
            self.is_watched = True
            for part in self._parts:
                self._hook(part)

    def is_padding(self, part: Contribution, name: str) -> bool:
        """Return whether a gradient comes from padding batches alone, after a pass has added to it.

        Args:
            part: the record that :meth:`watch` has returned for the parameter.
            name: the name of the parameter, for the error.

        Raises:
            UsageError: the addition was not weighted, because the parameter has another dtype or
                device than when its hook was set.
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
        """Weight a gradient that autograd is about to add; autograd calls this as a hook.

        Args:
            part: the record of the parameter.
            computed: the gradient of the current pass; None if the pass has computed none.

        Returns:
            What is added in place of ``computed``; None if ``computed`` is added as it is.
        """
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
        """Return what gradients of the current batch are multiplied by before autograd adds them.

        The weight is 1.0 also in a step without accumulation, whose gradients are weighted when
        they are sent.
        """
        loader, reduction = self._worker.loader, self._reduction
        if not loader.open or reduction.step.done or not (self.adds_up or loader.step_input.summed):
            return 1.0
        return reduction.weights.part


ONE_UPDATE = "a script that makes one update with each batch"


def in_microbatches(worker: Worker) -> bool:
    """Return whether the loader of ``worker`` splits batches into microbatches."""
    progress = worker.loader.progress
    return progress.attached and progress.source.batching.micro_batch > 0


@contextlib.contextmanager
def requiring_gradient(parameter: torch.nn.Parameter) -> Iterator[torch.nn.Parameter]:
    """Set ``requires_grad`` of ``parameter`` inside the ``with`` block, and restore it at the end.

    PyTorch accepts a hook only on a parameter that requires a gradient.
    """
    required = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        yield parameter
    finally:
        parameter.requires_grad_(required)
