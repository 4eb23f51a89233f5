"""``edl.tensorflow.KerasCallback``: Keras' own training loop takes part in the job.

Keras tells of each batch before it takes it and after it has trained it, so a callback can do
what the loop of :mod:`edl.framework.steps` does elsewhere. Two things it cannot know by itself:

- in which epoch to begin, when the job is already training: ``fit`` reads that from the model
  after ``on_train_begin``, where the newcomer has rehearsed and joined;
- when an epoch ends, since a resize changes how many steps it has. If the data set simply ended,
  Keras would take the steps of the first epoch for those of every epoch. So the callback ends an
  epoch with Keras' ``stop_training``, and takes it back when the epoch has ended.
"""

from __future__ import annotations

import logging
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.core.mean import weighted_means
from edl.errors import UsageError
from edl.tensorflow import training
from edl.tensorflow.optimizer import is_elastic

logger = logging.getLogger(__name__)


class _EpochIsOver:
    """True, but not what another callback sets ``stop_training`` to."""

    def __bool__(self) -> bool:
        return True


EPOCH_IS_OVER = _EpochIsOver()


class KerasCallback(keras.callbacks.Callback):
    """``model.fit(dataset, epochs=10, callbacks=[edl.KerasCallback()])``.

    ``dataset`` is an ``edl.Dataset``, and the model is compiled with an ``edl.Optimizer``. Put it
    first: the callbacks after it see metrics that are averaged over all workers, weighted with
    the samples that each has trained in the epoch.

    Raises:
        UsageError: the model was compiled with another optimizer, or ``fit`` was given something
            else than an ``edl.Dataset``.
    """

    def __init__(self) -> None:
        super().__init__()
        self._training = training.current()
        self._samples = 0  # trained here in this epoch

    def set_model(self, model: Any) -> None:
        super().set_model(model)
        optimizer = model.optimizer
        if not is_elastic(optimizer):
            inner = getattr(optimizer, "inner_optimizer", None)
            what = (
                "wrap the whole of it: edl.Optimizer(keras.optimizers.LossScaleOptimizer(...))"
                if is_elastic(inner)
                else f"compile(optimizer=edl.Optimizer({type(optimizer).__name__}(...)))"
            )
            raise UsageError(
                f"the model is compiled with an optimizer that edl does not know: {what}"
            )
        if getattr(model, "steps_per_execution", 1) != 1:
            raise UsageError("edl counts every step: compile the model with steps_per_execution=1")
        if model.jit_compile:
            # Collectives are no part of XLA programs; nor are Horovod's own.
            logger.info("the model is not compiled by XLA: its steps contain collectives")
            model.jit_compile = False
        self._training.model = model

    def on_train_begin(self, logs: Any = None) -> None:
        now, worker = self._training, self._training.worker
        dataset = now.newest_dataset
        if dataset is None:
            raise UsageError("model.fit needs an edl.Dataset to train on")
        now.fitting = True
        _build(self.model, dataset)
        if worker.rehearsing:
            self._rehearse(dataset)
        now.steps.enter()
        # Where fit looks for the epoch to begin with.
        self.model._initial_epoch = worker.epoch

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        worker = self._training.worker
        if worker.epoch_over:
            worker.next_epoch()
        if epoch != worker.epoch:
            raise UsageError(
                f"fit counts this epoch as {epoch} and the job as {worker.epoch}; leave out "
                "initial_epoch, which newcomers would not follow"
            )
        self._samples = 0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if not self._training.begin_step():
            raise UsageError("the epoch is over, and Keras goes on with it")
        self._samples += self._training.worker.samples

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        now = self._training
        if now.worker.step_open and not now.reduction.done:
            raise UsageError(
                "model.fit trained a batch that is not edl's; give it the edl.Dataset itself "
                "(or what its map and prefetch return)"
            )
        now.finish_step()
        if now.worker.epoch_over and not self.model.stop_training:
            self.model.stop_training = EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now = self._training
        now.feed.end()
        if self.model.stop_training is EPOCH_IS_OVER:
            self.model.stop_training = False
        if logs:
            numbers = {name: float(value) for name, value in logs.items() if _is_number(value)}
            means = weighted_means(now.worker.exchange([self._samples, *numbers.values()]))
            logs.update(zip(numbers, means, strict=True))

    def on_train_end(self, logs: Any = None) -> None:
        now = self._training
        now.fitting = False
        now.worker.finish()

    def _rehearse(self, dataset: Any) -> None:
        """Train the first batch for nothing, so that the graph is built before the join."""
        now = self._training
        arriving = iter(dataset)
        try:
            if now.begin_step():
                self.model.train_function(arriving)
                now.finish_step()
        finally:
            now.feed.end()


def _is_number(value: Any) -> bool:
    return np.ndim(value) == 0


def _build(model: Any, dataset: Any) -> None:
    """Create the variables of a model that would create them in its first step."""
    if not model.built:
        spec = dataset.element_spec
        features = spec[0] if isinstance(spec, tuple) else spec
        model(tf.nest.map_structure(lambda s: tf.zeros((1, *s.shape[1:]), s.dtype), features))
