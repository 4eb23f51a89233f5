"""Accumulate gradients over several backward passes, and weight what each pass adds.

:class:`Accumulation` does it for one optimizer. A pass that only accumulates adds to this worker's
gradients and sends none. Autograd adds what a pass has computed to the gradient of a parameter. A
hook right before that addition multiplies the addend by the weight of the batch, which is the
number of its samples over the nominal batch size: the job's global batch if it has one (the
smallest of a range), else the batch of one worker (:attr:`edl.core.step.source.Source.batch_size`).
So the sums of all workers can be sent as they are; their average is then scaled to the mean over
all samples (:mod:`edl.core.step.weighting`). ``torch.autograd.grad`` adds nothing to a gradient,
and does not run this hook.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from edl.errors import UsageError
from edl.framework.reduction import StepReduction
from edl.worker.worker import Worker


@dataclass(slots=True, eq=False)
class Contribution:
    """The record of one parameter for the hook that weights what is added to its gradient."""

    parameter: torch.nn.Parameter
    begin: Callable[[], None]  # called before something is added
    weighted_in: int = -1  # the number of the backward pass in which it was weighted
    is_padding: bool = False  # from a padding batch, and not added to anything
    node: Any = None  # of autograd, which does the addition; kept alive with its hooks


class Accumulation:
    """The gradient accumulation of one optimizer: it counts and weights backward passes."""

    def __init__(self, worker: Worker, reduction: StepReduction, passes_per_step: int) -> None:
        self.passes = 0  # backward passes that have ended, or failed, in all steps so far
        self._worker = worker
        self._reduction = reduction
        self._no_sync = False
        self._per_step = 1 if worker.logical else passes_per_step
        self._left = self._per_step  # backward passes of this step
        self._parts: list[Contribution] = []
        self._zeros: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._has_put_zeros = False
        self.counts_passes = passes_per_step > 1
        # The hooks that weight are set; and the script adds up the gradients of batches itself.
        self.is_watched = self.expected = self._per_step > 1
        if self.expected:
            worker.loader.engine.late = True

    # --- passes

    @property
    def adds_up(self) -> bool:
        """Whether the current or next backward pass only adds to the gradients, and sends none."""
        return self._no_sync or self._left > 1 or self.is_between_microbatches

    @property
    def is_between_microbatches(self) -> bool:
        """Whether more microbatches of the current batch follow, so that no update is made yet."""
        return self._worker.loader.open and self._worker.loader.engine.batches.pieces_left > 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let backward passes in the `with` block add to the local gradients, and send none."""
        self.expected = True
        self.expect_microbatches()
        self.watch_all()
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    def expect_microbatches(self, several: bool = False) -> None:
        """Set the hooks that weight gradients, if the loader splits batches into microbatches."""
        if not in_microbatches(self._worker):
            return
        setting = "--logical" if self._worker.loader.engine.logical else "micro_batch"
        if several:
            raise UsageError(f"{setting} is for {ONE_UPDATE}, and it has several optimizers")
        if self._no_sync or self.expected:
            raise UsageError(
                f"{setting} splits batches whose gradients edl adds up, and this script adds up "
                f"those of several itself; leave out {setting}, or edl.no_sync() and "
                "backward_passes_per_step"
            )
        self.watch_all()

    def leave_out(self) -> bool:
        """Leave out a batch or microbatch without a backward pass; return if the step goes on."""
        if self._no_sync or (
            self.is_between_microbatches and not self._worker.loader.engine.batches.may_grow
        ):
            self._worker.loader.accumulate()
        return self._no_sync or self.is_between_microbatches  # else the caller ends the batch

    def end_pass(self) -> bool:
        """Count a backward pass that has ended; return whether it only added to the gradients."""
        added_up = self.adds_up
        self.passes += 1
        self._left -= 1
        return added_up

    def break_off(self) -> None:
        """Count a backward pass that has failed, in `passes` only."""
        self.passes += 1

    def begin_step(self) -> bool:
        """Begin to count the passes of a step anew; return whether the step before has had one."""
        left, self._left = self._left, self._per_step
        return left < self._per_step

    # --- what the script finds between two microbatches

    def put_zeros(
        self, parameters: Iterable[torch.nn.Parameter], also: Collection[torch.nn.Parameter]
    ) -> None:
        """Set gradients to zeros if microbatches follow: scripts clip and read them in each."""
        if not self.is_between_microbatches:
            return
        self._has_put_zeros = True
        for memory in self._zeros.values():  # the script may have written to it
            memory.zero_()
        for parameter in parameters:
            if parameter.grad is None and (parameter.requires_grad or parameter in also):
                kind, size = (parameter.dtype, parameter.device), parameter.numel()
                if kind not in self._zeros or len(self._zeros[kind]) < size:
                    self._zeros[kind] = torch.zeros(size, dtype=kind[0], device=kind[1])
                # All share the memory of the largest, so that no time is spent on zeros.
                parameter.grad = self._zeros[kind][:size].view(parameter.shape)

    def drop_zeros(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        """Drop what `put_zeros` has set, and what the script has made of it."""
        if self._has_put_zeros:
            self._has_put_zeros = False
            for parameter in parameters:
                parameter.grad = None

    # --- what the passes add

    def watch(self, parameter: torch.nn.Parameter, begin: Callable[[], None]) -> Contribution:
        """Register `parameter`, so that each addition to its gradient can be weighted."""
        part = Contribution(parameter, begin)
        self._parts.append(part)
        if self.is_watched:
            self._hook(part)
        return part

    def watch_all(self) -> None:
        """Set the hooks that weight additions to the gradients of all registered parameters."""
        if not self.is_watched:
            self.is_watched = True
            for part in self._parts:
                self._hook(part)

    def is_padding(self, part: Contribution, name: str) -> bool:
        """Return whether all that was added to a gradient so far comes from padding batches."""
        if part.weighted_in == self.passes:  # it is called before `end_pass`
            return part.is_padding
        if self._weight() != 1.0:
            raise UsageError(
                f"the dtype or the device of {name} has changed since edl.Optimizer; wrap the "
                "optimizer when the model is as it is to be trained"
            )
        return False

    def _hook(self, part: Contribution) -> None:
        if not can_have_gradient(part.parameter):
            return
        with requiring_gradient(part.parameter) as parameter:
            view: Any = parameter.view_as(parameter)
            part.node = view.grad_fn.next_functions[0][0]
        part.node.register_prehook(lambda computed: self._weigh(part, *computed))

    def _weigh(
        self, part: Contribution, computed: torch.Tensor | None
    ) -> tuple[torch.Tensor] | None:
        """Weight a gradient that autograd is about to add; autograd calls this as a hook."""
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
        """Return the factor that the hooks multiply gradients of the current batch by."""
        loader, reduction = self._worker.loader, self._reduction
        if not loader.open or reduction.step.done:
            return 1.0
        if not (self.adds_up or loader.engine.batches.summed):
            return 1.0  # they are weighted when they are sent
        part, batch = reduction.part.part, loader.engine.batches.newest
        if loader.engine.logical:  # they are weighted when they are added up
            return float(part > 0 or (batch is not None and batch.repeats))
        return part


ONE_UPDATE = "a script that makes one update with each batch"


def in_microbatches(worker: Worker) -> bool:
    """Return whether the loader of `worker` splits batches into microbatches."""
    progress = worker.loader.progress
    return progress.attached and progress.source.batching.micro_batch > 0


def can_have_gradient(parameter: torch.nn.Parameter) -> bool:
    """Return whether `parameter` can have a gradient: not integers, as of a quantized model."""
    return parameter.is_floating_point() or parameter.is_complex()


@contextlib.contextmanager
def requiring_gradient(parameter: torch.nn.Parameter) -> Iterator[torch.nn.Parameter]:
    """Let `parameter` require a gradient in the `with` block: PyTorch sets hooks only then."""
    required = parameter.requires_grad
    parameter.requires_grad_(True)
    try:
        yield parameter
    finally:
        parameter.requires_grad_(required)
