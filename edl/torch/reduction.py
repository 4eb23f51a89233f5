"""Reduce gradients: send them while backward still runs, weight them, and average them exactly.

Autograd hands each parameter's gradient to Horovod the moment it has accumulated it. The gradient
is weighted before and after the average (:mod:`edl.step.weighting`); with full batches both factors
are 1 and nothing is multiplied. The local gradient is not written to before the step is complete,
so that a survivor of a broken ring can send it again (promise 5 of docs/explanation/guarantees.md).
After the step its memory receives the next average: memory for two gradients a parameter, and no
copy unless the parameter is not row-major. When ``backward()`` returns, each gradient is the mean
over the global batch, so scripts clip and scale the job's gradients.

With several optimizers a backward pass may add to gradients that are the mean already: before it
does, the local gradients take the places of the means, and the sums are sent again. Inside of
``no_sync()``, and in all but the last of ``backward_passes_per_step``, gradients are added up here,
each weighted by the samples of its batch. Those of logical workers are added up exactly
(:mod:`edl.torch.logical`).
"""

from __future__ import annotations

import contextlib
import logging
import operator
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from edl.binding.loop import RandomNumbers, average_buffers
from edl.binding.reduction import Looked, NoiseMeter, StepReduction
from edl.errors import UsageError
from edl.step.engine import OptimizerStep, StepState
from edl.step.weighting import Weights
from edl.torch.gradients import (
    Accumulation,
    BackwardEnd,
    Gradient,
    PendingAllreduces,
    can_have_gradient,
    not_finite,
    requiring_gradient,
)
from edl.torch.logical import LogicalSums, Means, copy_each
from edl.torch.optimizer_state import LastStep, is_sharpness_aware, optimizer_parameters
from edl.worker import activity
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

# ------------------------------------------------------------
# Coordinate all optimizers of a script, and the backward passes that compute their gradients.
#
# With one optimizer `step` ends a step. With several, a step ends when the next backward pass
# begins after an update, or when the script asks for the next batch. One that takes two backward
# passes for an update (SAM) is treated like several. All gradients that the updates of a step need
# are reduced before the first of these updates. See `engine`.

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


class Optimizers:
    def __init__(self, worker: Worker) -> None:
        self.worker, self._thread = worker, threading.get_ident()
        # More than one, or one that takes two backward passes for an update.
        self.is_multi = False  # no property: it is read once for each parameter
        # Of logical workers: gradients stay local until `step()`, as with Horovod's optimizer.
        self.wait_for_step = False
        self.never_none: frozenset[torch.nn.Parameter] = frozenset()  # zeros if none computes one
        self.scaler: torch.amp.GradScaler | None = None  # the one that was used last
        self._reductions: list[GradientReduction] = []
        self._computed: list[GradientReduction] = []  # in the current backward pass
        self._skipped = 0  # batches in a row without an update
        self._updating: dict[GradientReduction, int] = {}  # the last step whose update was begun
        self._numbers: RandomNumbers | None = None
        self._owners: dict[torch.nn.Parameter, GradientReduction] = {}
        self.backward_end = BackwardEnd(self._backward_ended)
        worker.loader.on_reduced, worker.loader.on_pass = self._reduced, self.begin_piece
        worker.finishing.end_batch = self.end_batch

    def add(self, reduction: GradientReduction, two_passes: bool = False) -> None:
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
        self.is_multi = self.is_multi or several
        if self.is_multi:
            self.worker.loader.before_exchange = lambda: (
                self._end_step() if self.worker.loader.engine.updates else None
            )
            for each in self._reductions:
                each.accumulation.watch_all()

    def claim(self, parameter: torch.nn.Parameter, name: str, owner: GradientReduction) -> None:
        if self._owners.setdefault(parameter, owner) is not owner:
            raise UsageError(
                f"{name} is trained by two optimizers; with edl each parameter has one"
            )

    def loss_scale(self) -> float:
        return 1.0 if self.scaler is None else float(self.scaler.get_scale())

    # --- inside of the forward and backward passes

    def exchange(self) -> Callable[[bytes], list[bytes]] | None:
        """Return the function by which SyncBatchNorm exchanges statistics in the current step."""
        first = self._reductions[0]
        if not first.exchanges:
            return None
        if self.is_multi:
            raise UsageError(
                "SyncBatchNorm works with one edl.Optimizer that makes one update for each batch; "
                "with several, use torch.nn.BatchNorm1d, 2d or 3d, whose statistics are each "
                "worker's own"
            )
        return first.exchange

    # --- backward passes

    def computed(self, reduction: GradientReduction) -> None:
        if reduction not in self._computed:
            self._computed.append(reduction)
        self.backward_end.expect()

    def _backward_ended(self) -> None:
        computed, self._computed = self._computed, []
        if self.is_multi:
            for reduction in self._reductions:
                reduction.check_mean_unchanged()
        # Autograd may call this in a thread of its own, which is then the training thread.
        in_script = threading.get_ident() == self._thread
        with contextlib.nullcontext() if in_script else activity.training_here():
            for reduction in self._reductions:  # in an order that is the same on all workers
                if reduction in computed:
                    reduction.backward_ended()

    def void_failed_backward(self) -> None:
        """Void what a failed backward pass has sent; the script may have caught its exception."""
        if not self.backward_end.failed:
            return
        self.backward_end.failed = False
        computed, self._computed = self._computed, []
        for reduction in computed:
            reduction.backward_failed()

    @contextlib.contextmanager
    def no_sync(self) -> Iterator[None]:
        with contextlib.ExitStack() as stack:
            for each in self._reductions:
                stack.enter_context(each.accumulation.no_sync())
            yield

    def leave_out(self) -> bool:
        """Leave out a batch without a backward pass; return whether the step goes on."""
        self.void_failed_backward()
        return any(each.accumulation.leave_out() for each in self._reductions)

    # --- the end of a step

    def next_update(self) -> None:
        """If an optimizer has made its update, end the step; begin the next on the same batch."""
        if self.is_multi and self.worker.loader.engine.is_between_parts:
            if self.worker.loader.open:
                self._note_skipped()
            self.worker.loader.next_part()

    def begin_update(self, updating: GradientReduction) -> None:
        if any(each.has_sums and each is not updating for each in self._reductions):
            raise UsageError(
                "with several optimizers, gradients are accumulated for all of them in the same "
                "batches: the backward() before the first optimizer.step() has those of each, "
                "outside of edl.no_sync()"
            )
        self._skipped = 0
        self._updating[updating] = updating.step.number
        if any(each.is_broken_off for each in self._reductions):
            # An exception has ended a backward pass. The others have reduced all of these at the
            # end of that pass, and wait for this worker.
            for each in self._reductions:
                if each is updating or each.is_broken_off:
                    each.finish()

    def skip(self) -> None:
        self._check_broken_off()
        if not self._is_decided:
            for each in self._reductions:
                each.skip()
        if self.is_multi:
            self._end_step()

    def end_batch(self) -> None:
        if self.worker.loader.open:
            self._check_broken_off()
            updates = self.worker.loader.engine.updates
            if not updates and any(each.step.is_decided for each in self._reductions):
                self._skipped += 1
                if self._skipped == MANY_SKIPPED:
                    logger.warning(
                        "%d batches in a row had a backward() and no optimizer.step(): the model "
                        "does not change; call optimizer.step() for each batch",
                        MANY_SKIPPED,
                    )
            if self._is_decided:
                self._end_step()
        for each in self._reductions:
            each.end_batch()

    def begin_piece(self, numbers: RandomNumbers) -> None:
        loader, self._numbers = self.worker.loader, numbers
        if loader.engine.logical:
            batch = loader.engine.batches.newest
            numbers.begin_piece(loader.epoch, 0 if batch is None else batch.position)
            for each in self._reductions:
                each.begin_piece(numbers.script)

    def begin_logical_update(self) -> None:
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
        if not (self.is_multi or self.worker.logical):
            self.end_draws()

    def _check_broken_off(self) -> None:
        self.void_failed_backward()
        self._check_failed_update()
        step = self.worker.loader.engine
        if not step.batches.may_grow and any(each.is_broken_off for each in self._reductions):
            raise UsageError(BROKEN_OFF)

    def _check_failed_update(self) -> None:
        for each, number in self._updating.items():
            if number == each.step.number and each.step.state is StepState.REDUCED:
                raise UsageError(UPDATE_FAILED)

    @property
    def _is_decided(self) -> bool:
        updates = self.worker.loader.engine.updates
        return self.is_multi and bool(
            updates or any(each.step.is_decided for each in self._reductions)
        )

    def _end_step(self) -> None:
        self._note_skipped()
        self.worker.loader.end()

    def _note_skipped(self) -> None:
        self._check_failed_update()
        for each in self._reductions:
            each.note_skipped()


