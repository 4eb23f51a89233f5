"""Send gradients around the ring, and agree with all workers which parameters have a gradient.

:class:`PendingAllreduces` does both for one optimizer. The local gradient is sent as it is, or a
weighted copy of it; its average is received into a separate buffer. If the ring breaks,
:meth:`PendingAllreduces.with_gradient` or :meth:`PendingAllreduces.wait` raises
:class:`~edl.errors.RingBroken`; ``backward()`` itself never raises it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch

from edl.core.step.weighting import presence, present
from edl.errors import RingBroken
from edl.framework.reduction import StepReduction
from edl.ring.ring import CollectiveFailed
from edl.torch.collectives import WIRE_DTYPE, average_start, finish
from edl.torch.gradient import Gradient, PendingAllreduce
from edl.worker.worker import Worker

PRESENT = "edl.present"  # the collective that says which parameters have a gradient


class PendingAllreduces:
    """The allreduces of one optimizer's gradients that were started and are not complete yet."""

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
        """Wait for the allreduce of `gradient`, which was sent, and return the average."""
        assert gradient.pending is not None
        flight = gradient.pending
        average = self._wait(flight.handle)
        return torch.view_as_complex(average) if flight.sent.is_complex() else average

    def all_done(self) -> None:
        """Clear the list of sent gradients, after the averages of all were received."""
        self._gradients.clear()
        self.is_void = False

    def forget(self) -> None:
        """Drop all allreduces of a ring that is gone, and release the tensors that they hold."""
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
    """Return the tensor that this worker sends for `gradient`, in the dtype in which it is sent."""
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
