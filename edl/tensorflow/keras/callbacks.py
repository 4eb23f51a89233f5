"""``hvd.callbacks`` of a Keras script, for the Keras of today."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from edl.framework import elastic, process
from edl.framework.horovod_absent import absent
from edl.tensorflow.horovod_names import allreduce, broadcast_variables

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """Gives all workers the variables of ``root_rank`` after the first batch.

    In a function that ``elastic.run`` has wrapped it has nothing to do: the state does so.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._done or elastic.is_running():
            return
        variables = [*self.model.weights, *self.model.optimizer.variables]
        with tf.device(self._device):
            broadcast_variables(variables, self._root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """Averages the metrics of an epoch over all workers. Put it before callbacks that read them."""

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if not logs:
            return
        names = sorted(logs)
        with tf.device(self._device):
            mine = tf.constant([float(logs[name]) for name in names], tf.float64)
            means = allreduce(mine, name="edl.metrics").numpy().tolist()
        logs.update(zip(names, means, strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """Sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Args:
        multiplier: a function of the epoch, or a factor for each epoch after ``start_epoch``.
        start_epoch, end_epoch: leave the learning rate alone before and from then on.
        staircase: once an epoch; otherwise before each batch, with fractions of an epoch.
        steps_per_epoch: for those fractions; needed where ``fit`` does not know it.

    Horovod's ``momentum_correction`` does not exist: Keras 3 has the momentum in the compiled
    step.
    """

    def __init__(
        self,
        initial_lr: float,
        multiplier: float | Callable[[float], float],
        start_epoch: int = 0,
        end_epoch: int | None = None,
        staircase: bool = True,
        steps_per_epoch: int | None = None,
    ) -> None:
        super().__init__()
        self.initial_lr = initial_lr
        self.multiplier = (
            multiplier
            if callable(multiplier)
            else lambda epoch: float(multiplier ** (epoch - start_epoch))
        )
        self.start_epoch, self.end_epoch = start_epoch, end_epoch
        self.staircase = staircase
        self.steps_per_epoch = steps_per_epoch
        self._epoch = 0

    def on_train_begin(self, logs: Any = None) -> None:
        if not self.staircase and self.steps_per_epoch is None:
            self.steps_per_epoch = self.params.get("steps")
            if not self.steps_per_epoch:
                raise ValueError(f"{type(self).__name__} needs steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        ended = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            assert self.steps_per_epoch is not None
            self._set(self._epoch + batch / self.steps_per_epoch)
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate.assign(self.initial_lr * self.multiplier(epoch))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """Raises the learning rate from ``initial_lr / size`` to ``initial_lr`` in the first epochs.

    After Goyal et al., "Accurate, Large Minibatch SGD" (2017), section 2.2. ``initial_lr`` is the
    one for all workers together.
    """

    def __init__(
        self,
        initial_lr: float,
        warmup_epochs: float = 5,
        steps_per_epoch: int | None = None,
        verbose: int = 0,
    ) -> None:
        def multiplier(epoch: float) -> float:
            assert self.steps_per_epoch is not None
            size, done = process.size(), epoch + 1 / self.steps_per_epoch
            return (done * (size - 1) / warmup_epochs + 1) / size

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=int(warmup_epochs),
            staircase=False,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        super().on_epoch_end(epoch, logs)
        assert self.end_epoch is not None
        if epoch == self.end_epoch - 1 and self.verbose > 0 and process.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: the learning rate is warm: {rate:g}.")


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)