# ------------------------------------------------------------
# Measure the squared norms of PyTorch's gradients, for the gradient noise scale.
#
# For an optimizer of Adam's kind the norms are those of the scaled
# gradient g / (sqrt(v) + eps), with the gradient g, Adam's running mean v of squared gradients and
# its constant eps: a larger batch reduces the noise of the scaled gradient (adaptdl does the same).
# Until v covers 5 steps, the norms are those of the gradients themselves.

MIN_STEPS = 5  # with fewer, Adam's v is a mean of too few gradients


class TorchNoise(NoiseMeter):
    def __init__(
        self, worker: Worker, optimizer: torch.optim.Optimizer, scale: Callable[[], float]
    ) -> None:
        super().__init__(worker)
        self._optimizer, self._scale = optimizer, scale

    def show_reduced(self, averaged: Sequence[tuple[Gradient, torch.Tensor]]) -> None:
        denominators = {g.parameter: self._denominator(g.parameter) for g, _ in averaged}
        own = [(gradient.parameter, gradient.parameter.grad) for gradient, _ in averaged]
        mean = [(gradient.parameter, average) for gradient, average in averaged]
        self.show(lambda: self._seen(own, denominators), lambda: self._seen(mean, denominators))

    def show_own(self, gradients: Sequence[Gradient]) -> None:
        own = [(gradient.parameter, gradient.parameter.grad) for gradient in gradients]
        denominators = {parameter: self._denominator(parameter) for parameter, _ in own}
        self.show(lambda: self._seen(own, denominators), lambda: self._seen(own, denominators))

    def _seen(
        self,
        of: Sequence[tuple[torch.nn.Parameter, torch.Tensor | None]],
        denominators: Mapping[torch.nn.Parameter, torch.Tensor | None],
    ) -> Looked:
        seen = []
        for parameter, gradient in of:
            if gradient is None:
                continue
            part, times = self._looked_at(gradient.numel())
            numbers = _at_least_float32(gradient.detach().to_dense().reshape(-1)[part])
            if numbers.is_complex():
                numbers = numbers.abs()
            denominator = denominators[parameter]
            seen.append((numbers if denominator is None else numbers / denominator, times))
        return seen

    def _denominator(self, parameter: torch.nn.Parameter) -> torch.Tensor | None:
        state = getattr(self._optimizer, "state", {}).get(parameter, {})
        squares, steps = state.get("exp_avg_sq"), float(state.get("step", 0))
        if squares is None or squares.shape != parameter.shape or steps < MIN_STEPS:
            return None
        if squares.is_complex():  # squares of the real and of the imaginary parts
            return None
        group = next(
            group
            for group in self._optimizer.param_groups
            if any(each is parameter for each in group["params"])
        )
        if not {"betas", "eps"} <= group.keys():  # not Adam: exp_avg_sq may mean something else
            return None
        correction = 1.0 - float(group["betas"][1]) ** steps
        part, _ = self._looked_at(squares.numel())
        found: torch.Tensor = (
            (_at_least_float32(squares.reshape(-1)[part]) / correction).sqrt_().add_(group["eps"])
        )
        return found

    def _unit(self) -> float:
        return self._scale() ** 2

    def _square(self, gradients: Looked) -> float:
        if not gradients:
            return 0.0
        device = gradients[0][0].device
        norms = torch._foreach_norm([numbers for numbers, _ in gradients])
        squares = torch.stack([norm.to(device) for norm in norms]).double().square()
        times = torch.tensor([times for _, times in gradients], dtype=torch.float64, device=device)
        return float(squares @ times)


