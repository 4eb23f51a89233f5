"""Take the place of ``horovod.tensorflow.keras.callbacks`` in an unchanged script."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import keras

from edl.framework.horovod_absent import absent
from edl.tensorflow.keras import callbacks

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A callback that does nothing: when training begins, all processes have the job's variables.

    Args:
        root_rank: ignored.
        device: ignored.
    """

    def __init__(self, root_rank: int = 0, device: str = "") -> None:
        super().__init__()


class MetricAverageCallback(keras.callbacks.Callback):
    """A callback that does nothing: the metrics of an epoch are those of all ranks.

    Args:
        device: ignored.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()


class LearningRateScheduleCallback(callbacks.LearningRateScheduleCallback):
    """A callback that sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch that returns a factor, or a number.
        start_epoch: the learning rate is left alone before this epoch.
        end_epoch: the learning rate is left alone from this epoch on; None: it never is.
        staircase: True: set the rate once an epoch; False: before each step.
        momentum_correction: ignored: Keras 3 has compiled the momentum into the step.
        steps_per_epoch: the number of steps of an epoch; None: it is read from ``fit``.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__(initial_lr, multiplier, start_epoch, end_epoch, staircase, steps_per_epoch)


class LearningRateWarmupCallback(callbacks.LearningRateWarmupCallback):
    """A callback that raises the learning rate over the first epochs, before each step.

    Args:
        initial_lr: the learning rate that is reached.
        warmup_epochs: the number of epochs until it is reached.
        momentum_correction: ignored: Keras 3 has compiled the momentum into the step.
        steps_per_epoch: the number of steps of an epoch; None: it is read from ``fit``.
        verbose: if it is above 0, rank 0 prints the rate that was reached.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        momentum_correction: bool = True,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__(initial_lr, warmup_epochs, steps_per_epoch, verbose)


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent("horovod.tensorflow.keras.callbacks, as --transparent replaces it,")
