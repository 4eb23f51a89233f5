"""Reduce gradients that are arrays on a loopback ring (:class:`LoopbackReducer`)."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from edl.binding.reduction import StepReduction
from edl.errors import RingBroken
from edl.ring.loopback import LoopbackMember
from edl.ring.ring import CollectiveFailed
from edl.step.engine import StepState
from edl.step.weighting import Weights
from edl.worker.worker import Worker

Vector = npt.NDArray[np.float64]


class LoopbackReducer:
    """The gradients of one optimizer on arrays, as a `Reducer`."""

    def __init__(self, worker: Worker, member: LoopbackMember, size: int) -> None:
        self._worker, self._member, self._size = worker, member, size
        self.reduction = StepReduction(worker, self)  # the optimizer's part of each step
        self._name = f"edl.gradient{self.reduction.number or '.w'}"
        # the worker's own gradient of the open step; None: it has computed none
        self.local: Vector | None = None
        # the mean gradient over the global batch; None: there is none
        self.mean: Vector | None = None
        self.mean_in = -1  # the number of the step in which `mean` was reduced
        self._handle: int | None = None
        self._failed: RingBroken | None = None

    def reduce(self, local: Vector) -> None:
        """Set `mean` to the mean of all workers' gradients; `local` is this worker's."""
        self.local, self.mean = local, None
        self.send_early()
        self.reduction.reduce()

    def send_early(self) -> None:
        """Send the local gradient if its weight is known; `allreduce` raises what fails."""
        if self.reduction.part.sends_early and not self.reduction.done:
            try:
                self._send()
            except RingBroken as error:
                self._failed = error

    def allreduce(self, weights: Weights, again: bool) -> None:
        """Send the gradient, unless it is sent, and keep the mean of all workers' gradients."""
        if self._failed is not None:
            raise self._failed
        if self._handle is None:
            self._send()
        assert self._handle is not None
        try:
            average: Vector = self._member.average_finish(self._handle)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        self._handle = None
        self.mean, self.mean_in = average * weights.received, self.reduction.step.number

    def place_result(self, again: bool) -> None:
        """Keep the local gradient as the mean, if the worker is alone."""
        agreed = self.reduction.part.agreed
        is_reduced = self.reduction.step.state is StepState.REDUCED
        if is_reduced and agreed is not None and not agreed.sends and self.local is not None:
            self.mean = self.local * self.reduction.part.local_scale
            self.mean_in = self.reduction.step.number

    def forget(self) -> None:
        """Drop the gradient that was being sent, and the error, after a repair of the ring."""
        self._handle = self._failed = None

    def _send(self) -> None:
        """Start the allreduce of the local gradient times its weight, or of zeros."""
        local = np.zeros(self._size) if self.local is None else self.local
        try:
            sent = self.reduction.part.sent * local
            self._handle = self._member.average_start(sent, self._name)
        except CollectiveFailed as error:
            raise RingBroken(self._worker.generation, str(error)) from error
        self.reduction.sending()
