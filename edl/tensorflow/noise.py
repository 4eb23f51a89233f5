"""Measure the squared norms of TensorFlow's gradients, for the gradient noise scale.

A graph hands its gradients to Python in the steps in which a measurement is due, and in no others.
For an optimizer of Adam's kind, a gradient g is measured as g / (sqrt(v) + epsilon), where v is
Adam's mean of squared gradients after bias correction, and epsilon its constant. Of a gradient with
4,096 numbers or more one eighth is read, another one each time, and counts eight times.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.binding.noise import Looked, NoiseMeter

LEAST_STEPS = 5  # before that Adam's v is of too few gradients

Array = npt.NDArray[Any]


class KerasNoise(NoiseMeter):
    """A meter of the squared norms of one optimizer's gradients."""

    optimizer: Any = None  # of Keras; None if the script has another kind

    def show_reduced(
        self, own: Sequence[Any], mean: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """Record the norms of a step's gradients: this worker's own, and the job's means."""
        denominators = self._denominators(variables)
        self.show(
            lambda: self._seen(own, denominators),
            lambda: self._seen(mean, denominators),
        )

    def _seen(self, gradients: Sequence[Any], denominators: Sequence[Array | None]) -> Looked:
        seen = []
        for gradient, denominator in zip(gradients, denominators, strict=True):
            numbers, times = self._part(gradient)
            seen.append((numbers if denominator is None else numbers / denominator, times))
        return seen

    def _part(self, tensor: Any) -> tuple[Array, int]:
        """Return the numbers to measure in this step, flat, and how often they count."""
        numbers = _array(tensor).reshape(-1)
        part, times = self._looked_at(len(numbers))
        return numbers[part], times

    def _denominators(self, variables: Sequence[Any]) -> Sequence[Array | None]:
        """Return sqrt(v) + epsilon for the measured numbers of each gradient; None: 1."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        velocities = getattr(optimizer, "_velocities", None)
        if not velocities or getattr(optimizer, "beta_2", None) is None:
            return [None] * len(variables)
        steps = int(_array(optimizer.iterations))
        if steps < LEAST_STEPS:
            return [None] * len(variables)
        correction = 1.0 - float(optimizer.beta_2) ** steps
        places = {id(one): place for place, one in enumerate(optimizer._trainable_variables)}
        return [
            self._denominator(velocities[places[id(one)]], correction, float(optimizer.epsilon))
            if id(one) in places
            else None
            for one in variables
        ]

    def _denominator(self, velocity: Any, correction: float, epsilon: float) -> Array:
        return np.asarray(np.sqrt(self._part(velocity)[0] / correction) + epsilon)

    def _unit(self) -> float:
        # Of a LossScaleOptimizer, which has scaled the gradients.
        scale = getattr(self.optimizer, "dynamic_scale", None)
        return 1.0 if scale is None else float(_array(scale)) ** 2

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * float(np.vdot(each, each)) for each, times in gradients))


def _array(tensor: Any) -> Array:
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array
