"""Accumulate gradients over several backward passes, and weight what each pass adds.

A pass that only accumulates sends nothing. A hook right before autograd adds to a gradient
multiplies the addend by the weight of the batch: its samples over the nominal batch size, which is
the job's global batch if it has one (the smallest of a range), else the batch of one worker
(:attr:`edl.step.source.Source.batch_size`). So the sums of all workers can be sent as they are, and
their average is scaled to the mean over all samples (:mod:`edl.step.weighting`).
``torch.autograd.grad`` adds nothing to a gradient, and does not run this hook.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from edl.binding.reduction import StepReduction
from edl.errors import RingBroken, UsageError
from edl.ring.ring import CollectiveFailed
from edl.step.weighting import presence, present
from edl.torch.collectives import WIRE_DTYPE, average_start, finish
from edl.torch.optimizer_state import laid_out_like
from edl.worker.worker import Worker


@dataclass(slots=True, eq=False)
class Contribution:
    parameter: torch.nn.Parameter
    begin: Callable[[], None]  # called before something is added
    weighted_in: int = -1  # the number of the backward pass in which it was weighted
    is_padding: bool = False  # from a padding batch, and not added to anything
    node: Any = None  # of autograd, which does the addition; kept alive with its hooks


class Accumulation:
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
        return self._no_sync or self._left > 1 or self.is_between_microbatches

    @property
    def is_between_microbatches(self) -> bool:
        return self._worker.loader.open and self._worker.loader.engine.batches.pieces_left > 0

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        self.expected = True
        self.expect_microbatches()
        self.watch_all()
        before, self._no_sync = self._no_sync, True
        try:
            yield
        finally:
            self._no_sync = before

    def expect_microbatches(self, several: bool = False) -> None:
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
        if self._has_put_zeros:
            self._has_put_zeros = False
            for parameter in parameters:
                parameter.grad = None

    # --- what the passes add

    def watch(self, parameter: torch.nn.Parameter, begin: Callable[[], None]) -> Contribution:
        part = Contribution(parameter, begin)
        self._parts.append(part)
        if self.is_watched:
            self._hook(part)
        return part

    def watch_all(self) -> None:
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


# ------------------------------------------------------------
# Call a function at the end of each backward pass, by callbacks of autograd's engine.

_ENGINE: Any = torch.autograd.Variable._execution_engine
_current_pass: Callable[[], int] = torch._C._current_graph_task_id
_current_node: Callable[[], Any] = torch._C._current_autograd_node


class BackwardEnd:
    """A watcher that calls `ended()` once after each pass in which a hook called `expect`."""

    # On a GPU that may be in a thread of autograd's engine, while the one of `backward()` waits.

    def __init__(self, ended: Callable[[], None]) -> None:
        self.failed = False  # whether an exception has ended such a pass; the user resets it
        self._ended = ended
        self._expected_in = -1

    def expect(self) -> None:
        if (this_pass := _current_pass()) != self._expected_in:
            self._expected_in = this_pass
            _ENGINE.queue_callback(_Pass(self))

    def at_end(self) -> None:
        # Inside of another pass (a reentrant checkpoint), whose gradients are not complete yet, it
        # is called at the end of that.
        if (node := _current_node()) is None:
            self._ended()
        else:  # the node of the outer pass that runs this one; its hooks belong to the outer
            node.register_hook(lambda *_: self.expect())


class _Pass:
    """The callback of one backward pass: if the engine drops it uncalled, the pass has failed."""

    def __init__(self, end: BackwardEnd) -> None:
        self._end = end
        self._came = False

    def __call__(self) -> None:
        self._came = True
        self._end.at_end()

    def __del__(self) -> None:
        if not self._came:
            self._end.failed = True


@dataclass(slots=True)
class PendingAllreduce:
    """An allreduce of one gradient that this worker has started and not waited for yet."""

    handle: int  # Horovod's
    sent: torch.Tensor  # it must stay alive until Horovod has read it
    local: torch.Tensor | None  # the gradient when it was sent; None: zeros were sent
    version: int  # PyTorch's count of in-place writes to `local` when it was sent


LEFTOVER = (
    "the gradient of {name} is still there from the step before; call optimizer.zero_grad() after "
    "each optimizer.step(); to accumulate gradients over batches, use edl.no_sync()"
)


@dataclass(slots=True, eq=False)
class Gradient:
    """The record of one parameter's gradient: when it was computed, sent and averaged."""

    # Local: computed by this worker. Mean: the average over the global batch. Leftover: still there
    # from the step before. Steps of this worker are numbered from 1, backward passes from 0.

    parameter: torch.nn.Parameter
    part: Contribution  # it weights what is added to the gradient
    name: str = ""  # empty: the optimizer does not train it any more
    collective: str = ""  # the name of its allreduce
    computed: int = 0  # the step in which backward computed it last
    computed_in: int = -1  # the number of that backward pass
    pending: PendingAllreduce | None = None
    buffer: torch.Tensor | None = None  # memory for the next average
    left: weakref.ref[torch.Tensor] | None = None  # the gradient when the last step was complete
    left_version: int = 0  # the count of in-place writes to it then
    local: torch.Tensor | None = None  # with several optimizers: the local gradient
    mean_in: int = -1  # the step whose mean the gradient is; -1: none
    is_mixed: bool = False  # a gradient of an earlier step is part of it
    forgotten_in: int = -1  # the step in which the script cleared it
    forgotten: torch.Tensor | None = None  # the gradient after that: None, or zeros
    microbatches: torch.Tensor | None = None  # the sum over all but the last
    pieces_of: int = -1  # the step that the microbatches belong to

    def is_local(self, step: int) -> bool:
        """Return whether it is local, or set by the script, and not the mean of `step`."""
        if self.pending is not None:
            return True
        if self.parameter.grad is None or self.mean_in == step:
            return False
        return self.computed == step or not self.is_leftover()

    def is_leftover(self, since: int = 0) -> bool:
        """Return whether it is what the last step has left, written to `since` times."""
        if self.left is None or (gradient := self.parameter.grad) is None:
            return False
        return self.left() is gradient and gradient._version == self.left_version + since

    def check_no_leftover(self, since: int = 0) -> None:
        if self.is_leftover(since):
            raise UsageError(LEFTOVER.format(name=self.name))

    def check_unmixed(self, step: int) -> None:
        gradient = self.parameter.grad
        if gradient is None or (self.is_mixed and not gradient.any()):
            self.is_mixed = False
            return
        is_of_step = self.computed == step or self.mean_in == step
        if self.is_mixed or (not is_of_step and self.is_leftover()):
            raise UsageError(LEFTOVER.format(name=self.name))

    def remember(self) -> None:
        gradient = self.parameter.grad
        if gradient is None:
            self.left = None
        else:
            self.left, self.left_version = weakref.ref(gradient), gradient._version

    def check_unchanged(self) -> None:
        flight, local = self.pending, self.parameter.grad
        assert flight is not None
        version = 0 if local is None else local._version
        if local is not flight.local or version != flight.version:
            raise UsageError(
                f"the gradient of {self.name} was changed while it was being reduced; change "
                "gradients when backward() has returned, for example before optimizer.step(): "
                "they are the mean over all workers then"
            )

    def mean_of(self, average: torch.Tensor) -> torch.Tensor:
        parameter, local = self.parameter, self.parameter.grad
        dtype = parameter.dtype if local is None else local.dtype
        if parameter.is_contiguous():
            return average.to(dtype)
        return laid_out_like(parameter, average, dtype)

    # --- microbatches

    def put_aside(self, step: int) -> None:
        """Move a microbatch's gradient into the sum, which `zero_grad()` cannot clear."""
        if self.computed != step or (gradient := self.parameter.grad) is None:
            return
        self.parameter.grad = None
        before = self.microbatches if self.pieces_of == step else None
        self.microbatches = gradient if before is None else before.add_(gradient)
        self.pieces_of = step

    def take_back(self, step: int) -> None:
        """Set the gradient to the sum over all microbatches of the step, after the last of them."""
        pieces, self.microbatches = self.microbatches, None
        if pieces is None or self.pieces_of != step:
            return
        own = self.parameter.grad if self.computed == step else None
        self.parameter.grad = pieces if own is None else pieces.add_(own)
        self.computed = step

    # --- with several optimizers: a backward pass may add to a gradient that is the mean already

    def become_mean(self, mean: torch.Tensor, step: int) -> None:
        if self.computed != step:  # this worker has not: it may be left of an earlier step
            self.is_mixed = self.is_leftover() or (self.is_mixed and not self._is_forgotten())
        self.local, self.parameter.grad, self.mean_in = self.parameter.grad, mean, step
        self.remember()

    def become_local(self, step: int) -> None:
        """Set the parameter's gradient from the mean of `step` back to the local gradient."""
        if self.mean_in == step:
            if self._is_forgotten():
                self.forgotten_in, self.forgotten = step, self.parameter.grad
            else:
                self.parameter.grad = self.local
            self.local, self.mean_in = None, -1

    def forget_again(self, step: int) -> None:
        """After a repeated reduction, clear the gradient again if the script had in `step`."""
        if self.forgotten_in == step:
            self.parameter.grad, self.local, self.mean_in = self.forgotten, None, -1

    def check_mean_unchanged(self, step: int) -> None:
        # If the ring broke later, the local gradient would be reduced again, without the change.
        if self.mean_in == step and not self.is_leftover() and not self._is_forgotten():
            raise UsageError(
                f"the gradient of {self.name} was changed between two backward passes of one step; "
                "change gradients (clip, unscale) after the last backward() before an update, or "
                "make the update first"
            )

    def _is_forgotten(self) -> bool:
        gradient = self.parameter.grad
        return gradient is None or (not self.is_leftover() and not gradient.any())

    def expect_more(self, step: int) -> None:
        """Prepare the gradient for an addition by autograd in step `step`, right before it."""
        if self.parameter.grad is None:
            self.is_mixed = False
        if self.mean_in == step:
            self.check_mean_unchanged(step)
            self.become_local(step)
            self.forgotten_in, self.forgotten = -1, None
        elif self.computed != step:
            self.is_mixed = self.is_leftover()


