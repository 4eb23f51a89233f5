"""Measure the squared norms of PyTorch's gradients, for the gradient noise scale.

:class:`TorchNoise` measures them. For an optimizer of Adam's kind the norms are those of the scaled
gradient g / (sqrt(v) + eps), with the gradient g, Adam's running mean v of squared gradients and
its constant eps: a larger batch reduces the noise of the scaled gradient (adaptdl does the same).
Until v covers 5 steps, the norms are those of the gradients themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch

from edl.framework.noise_meter import Looked, NoiseMeter
from edl.torch.gradient import Gradient
from edl.worker.worker import Worker

LEAST_STEPS = 5  # with fewer, Adam's v is a mean of too few gradients


class TorchNoise(NoiseMeter):
    """A meter of the squared gradient norms of one optimizer."""

    def __init__(
        self, worker: Worker, optimizer: torch.optim.Optimizer, scale: Callable[[], float]
    ) -> None:
        super().__init__(worker)
        self._optimizer = optimizer
        self._scale = scale

    def show_reduced(self, averaged: Sequence[tuple[Gradient, torch.Tensor]]) -> None:
        """Record the norms of the local gradients and of the means, before these replace them."""
        denominators = {g.parameter: self._denominator(g.parameter) for g, _ in averaged}
        own = [(gradient.parameter, gradient.parameter.grad) for gradient, _ in averaged]
        mean = [(gradient.parameter, average) for gradient, average in averaged]
        self.show(lambda: self._seen(own, denominators), lambda: self._seen(mean, denominators))

    def show_own(self, gradients: Sequence[Gradient]) -> None:
        """Measure the gradients in a step of a worker that is alone in its ring."""
        own = [(gradient.parameter, gradient.parameter.grad) for gradient in gradients]
        denominators = {parameter: self._denominator(parameter) for parameter, _ in own}
        self.show(lambda: self._seen(own, denominators), lambda: self._seen(own, denominators))

    def _seen(
        self,
        of: Sequence[tuple[torch.nn.Parameter, torch.Tensor | None]],
        denominators: Mapping[torch.nn.Parameter, torch.Tensor | None],
    ) -> Looked:
        """Return the sampled numbers of gradients, divided as the optimizer divides them."""
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
        """Return what Adam divides the sampled numbers of the gradient of `parameter` by."""
        state = getattr(self._optimizer, "state", {}).get(parameter, {})
        squares, steps = state.get("exp_avg_sq"), float(state.get("step", 0))
        if squares is None or squares.shape != parameter.shape or steps < LEAST_STEPS:
            return None
        if squares.is_complex():  # squares of the real and of the imaginary parts
            return None
        group = next(g for g in self._optimizer.param_groups if _has(g["params"], parameter))
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


def _has(parameters: Sequence[torch.nn.Parameter], parameter: torch.nn.Parameter) -> bool:
    return any(one is parameter for one in parameters)


def _at_least_float32(numbers: torch.Tensor) -> torch.Tensor:
    return numbers.float() if numbers.element_size() < 4 else numbers
