"""Gradients: sent while backward still runs, weighted, averaged, exact (promise 5).

Each parameter's gradient goes to Horovod the moment autograd has accumulated it. Its weight is
split in two, see :mod:`edl.core.batching`: in a full step nothing is multiplied at all. The
local gradient is never written to before the step is complete: whoever survives a broken ring
can send it again. It changes places with the buffer that receives the average, so this costs
one more gradient's memory and no copy.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from edl.core.batching import average_correction, send_weight
from edl.core.steprecord import global_samples
from edl.daemon import points
from edl.daemon.worker import Worker
from edl.errors import RingBroken, UsageError
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import WIRE_DTYPE, average_start, finish


@dataclass
class _InFlight:
    """A gradient on its way. ``sent`` must stay alive until Horovod has read it."""

    handle: int
    sent: torch.Tensor


class GradientReduction:
    """The gradients of one optimizer's parameters, step by step."""

    def __init__(
        self, worker: Worker, optimizer: torch.optim.Optimizer, model: torch.nn.Module
    ) -> None:
        self._worker = worker
        self._optimizer = optimizer
        self._model = model
        self._names: dict[torch.nn.Parameter, str] = {}
        self._hooked: set[torch.nn.Parameter] = set()
        self._computed: dict[torch.nn.Parameter, int] = {}  # in which step, by Worker.begun
        self._in_flight: dict[torch.nn.Parameter, _InFlight] = {}
        self._spare: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._done_step = 0  # the newest step whose gradients are reduced, by Worker.begun
        self._dropped_step = 0  # the newest one that is to change nothing
        self._broken: RingBroken | None = None  # it showed while backward was running
        self._hook_new()

    def finish(self) -> None:
        """Wait until every gradient of the step is the mean over its global batch. Idempotent.

        When a worker dies meanwhile, the survivors complete the step with the gradients that
        they hold. When others had completed it already, their state is in the model: then all
        gradients are zero here, and :meth:`let_go` takes them away.
        A parameter without a gradient here counts as zero, for another worker may have one.

        Raises:
            UsageError: no batch was handed out for this step.
        """
        worker = self._worker
        if not worker.step_open:
            raise UsageError(
                "optimizer.step() was called without a batch from the edl loader; take each "
                "training batch from edl.DataLoader, and call optimizer.step() once for it"
            )
        if self._reduced or worker.rehearsing:
            return
        while True:
            try:
                self._reduce()
                points.reached("averaged")
                break
            except RingBroken as error:
                superseded = worker.recover(error)
                self._forget_flights()
                if superseded:
                    self._drop()
                    break
        self._done_step = worker.begun
        points.reached("reduced")

    def _reduce(self) -> None:
        """Average all gradients over the ring, or change none of them."""
        worker = self._worker
        records = worker.records()
        total = global_samples(records)
        if worker.ring.alone:
            if total == 0:
                self._drop()
            return  # else the mean over the batch is what backward has computed
        self._send_missing()
        if self._broken is not None:
            raise self._broken
        averages = {p: self._wait(flight) for p, flight in self._in_flight.items()}
        for parameter, average in averages.items():
            self._take_over(parameter, average)
        self._in_flight.clear()
        if total == 0:
            self._drop()
            return
        correction = average_correction(worker.batch_size, len(records), total)
        if correction != 1.0:
            torch._foreach_mul_([p.grad for p in averages if p.grad is not None], correction)

    def let_go(self) -> None:
        """Right before the optimizer's step: leave no gradient of a step that is to change nothing.

        Momentum or weight decay would change something for a gradient of zero, too.
        """
        if self._dropped_step == self._worker.begun:
            for parameter in self._names:
                parameter.grad = None

    def _drop(self) -> None:
        """Let the step change nothing: others have completed it, or who had samples has died.

        Until the optimizer's step the script may look at the gradients, which are zero.
        """
        self._dropped_step = self._worker.begun
        for parameter in self._names:
            if parameter.grad is not None:
                parameter.grad = torch.zeros_like(parameter)

    def _forget_flights(self) -> None:
        """Let Horovod forget what was under way in a ring that is gone."""
        for flight in self._in_flight.values():
            with contextlib.suppress(CollectiveFailed):
                finish(flight.handle)
        self._in_flight.clear()
        self._broken = None

    @property
    def _reduced(self) -> bool:
        return self._done_step == self._worker.begun

    def _hook_new(self) -> None:
        """Listen to all parameters of the optimizer that require a gradient.

        Some may require one only later, or be added to the optimizer later.
        """
        for name, parameter in optimizer_parameters(self._optimizer, self._model):
            self._names.setdefault(parameter, name)
            if parameter.requires_grad and parameter not in self._hooked:
                listen: Any = parameter.register_post_accumulate_grad_hook  # untyped in torch
                listen(self._send)
                self._hooked.add(parameter)

    def _send(self, parameter: torch.nn.Parameter) -> None:
        """Autograd has accumulated this gradient: start its reduction."""
        worker, name = self._worker, self._names[parameter]
        if not worker.step_open:
            return
        if self._computed.get(parameter) == worker.begun or self._reduced:
            raise UsageError(
                f"the gradient of {name} was computed twice in one step; call backward() once "
                "on the sum of the losses, then optimizer.step()"
            )
        self._computed[parameter] = worker.begun
        gradient = parameter.grad
        assert gradient is not None
        if gradient.is_sparse:  # also alone: the optimizer's state must be that of a ring
            gradient = parameter.grad = gradient.to_dense()
        if worker.rehearsing or worker.ring.alone or self._broken:
            return
        sent = self._weighted(gradient)
        buffer = self._spare.pop(parameter, None)
        if buffer is None or buffer.shape != sent.shape or buffer.dtype != sent.dtype:
            buffer = torch.empty_like(sent)
        try:
            handle = self._guard(average_start, sent, buffer, f"edl.gradient.{name}")
        except RingBroken as error:
            self._broken = error  # backward() must not fail; finish() deals with it
            return
        if not self._in_flight:
            points.reached("gradient")
        self._in_flight[parameter] = _InFlight(handle, sent)

    def _weighted(self, gradient: torch.Tensor) -> torch.Tensor:
        """This worker's part of the sum; the gradient itself when nothing has to be changed."""
        samples, wire = self._worker.samples, WIRE_DTYPE.get(gradient.dtype, gradient.dtype)
        if samples == 0:  # 0 * inf would be nan
            return torch.zeros_like(gradient, dtype=wire)
        weight = send_weight(samples, self._worker.batch_size)
        weighted = gradient if weight == 1.0 else gradient * weight
        return weighted.to(wire).contiguous()

    def _send_missing(self) -> None:
        self._hook_new()
        for parameter in self._names:
            if parameter.requires_grad and parameter not in self._in_flight:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                self._computed.pop(parameter, None)
                self._send(parameter)

    def _wait(self, flight: _InFlight) -> torch.Tensor:
        average: torch.Tensor = self._guard(finish, flight.handle)
        return average

    def _take_over(self, parameter: torch.nn.Parameter, average: torch.Tensor) -> None:
        local = parameter.grad
        assert local is not None
        if average.dtype == local.dtype:
            parameter.grad, self._spare[parameter] = average, local
        else:
            parameter.grad, self._spare[parameter] = average.to(local.dtype), average

    def _guard(self, function: Callable[..., Any], *arguments: object) -> Any:
        try:
            return function(*arguments)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error


def optimizer_parameters(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module
) -> Iterator[tuple[str, torch.nn.Parameter]]:
    """The optimizer's parameters under names that are the same on every worker."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    for index, parameter in enumerate(parameters):
        yield names.get(parameter, f"parameter.{index}"), parameter