def not_finite(gradients: list[torch.Tensor]) -> torch.Tensor:
    finite = [gradient.isfinite().all() for gradient in gradients]
    return ~torch.stack([each.to(finite[0].device) for each in finite]).all()


# ------------------------------------------------------------
# Send gradients around the ring, and agree with all workers which parameters have a gradient.
#
# The local gradient is sent as it is, or a weighted copy of it; its average is received into a
# separate buffer. If the ring breaks, `with_gradient` or `wait` raises `RingBroken`; `backward()`
# itself never raises it.

PRESENT = "edl.present"  # the collective that says which parameters have a gradient


class PendingAllreduces:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._gradients: list[Gradient] = []
        self.is_void = False  # they were sent in a backward pass that has failed: none count
        self._failed: RingBroken | None = None  # from an early send; raised by the wait

    def send_early(self, gradient: Gradient, reduction: StepReduction) -> None:
        """Start the allreduce of `gradient` while backward runs, without raising RingBroken."""
        if self._failed is None:
            try:
                self.send(gradient, reduction)
            except RingBroken as error:
                self._failed = error

    def send(self, gradient: Gradient, reduction: StepReduction) -> None:
        """Start the allreduce of `gradient`; this worker sends zeros if it has no gradient."""
        sent = _weighted(gradient, reduction)
        buffer, gradient.buffer = gradient.buffer, None
        if buffer is None or buffer.shape != sent.shape or buffer.dtype != sent.dtype:
            buffer = torch.empty_like(sent)
        handle = self._guard(average_start, _real(sent), _real(buffer), gradient.collective)
        if not self._gradients:
            reduction.sending()
        local = gradient.parameter.grad
        version = 0 if local is None else local._version
        gradient.pending = PendingAllreduce(handle, sent, local, version)
        self._gradients.append(gradient)

    def void(self) -> None:
        """Mark all gradients that were sent as void: all workers will send theirs once more."""
        self.is_void = self.is_void or bool(self._gradients)

    def with_gradient(
        self, gradients: list[Gradient], reduction: StepReduction, suffix: str
    ) -> tuple[list[Gradient], bool]:
        """Agree with all workers which parameters have a gradient, and whether some are void."""
        if self._failed is not None:
            raise self._failed
        step, samples = reduction.step.number, reduction.share.samples
        mine = presence(samples, [each.is_local(step) for each in gradients], self.is_void)
        # An average of float32, as gradients are, so that Horovod sends it with the last of them.
        row = torch.tensor(mine, dtype=torch.float32, device="cpu")  # whatever the defaults
        handle = self._guard(average_start, row, torch.empty_like(row), f"{PRESENT}{suffix}")
        shares, is_void = present(self._wait(handle).tolist())
        found = [each for each, is_there in zip(gradients, shares, strict=True) if is_there]
        return found, is_void  # void: all are sent once more, when these are averaged

    def wait(self, gradient: Gradient) -> torch.Tensor:
        assert gradient.pending is not None
        average = self._wait(gradient.pending.handle)
        return torch.view_as_complex(average) if gradient.pending.sent.is_complex() else average

    def all_done(self) -> None:
        self._gradients.clear()
        self.is_void = False

    def forget(self) -> None:
        for gradient in self._gradients:
            assert gradient.pending is not None
            with contextlib.suppress(RingBroken):
                self._wait(gradient.pending.handle)
            gradient.pending = None
        self._gradients.clear()
        self._failed, self.is_void = None, False

    def _wait(self, handle: int) -> torch.Tensor:
        average: torch.Tensor = self._guard(finish, handle)  # None for one that was waited for
        return average

    def _guard(self, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error


def _weighted(gradient: Gradient, reduction: StepReduction) -> torch.Tensor:
    weight, parameter, local = reduction.part.sent, gradient.parameter, None
    if gradient.is_local(reduction.step.number):
        local = parameter.grad
    dtype = parameter.dtype if local is None else local.dtype
    wire = WIRE_DTYPE.get(dtype, dtype)
    if local is None or weight == 0.0:  # 0 * inf would be nan
        return torch.zeros_like(parameter, dtype=wire).contiguous()
    if local.requires_grad:  # backward(create_graph=True)
        local = local.detach()
    weighted = local if weight == 1.0 else local * weight
    return weighted.to(wire).contiguous().resolve_conj()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return `tensor` viewed as real numbers if it is complex, because Horovod has no such type."""
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