def _at_least_float32(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.float() if numbers.element_size() < 4 else numbers


NO_BATCH = (
    "optimizer.step() was called without a batch from the edl loader, or again for the same one; "
    "take each training batch from edl.DataLoader, and call optimizer.step() once for it (with "
    "several optimizers, before edl.mean() or edl.gather() if its gradients were computed before)"
)

TWICE = (
    "optimizer.step() was called twice for the gradients of one backward(); call backward() again "
    "before the second, or take another batch"
)


class GradientReduction:
    def __init__(
        self,
        optimizers: Optimizers,
        optimizer: torch.optim.Optimizer,
        model: torch.nn.Module,
        last_step: LastStep,
        passes_per_step: int = 1,
    ) -> None:
        self._worker = optimizers.worker
        self._optimizers = optimizers
        self._optimizer = optimizer
        self._model = model
        self._last_step = last_step
        self._listed: list[torch.nn.Parameter] = []  # the optimizer's, in its order
        self._gradients: list[Gradient] = []  # of the parameters in _listed
        self._broken_off_in = -1  # the step in which a backward pass failed last
        self._summed_in = -1  # the step in which gradients were added up last
        self._hooked: dict[torch.nn.Parameter, Gradient] = {}
        self._pending = PendingAllreduces(self._worker)
        self._averages: list[tuple[Gradient, torch.Tensor]] | None = None
        self._reduction = StepReduction(self._worker, self)
        self.accumulation = Accumulation(self._worker, self._reduction, passes_per_step)
        self._noise = TorchNoise(self._worker, optimizer, optimizers.loss_scale)
        self._suffix = str(self._reduction.number or "")  # the end of the names of collectives
        self._logical: LogicalSums | None = None  # None: the job has no logical workers
        if self._worker.logical:
            self._logical = LogicalSums(self._worker, model, self._suffix, passes_per_step)
        self._means: Means | None = None  # of logical workers
        optimizers.add(self, is_sharpness_aware(optimizer))
        self._hook_new()

    # --- the life of a step

    def finish(self) -> None:
        """Wait until every gradient of the step is the mean over its global batch. Idempotent."""
        if not self._worker.loader.open:
            raise UsageError(NO_BATCH)
        if self._reduction.done:
            return
        self._hook_new()
        if not self._optimizers.is_multi:
            number = self._reduction.step.number
            for gradient in self._gradients:
                gradient.take_back(number)  # if the last microbatch had no gradient
                if gradient.computed != number:
                    gradient.check_no_leftover()
        if self._logical is not None:
            self._logical.end_batch(self._gradients)
        self._reduction.reduce()

    # --- what the step's engine asks for: see edl.worker.loader_steps.Reducer

    def allreduce(self, weights: Weights, again: bool) -> None:
        if self._logical is not None:
            self._means = self._logical.means(self._gradients, weights, self._reduction.sending)
            return
        if again:
            for gradient in self._gradients:
                gradient.become_local(self._reduction.step.number)
        self._averages = self._average(weights)

    def place_result(self, again: bool) -> None:
        averages, self._averages = self._averages, None
        step = self._reduction.step
        if self._logical is not None and not step.changes_nothing:
            # The gradients and the buffers become their means over all logical workers.
            means, self._means = self._means, None
            if means is None and (agreed := self._reduction.part.agreed):  # this worker is alone
                means = self._logical.means(self._gradients, agreed, self._reduction.sending)
            assert means is not None
            self._take_over(means.gradients)
            buffers = [buffer.detach() for buffer, _ in means.buffers]
            copy_each(buffers, [mean for _, mean in means.buffers])
            self._optimizers.begin_logical_update()
        elif averages is not None:
            if self._noise.wants:
                self._noise.show_reduced(averages)
            self._take_over(averages)
        elif step.changes_nothing:
            superseded = step.state is StepState.SUPERSEDED
            # The others may have skipped the update, and the script here must decide the same.
            self._fill(torch.inf if superseded and self._last_step.skipped else 0.0)
        else:
            for gradient in self._gradients if again else ():
                gradient.become_local(step.number)
            self._keep(self._reduction.part.local_scale)
            if self._noise.wants:
                self._noise.show_own(self._gradients)
        if again:
            for gradient in self._gradients:
                gradient.forget_again(step.number)

    def forget(self) -> None:
        self._averages = self._means = None
        self._pending.forget()

    def begin_piece(self, seed: int) -> None:
        if self._logical is not None:
            self._logical.end_piece(self._gradients)  # if the script has left it out
            self._logical.begin_piece(self._reduction.step.number, seed)

    def synchronize(self) -> None:
        self._optimizers.void_failed_backward()
        if self.accumulation.is_between_microbatches:
            return
        if not self._reduction.done:
            self._optimizers.next_update()
        if self._worker.loader.open:
            self.finish()
            # A death may have given this worker more passes.
            self.accumulation.put_zeros(self._listed, self._optimizers.never_none)

    def begin_update(self) -> None:
        self._optimizers.void_failed_backward()
        if self._logical is not None:
            self._logical.check_options(self._optimizer, self._reduction.step.number, is_last=True)
        if self._optimizers.is_multi:
            if self._reduction.step.state is StepState.APPLIED:
                raise UsageError(TWICE)
            if not self._reduction.done:
                self._optimizers.next_update()
        self._optimizers.begin_update(self)
        self.finish()
        if self._optimizers.is_multi:
            for gradient in self._gradients:
                gradient.check_unmixed(self._reduction.step.number)
        if self._reduction.step.changes_nothing:
            # For a gradient of zero, momentum or weight decay would change something.
            for parameter in self._listed:
                parameter.grad = None

    def end_step(self, skipped: bool | torch.Tensor) -> None:
        if not self._reduction.step.changes_nothing:
            self._last_step.skipped = skipped
        put_back, self._last_step.missed = self._last_step.missed, None
        if put_back is not None and self._reduction.step.changes_nothing:
            put_back()
        if skipped is not True:
            self._reduction.apply()
        if not self._optimizers.is_multi:
            self._optimizers.end_draws()
            self._reduction.end_step()
            self.accumulation.begin_step()
            if self._logical is not None:
                self._logical.clear()
        for gradient in self._gradients:
            gradient.remember()
        if not self._worker.loader.open and self._worker.loader.ledger.finished:
            average_buffers(self._worker)  # a script may evaluate before it asks for a next batch

    def note_skipped(self) -> None:
        """Record at the end of a step, in `LastStep.skipped`, whether the update was skipped."""
        if self._reduction.step.state is StepState.REDUCED:
            # A scaler may have skipped the update. Or the script made none with this optimizer,
            # whose gradients were computed along with those of another optimizer.
            gradients = [p.grad for p in self._listed if p.grad is not None]
            self._last_step.skipped = not_finite(gradients) if gradients else False
        self._last_step.missed = None  # it was of this step
        self.accumulation.begin_step()

    @property
    def exchanges(self) -> bool:
        """Whether `exchange` may be called: a step is open, not reduced, and there are others."""
        return self._reduction.exchanges

    def exchange(self, payload: bytes) -> list[bytes]:
        return self._reduction.exchange(payload)

    @property
    def step(self) -> OptimizerStep:
        return self._reduction.step

    @property
    def is_broken_off(self) -> bool:
        """Whether a backward pass of the current step was ended by an exception."""
        step = self._reduction.step
        return self._broken_off_in == step.number and not step.done

    @property
    def has_sums(self) -> bool:
        """Whether gradients were accumulated in the current step and not sent yet."""
        step = self._reduction.step
        return self._summed_in == step.number and not step.done

    def check_mean_unchanged(self) -> None:
        for gradient in self._gradients:
            gradient.check_mean_unchanged(self._reduction.step.number)

    def end_batch(self) -> None:
        """Prepare for the next batch; end a step whose reduced gradients were not applied."""
        self.accumulation.drop_zeros(self._listed)
        if self._worker.loader.open and self._reduction.step.is_decided:
            self.end_step(skipped=True)
        if not self._worker.loader.open and self.accumulation.begin_step():
            for parameter in self._listed:  # the script has left a loop in the middle of a step
                parameter.grad = None
        self._hook_new()
        self.accumulation.expect_microbatches(self._optimizers.is_multi)

    def skip(self) -> None:
        if not self._reduction.done:
            for gradient in self._gradients:
                if gradient.is_leftover():
                    gradient.parameter.grad = None
        self.finish()
        self.end_step(skipped=True)

    # --- while backward runs

    def _hook_new(self) -> None:
        """Set the hooks that send gradients, on parameters new since the last call."""
        listed = [p for group in self._optimizer.param_groups for p in group["params"]]
        if len(listed) == len(self._listed) and all(map(operator.is_, listed, self._listed)):
            return
        self._listed = listed
        for gradient in self._gradients:
            gradient.name = ""  # it is not sent any more, unless it is listed below
        self._gradients = []
        for name, parameter in optimizer_parameters(self._optimizer, self._model):
            if parameter not in self._hooked:
                self._hook(parameter)
            gradient = self._hooked[parameter]
            self._optimizers.claim(parameter, name, self)
            gradient.name, gradient.collective = name, f"edl.gradient{self._suffix}.{name}"
            self._gradients.append(gradient)

    def _hook(self, parameter: torch.nn.Parameter) -> None:
        def expect_more() -> None:  # autograd is about to add to it
            if self._optimizers.is_multi and gradient.name:
                self._optimizers.void_failed_backward()
                self._optimizers.next_update()
                if self._worker.loader.open:
                    self._reduction.reopen()
                    gradient.expect_more(self._reduction.step.number)

        part = self.accumulation.watch(parameter, expect_more)
        gradient = self._hooked[parameter] = Gradient(parameter, part)
        if not can_have_gradient(parameter):
            return
        with requiring_gradient(parameter):
            listen: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
            listen(lambda _: self._accumulated(gradient))

    def _accumulated(self, gradient: Gradient) -> None:
        """Send `gradient` to all workers, right after autograd has added to it."""
        if not self._worker.loader.open or not gradient.name:
            return
        if self._optimizers.backward_end.failed:
            self._optimizers.void_failed_backward()
        reduction, accumulation = self._reduction, self.accumulation
        step, several = reduction.step, self._optimizers.is_multi
        again = gradient.computed_in == accumulation.passes and gradient.computed == step.number
        if again or (step.done and not several):
            how = "twice" if gradient.computed == step.number else "by a second backward()"
            raise UsageError(
                f"the gradient of {gradient.name} was computed {how} in one step; call "
                "backward() once on the sum of the losses, then optimizer.step(); to add up the "
                "gradients of several backward(), call all but the last one inside of "
                "edl.no_sync(); torch.autograd.grad computes gradients for other purposes, and "
                "torch.utils.checkpoint needs use_reentrant=False if it runs a module twice"
            )
        if not several:
            gradient.check_no_leftover(since=1)  # one write: autograd's addition
        gradient.computed, gradient.computed_in = step.number, accumulation.passes
        self._optimizers.computed(self)
        if accumulation.is_watched and accumulation.is_padding(gradient.part, gradient.name):
            gradient.parameter.grad = None
            return
        local = gradient.parameter.grad
        assert local is not None
        if local.is_sparse:  # also on one worker: the optimizer's state must be as in a ring
            gradient.parameter.grad = local.to_dense()
        if gradient.microbatches is not None and not accumulation.adds_up:
            gradient.take_back(step.number)
        if gradient.pending is not None:
            return  # it was sent in a pass that failed; it is sent again at the end of this pass
        if reduction.part.sends_early and not accumulation.adds_up:
            self._pending.send_early(gradient, reduction)

    def backward_ended(self) -> None:
        if self._logical is not None and self._logical.end_backward(self._gradients):
            self.accumulation.break_off()  # of a part of the batch
        elif self.accumulation.end_pass():
            self._summed_in = self._reduction.step.number
            if self._logical is not None:
                self._logical.end_piece(self._gradients)
            elif self.accumulation.is_between_microbatches:
                for gradient in self._gradients:
                    gradient.put_aside(self._reduction.step.number)
            self._worker.loader.accumulate()
            self.accumulation.put_zeros(self._listed, self._optimizers.never_none)
        elif not self._optimizers.wait_for_step:
            self.synchronize()

    def backward_failed(self) -> None:
        """Mark gradients as void that were sent in a backward pass that an exception has ended."""
        self.accumulation.break_off()
        self._broken_off_in = self._reduction.step.number
        self._pending.void()

    def end_microbatch(self) -> None:
        """Handle an `optimizer.step()` before the last microbatch, which makes no update."""
        self.accumulation.drop_zeros(self._listed)
        if self._logical is not None:
            self._logical.check_options(self._optimizer, self._reduction.step.number, is_last=False)
            self._logical.end_batch(self._gradients)
        if not self._worker.loader.engine.batches.may_grow:
            self._worker.loader.accumulate()  # this worker leaves the microbatch out

    # --- what comes back

    def _average(self, weights: Weights) -> list[tuple[Gradient, torch.Tensor]]:
        """Average all gradients over the ring, and return the means; change no gradient."""
        with_gradient, averages, is_void = self._round_trip()
        if is_void:  # a backward pass has failed on some worker: all send theirs again
            for gradient, average in zip(with_gradient, averages, strict=True):
                gradient.pending, gradient.buffer = None, average
            self._pending.all_done()
            with_gradient, averages, _ = self._round_trip()
        for gradient in with_gradient:
            gradient.check_unchanged()
        if weights.received != 1.0 and averages:
            torch._foreach_mul_(averages, weights.received)
        return list(zip(with_gradient, averages, strict=True))

    def _round_trip(self) -> tuple[list[Gradient], list[torch.Tensor], bool]:
        flights, reduction = self._pending, self._reduction
        with_gradient, is_void = flights.with_gradient(self._gradients, reduction, self._suffix)
        for gradient in with_gradient:
            if gradient.pending is None:
                gradient.become_local(reduction.step.number)
                flights.send(gradient, reduction)
        return with_gradient, [flights.wait(gradient) for gradient in with_gradient], is_void

    def _take_over(self, averaged: list[tuple[Gradient, torch.Tensor]]) -> None:
        """Set the gradients to their averages; keep memory of local ones for the next averages."""
        step, several = self._reduction.step.number, self._optimizers.is_multi
        for gradient in self._gradients:
            if gradient.pending is None and gradient.is_local(step):
                gradient.parameter.grad = None  # what a worker without samples has computed
        for gradient, average in averaged:
            parameter, gradient.pending = gradient.parameter, None
            local, mean = parameter.grad, gradient.mean_of(average)
            # The next average is received in the memory of this gradient, if the layout fits.
            spare = local if mean is average else average
            if several:
                # The local gradient of the step before. That of this step is needed until its end.
                spare = gradient.local if gradient.local is not local else None
                gradient.become_mean(mean, step)
            else:
                parameter.grad = mean
            if spare is not None and spare.is_contiguous() and not spare.requires_grad:
                gradient.buffer = spare
        self._pending.all_done()

    def _keep(self, weight: float) -> None:
        """Set the gradients to the local ones times `weight`, because this worker is alone."""
        number = self._reduction.step.number
        for gradient in self._gradients:
            local = gradient.parameter.grad
            if local is None or not gradient.is_local(number):
                continue
            if weight != 1.0 or self._optimizers.is_multi:
                gradient.become_mean(local if weight == 1.0 else local * weight, number)

    def _fill(self, number: float) -> None:
        """Set all elements of all gradients to `number`, in a step without an update."""
        step = self._reduction.step.number
        for gradient in self._gradients:
            parameter = gradient.parameter
            if parameter.grad is not None or gradient.computed == step:
                parameter.grad = torch.full_like(parameter, number)


# ------------------------------------------------------------
# Give the job's learning curve the losses and the learning rate of a script with PyTorch.
#
# `torch.autograd.backward`, which `Tensor.backward` calls, is replaced, because a script need not
# name its loss to edl. Twice a second the number is copied, without a wait for the device; all
# other calls only ask whether it is time.

_observe: Callable[[Any], None] | None = None


def watch_losses(optimizers: Optimizers, optimizer: torch.optim.Optimizer) -> None:
    global _observe
    worker = optimizers.worker
    meter, loader = worker.learning, worker.loader

    def learning_rate() -> float | None:
        try:
            return float(optimizer.param_groups[0].get("lr"))  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return None

    meter.learning_rate = learning_rate

    def observe(tensors: Any) -> None:
        if not meter.wants_loss or optimizers.is_multi or worker.warming_up:
            return  # those of several optimizers have different meanings
        if loader.open and loader.batch_weight and (read := _reader(tensors, optimizers)):
            meter.observe_loss(worker.step + 1, read)

    if _observe is None:
        plain = torch.autograd.backward

        def backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if _observe is not None:
                _observe(tensors)
            return plain(tensors, *arguments, **named)

        torch.autograd.backward = backward
    _observe = observe


def _reader(loss: Any, optimizers: Optimizers) -> Callable[[], float | None] | None:
    """Return a function that returns a loss as a number, or None until the device has it."""
    if isinstance(loss, list | tuple) and len(loss) == 1:
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
        return None
    if loss.device.type != "cuda":
        number, scale = loss.detach(), optimizers.loss_scale()
        return lambda: float(number) / scale
    with torch.cuda.device(loss.device):  # the script's current device may be another one
        if torch.cuda.is_current_stream_capturing():
            return None
        scale = optimizers.loss_scale()
        copied = loss.detach().to("cpu", non_blocking=True)
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return lambda: float(copied) / scale if done.query() else None
