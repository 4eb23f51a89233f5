"""The squared norms of TensorFlow's gradients, for the gradient noise scale.

They are handed to Python where a step is due, and nowhere else. Of an optimizer of Adam's kind they
are those of what it makes of a gradient, g / (sqrt(v) + epsilon), as in :mod:`edl.torch.noise`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.framework.noise_meter import Looked, NoiseMeter

LEAST_STEPS = 5  # before that Adam's v is of too few gradients

Array = npt.NDArray[Any]


class KerasNoise(NoiseMeter):
    """Of one optimizer; ``optimizer``: that of Keras, None where the script has another."""

    optimizer: Any = None

    def show_reduced(
        self, own: Sequence[Any], mean: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        """What the worker has computed, and the mean of the job: tensors, or arrays.

        ``variables``: whose they are.
        """
        denominators = self._denominators(variables)
        self.show(
            lambda: self._seen(own, denominators),
            lambda: self._seen(mean, denominators),
        )

    def _seen(self, gradients: Sequence[Any], denominators: Sequence[Array | None]) -> Looked:
        """The gradients as the optimizer weighs them, as far as they are looked at."""
        seen = []
        for gradient, denominator in zip(gradients, denominators, strict=True):
            numbers, times = self._part(gradient)
            seen.append((numbers if denominator is None else numbers / denominator, times))
        return seen

    def _part(self, tensor: Any) -> tuple[Array, int]:
        numbers = _array(tensor).reshape(-1)
        part, times = self._looked_at(len(numbers))
        return numbers[part], times

    def _denominators(self, variables: Sequence[Any]) -> Sequence[Array | None]:
        """What Adam divides the parts by; None for each: it is no Adam, or too young."""
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
        scale = getattr(self.optimizer, "dynamic_scale", None)  # of a LossScaleOptimizer
        return 1.0 if scale is None else float(_array(scale)) ** 2

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * float(np.vdot(each, each)) for each, times in gradients))


def _array(tensor: Any) -> Array:
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array
