"""The squared norms of TensorFlow's gradients, for the gradient noise scale.

They are handed to Python where a step is due, and nowhere else. Of an optimizer of Adam's kind they
are those of what it makes of a gradient, g / (sqrt(v) + epsilon), as in :mod:`edl.torch.noise`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.framework.noise_meter import NoiseMeter

LEAST_STEPS = 5  # before that Adam's v is of too few gradients

Arrays = list[npt.NDArray[Any]]


class KerasNoise(NoiseMeter[Arrays]):
    """Of one optimizer; ``optimizer``: that of Keras, None where the script has another."""

    optimizer: Any = None

    def show_reduced(self, own: Sequence[Any], mean: Sequence[Any]) -> None:
        """What the worker has computed, and the mean of the job: tensors, or arrays."""
        denominators = self._denominators(own)
        self.show(
            lambda: _over([*map(_array, own)], denominators),
            lambda: _over([*map(_array, mean)], denominators),
        )

    def _denominators(self, gradients: Sequence[Any]) -> list[npt.NDArray[Any]] | None:
        """What Adam divides each gradient by; None: it is no Adam, or too young."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        velocities = getattr(optimizer, "_velocities", None)
        if not velocities or getattr(optimizer, "beta_2", None) is None:
            return None
        steps = int(_array(optimizer.iterations))
        if steps < LEAST_STEPS or len(velocities) != len(gradients):
            return None
        correction = 1.0 - float(optimizer.beta_2) ** steps
        return [
            np.sqrt(_array(velocity) / correction) + float(optimizer.epsilon)
            for velocity in velocities
        ]

    def _unit(self) -> float:
        scale = getattr(self.optimizer, "dynamic_scale", None)  # of a LossScaleOptimizer
        return 1.0 if scale is None else float(_array(scale)) ** 2

    def _square(self, gradients: Arrays) -> float:
        return float(sum(float(np.vdot(each, each)) for each in gradients))

    def _square_of_sum(self, kept: Arrays, own: Arrays, unit: float) -> float:
        if len(kept) != len(own):
            return 0.0
        factor = 1.0 / math.sqrt(unit)
        return self._square([a + factor * b for a, b in zip(kept, own, strict=True)])

    def _copy(self, gradients: Arrays, unit: float) -> Arrays:
        factor = 1.0 / math.sqrt(unit)
        return [factor * each for each in gradients]


def _array(tensor: Any) -> npt.NDArray[Any]:
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


def _over(gradients: Arrays, denominators: list[npt.NDArray[Any]] | None) -> Arrays:
    if denominators is None:
        return gradients
    return [g / d for g, d in zip(gradients, denominators, strict=True)]
