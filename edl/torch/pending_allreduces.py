"""Send gradients around the ring, and agree with all workers which parameters have a gradient.

The local gradient is sent as it is, or a weighted copy of it; its average is received into a
separate buffer. If the ring breaks, the function that waits for a gradient raises
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
    """The allreduces of one optimizer's gradients that are on their way in the ring of ``worker``.

    Attributes:
        is_void: whether what is on its way counts for nothing, because it was sent in a backward
            pass that an exception has broken off.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._gradients: list[Gradient] = []
        self.is_void = False
        self._failed: RingBroken | None = None  # from an early send; raised by the wait

    def send_early(self, gradient: Gradient, reduction: StepReduction) -> None:
        """Send ``gradient`` while backward runs; let :meth:`with_gradient` raise any error.

        Args:
            gradient: the record of the gradient.
            reduction: the optimizer's part of the current step, which has the weights.
        """
        if self._failed is None:
            try:
                self.send(gradient, reduction)
            except RingBroken as error:
                self._failed = error

    def send(self, gradient: Gradient, reduction: StepReduction) -> None:
        """Send ``gradient``, or zeros if this worker has none.

        Args:
            gradient: the record of the gradient.
            reduction: the optimizer's part of the current step, which has the weights.

        Raises:
            RingBroken: the ring is broken.
        """
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
        """Mark what is on its way, if anything, as void: it counts for nothing on all workers."""
        self.is_void = self.is_void or bool(self._gradients)

    def with_gradient(
        self, gradients: list[Gradient], reduction: StepReduction, suffix: str
    ) -> tuple[list[Gradient], bool]:
        """Return the records of the parameters that have a gradient on some worker.

        All workers call it at the end of backward, and exchange which gradients they have.

        Args:
            gradients: the records of all parameters, in an order that is equal on all workers.
            reduction: the optimizer's part of the current step.
            suffix: the end of the collective's name; it tells the optimizers of a script apart.

        Returns:
            Those of ``gradients`` that some worker has computed; and whether all gradients are to
            be sent once more when they have come back, because what some worker has sent is void.

        Raises:
            RingBroken: the ring is broken, or was when a gradient was to be sent early.
        """
        if self._failed is not None:
            raise self._failed
        step, samples = reduction.step.number, reduction.weights.share.samples
        mine = presence(samples, [each.is_local(step) for each in gradients], self.is_void)
        # An average of float32, as gradients are, so that Horovod sends it with the last of them.
        row = torch.tensor(mine)
        handle = self._guard(average_start, row, torch.empty_like(row), f"{PRESENT}{suffix}")
        shares, is_void = present(self._wait(handle).tolist())
        found = [each for each, is_there in zip(gradients, shares, strict=True) if is_there]
        return found, is_void

    def wait(self, gradient: Gradient) -> torch.Tensor:
        """Wait for the average of ``gradient``, which was sent, and return it.

        Raises:
            RingBroken: the ring is broken.
        """
        assert gradient.pending is not None
        flight = gradient.pending
        average = self._wait(flight.handle)
        return torch.view_as_complex(average) if flight.sent.is_complex() else average

    def all_done(self) -> None:
        """Forget the gradients that were sent, as all averages have come back."""
        self._gradients.clear()
        self.is_void = False

    def forget(self) -> None:
        """Drop all allreduces that were on their way in a ring that is gone, also in Horovod."""
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
    """Return what this worker sends of ``gradient``: zeros, a weighted copy, or the tensor itself.

    The result has the dtype in which it is sent. It is the tensor itself if nothing has to be
    changed.
    """
    weight, parameter, local = reduction.weights.sent, gradient.parameter, None
    if gradient.is_local(reduction.step.number):
        local = parameter.grad
    dtype = parameter.dtype if local is None else local.dtype
    wire = WIRE_DTYPE.get(dtype, dtype)
    if local is None or weight == 0.0:  # 0 * inf would be nan
        return torch.zeros(parameter.shape, dtype=wire, device=parameter.device)
    if local.requires_grad:  # backward(create_graph=True)
        local = local.detach()
    weighted = local if weight == 1.0 else local * weight
    return weighted.to(wire).contiguous().resolve_conj()


def _real(tensor: torch.Tensor) -> torch.Tensor:
    """Return a complex tensor as real numbers, because Horovod has no complex types.

    Any other tensor is returned as it is.
    """
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor
