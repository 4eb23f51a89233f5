"""Take the place of ``horovod.tensorflow.keras.callbacks`` in an unchanged script."""

from __future__ import annotations

from typing import TYPE_CHECKING

import keras

from edl.binding.api import absent
from edl.tensorflow.keras.callbacks import (
    LearningRateScheduleCallback,
    LearningRateWarmupCallback,
)

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A callback that does nothing: all processes begin with the variables of the job."""

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()


class MetricAverageCallback(keras.callbacks.Callback):
    """A callback that does nothing: the metrics of an epoch are those of all ranks."""

    def __init__(self, device: str = "") -> None:
        super().__init__()


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent("horovod.tensorflow.keras.callbacks, as --transparent replaces it,")
