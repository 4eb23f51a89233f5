"""Evaluate the loss along an update that was made, at other learning rates than the update's own.

A :class:`Probe` does it. An update with another learning rate would have moved the parameters along
the same line, through their values before and after the update, by a distance in proportion to the
rate. So copies of the parameters before and after it are enough, whatever the optimizer is, as long
as its update is a multiple of its learning rate.

An evaluation leaves no trace: parameters, buffers (BatchNorm's averages) and PyTorch's generators
are bit for bit what they were. All evaluations of an update begin with the same buffers and the
same random numbers, so dropout removes the same units at each learning rate. Modules stay in the
mode in which they train: BatchNorm normalises by the batch, as in the step itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from edl.framework.lr_tuner import mean_loss


class Probe:
    """A probe of the loss along one update, with copies of the parameters before and after it."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
        self._optimizer, self._model = optimizer, model
        self._parameters: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []

    @property
    def holds(self) -> bool:
        """Whether the object has the parameters before and after an update, for `losses`."""
        return bool(self._after)

    def begin(self) -> None:
        """Copy the parameters that require a gradient; call it right before the update."""
        groups = self._optimizer.param_groups
        self._parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        self._before, self._after = self._copies(), []

    def end(self) -> None:
        """Copy the parameters a second time; call it after the update."""
        if self._before:
            self._after = self._copies()

    def forget(self) -> None:
        """Drop the copies of the parameters before and after the update."""
        self._parameters, self._before, self._after = [], [], []

    def losses(self, at: Sequence[float], loss: Callable[[], Any]) -> list[float]:
        """Evaluate a loss at several learning rates of the update whose parameters were copied."""
        assert self.holds
        now, found = self._copies(), []
        with torch.no_grad(), _same_random_numbers(self._devices()) as begin_again:
            buffers = _Buffers(self._model)
            try:
                for e in at:
                    self._move(1.0 + e)
                    found.append(mean_loss(loss()))
                    buffers.put_back()
                    begin_again()
            finally:
                for parameter, value in zip(self._parameters, now, strict=True):
                    parameter.copy_(value)
                buffers.put_back()
        return found

    def _move(self, part: float) -> None:
        for p, before, after in zip(self._parameters, self._before, self._after, strict=True):
            p.copy_(torch.lerp(before, after, part))

    def _copies(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def _devices(self) -> list[torch.device]:
        found = {p.device for p in self._parameters if p.device.type == "cuda"}
        return sorted(found, key=str)


class _Buffers:
    """A copy of the buffers of a model, taken when the object is made."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        modules = () if model is None else model.modules()
        self._kept = [
            (module, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def put_back(self) -> None:
        """Restore the values of the buffers."""
        for module, name, buffer, value in self._kept:
            buffer.copy_(value)
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)


@contextmanager
def _same_random_numbers(devices: Sequence[torch.device]) -> Iterator[Callable[[], None]]:
    """Yield a function that resets PyTorch's generators to their state before the block."""
    on_cpu = torch.get_rng_state()
    on_devices = [torch.cuda.get_rng_state(device) for device in devices]

    def begin_again() -> None:
        torch.set_rng_state(on_cpu)
        for device, state in zip(devices, on_devices, strict=True):
            torch.cuda.set_rng_state(state, device)

    try:
        yield begin_again
    finally:
        begin_again()
