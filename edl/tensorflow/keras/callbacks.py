"""Define ``hvd.callbacks`` for Keras scripts: Horovod's callbacks, written for Keras 3.

A script gives them to ``model.fit(callbacks=[...])`` on all workers alike.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import keras
import tensorflow as tf

from edl.binding import elastic, process
from edl.binding.api import absent
from edl.tensorflow.horovod_names import allreduce, broadcast_variables

__all__ = [
    "BroadcastGlobalVariablesCallback",
    "LearningRateScheduleCallback",
    "LearningRateWarmupCallback",
    "MetricAverageCallback",
]


class BroadcastGlobalVariablesCallback(keras.callbacks.Callback):
    """A callback that gives all workers the variables of ``root_rank`` after the first batch.

    It does so once, in the first ``fit`` that it is given to. Within a function that
    ``elastic.run`` has wrapped it does nothing, since the state is broadcast there.

    Args:
        root_rank: the rank whose model and optimizer variables are broadcast.
        device: the TensorFlow device on which the broadcast runs; empty: TensorFlow chooses.
    """

    def __init__(self, root_rank: int, device: str = "") -> None:
        super().__init__()
        self._root_rank = root_rank
        self._device = device
        self._done = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Broadcast the variables of model and optimizer, in the first call only."""
        if self._done or elastic.is_running():
            return
        variables = [*self.model.weights, *self.model.optimizer.variables]
        with tf.device(self._device):
            broadcast_variables(variables, self._root_rank)
        self._done = True


class MetricAverageCallback(keras.callbacks.Callback):
    """A callback that replaces the metrics of an epoch by their means over all workers.

    All workers count equally, whatever the number of their samples. Put it before callbacks that
    read the metrics.

    Args:
        device: the TensorFlow device on which the allreduce runs; empty: TensorFlow chooses.
    """

    def __init__(self, device: str = "") -> None:
        super().__init__()
        self._device = device

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace each number in ``logs``, of the same names on all workers, by its mean."""
        if not logs:
            return
        names = sorted(logs)
        with tf.device(self._device):
            mine = tf.constant([float(logs[name]) for name in names], tf.float64)
            means = allreduce(mine, name="edl.metrics").numpy().tolist()
        logs.update(zip(names, means, strict=True))


class LearningRateScheduleCallback(keras.callbacks.Callback):
    """A callback that sets the learning rate to ``initial_lr * multiplier(epoch)``.

    Args:
        initial_lr: the learning rate that is multiplied.
        multiplier: a function of the epoch (from 0) that returns a factor, or a number m: the
            factor is then m to the power of ``epoch - start_epoch``.
        start_epoch: the learning rate is left alone before this epoch.
        end_epoch: the learning rate is left alone from this epoch on; None: it never is.
        staircase: True: set the rate once an epoch; False: before each batch, with ``epoch`` plus
            the fraction of the epoch that is done.
        momentum_correction: has no effect, whatever it is: Keras 3 has compiled the momentum into
            the step, where a callback cannot change it.
        steps_per_epoch: the number of batches of an epoch, to compute those fractions; None: they
            are the job's, since the number of batches changes with the number of workers.
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
        """Raise ValueError if ``staircase`` is False and the batches of an epoch are unknown."""
        if not (self.staircase or self.steps_per_epoch or self.params.get("steps")):
            raise ValueError(f"{type(self).__name__} needs steps_per_epoch")

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Keep the number of the epoch, from which the learning rate is computed."""
        self._epoch = epoch

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Set the learning rate before each batch; with ``staircase``, before batch 0 only."""
        ended = self.end_epoch is not None and self._epoch >= self.end_epoch
        if self._epoch < self.start_epoch or ended:
            return
        if not self.staircase:
            share = None if self.steps_per_epoch else _trained_share()
            self._set(self._epoch + (batch / self._steps if share is None else share))
        elif batch == 0:
            self._set(self._epoch)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the present learning rate to ``logs`` as ``lr``; do nothing if ``logs`` is None."""
        if logs is not None:
            logs["lr"] = float(self.model.optimizer.learning_rate)

    @property
    def _steps(self) -> int:
        return int(self.steps_per_epoch or self.params["steps"])

    def _set(self, epoch: float) -> None:
        self.model.optimizer.learning_rate.assign(self.initial_lr * self.multiplier(epoch))


class LearningRateWarmupCallback(LearningRateScheduleCallback):
    """A callback that raises the learning rate over the first epochs, for large batches.

    Before each batch the rate is set on a straight line from about ``initial_lr / size``, size
    being the present number of workers, to ``initial_lr``, the rate for all workers together (Goyal
    et al., "Accurate, Large Minibatch SGD", 2017, section 2.2). It is ``initial_lr`` at the end of
    the last epoch of the warm-up, and left alone afterwards.

    Args:
        initial_lr: the learning rate that is reached.
        warmup_epochs: the number of epochs until it is reached, which may be a fraction.
        momentum_correction: has no effect, as in :class:`LearningRateScheduleCallback`.
        steps_per_epoch: the number of batches of an epoch; None: ``fit`` has to know it.
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
        def multiplier(epoch: float) -> float:
            size, done = _ranks(), epoch + 1 / self._steps
            return min(1.0, (done * (size - 1) / warmup_epochs + 1) / size)

        super().__init__(
            initial_lr,
            multiplier,
            end_epoch=math.ceil(warmup_epochs),
            staircase=False,
            momentum_correction=momentum_correction,
            steps_per_epoch=steps_per_epoch,
        )
        self.verbose = verbose

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Add the rate to ``logs`` as ``lr``; in the last epoch of the warm-up set it before.

        It has not reached ``initial_lr`` if the epoch had fewer steps than ``steps_per_epoch``.
        """
        assert self.end_epoch is not None
        is_last = epoch == self.end_epoch - 1
        if is_last:
            self.model.optimizer.learning_rate.assign(self.initial_lr)
        super().on_epoch_end(epoch, logs)
        if is_last and self.verbose > 0 and process.rank() == 0:
            rate = float(self.model.optimizer.learning_rate)
            print(f"\nEpoch {epoch + 1}: the learning rate is warm: {rate:g}.")


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent(__name__)


def _trained_share() -> float | None:
    """Return the share of the epoch's samples that the job has trained, from 0 to 1, if known."""
    loader = process.current_worker().loader
    total = loader.progress.source.known_total if loader.progress.attached else 0
    return loader.ledger.done / total if total else None


def _ranks() -> int:
    worker = process.current_worker()
    return worker.logical or worker.size
