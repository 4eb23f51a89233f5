"""The squared norms of PyTorch's gradients, for the gradient noise scale.

Of an optimizer of Adam's kind they are those of what it makes of a gradient, g / (sqrt(v) + eps):
its noise there is what a larger batch takes away (adaptdl does the same). Until its ``v`` is of
some steps they are those of the gradients themselves.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from edl.daemon.worker import Worker
from edl.framework.noise_meter import NoiseMeter
from edl.torch.gradient import Gradient

LEAST_STEPS = 5  # before that Adam's v is of too few gradients

Tensors = list[torch.Tensor]


class TorchNoise(NoiseMeter[Tensors]):
    """Of one optimizer. ``scale``: what the losses of the open step were multiplied by."""

    def __init__(
        self, worker: Worker, optimizer: torch.optim.Optimizer, scale: Callable[[], float]
    ) -> None:
        super().__init__(worker)
        self._optimizer = optimizer
        self._scale = scale

    def show_reduced(self, averaged: Sequence[tuple[Gradient, torch.Tensor]]) -> None:
        """The means of the job have come, and the gradients are still this worker's."""
        own = [(gradient.parameter, gradient.parameter.grad) for gradient, _ in averaged]
        mean = [(gradient.parameter, average) for gradient, average in averaged]
        self.show(lambda: self._seen(own), lambda: self._seen(mean))

    def show_own(self, gradients: Sequence[Gradient]) -> None:
        """This worker is alone: its gradients are the means."""
        own = [(gradient.parameter, gradient.parameter.grad) for gradient in gradients]
        self.show(lambda: self._seen(own), lambda: self._seen(own))

    def _seen(self, of: Sequence[tuple[torch.nn.Parameter, torch.Tensor | None]]) -> Tensors:
        """The gradients as the optimizer weighs them, dense."""
        return [
            self._preconditioned(parameter, gradient.detach().to_dense())
            for parameter, gradient in of
            if gradient is not None
        ]

    def _preconditioned(
        self, parameter: torch.nn.Parameter, gradient: torch.Tensor
    ) -> torch.Tensor:
        state = self._optimizer.state.get(parameter, {})
        squares, steps = state.get("exp_avg_sq"), float(state.get("step", 0))
        if squares is None or steps < LEAST_STEPS:
            return gradient
        group = next(g for g in self._optimizer.param_groups if _has(g["params"], parameter))
        if not {"betas", "eps"} <= group.keys():  # somebody's own, which may use it otherwise
            return gradient
        correction = 1.0 - float(group["betas"][1]) ** steps
        denominator: torch.Tensor = (squares / correction).sqrt_().add_(group["eps"])
        return gradient / denominator

    def _unit(self) -> float:
        return self._scale() ** 2

    def _square(self, gradients: Tensors) -> float:
        if not gradients:
            return 0.0
        device = gradients[0].device
        norms = torch._foreach_norm([_at_least_float32(gradient) for gradient in gradients])
        return float(torch.stack([norm.to(device) for norm in norms]).double().square().sum())

    def _square_of_sum(self, kept: Tensors, own: Tensors, unit: float) -> float:
        if len(kept) != len(own):
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        pairs = zip(kept, own, strict=True)
        return self._square([a + factor * _at_least_float32(b) for a, b in pairs])

    def _copy(self, gradients: Tensors, unit: float) -> Tensors:
        factor = 1.0 / math.sqrt(unit)
        return [_at_least_float32(gradient) * factor for gradient in gradients]


def _has(parameters: Sequence[torch.nn.Parameter], parameter: torch.nn.Parameter) -> bool:
    return any(one is parameter for one in parameters)


def _at_least_float32(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float() if gradient.element_size() < 4 else gradient
