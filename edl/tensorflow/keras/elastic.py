"""``hvd.elastic`` of a Keras script: the state, and the callbacks that commit it in ``fit``."""

from __future__ import annotations

from typing import Any

import keras

from edl.framework.process import current_worker
from edl.tensorflow.elastic import TensorFlowKerasState, run
from edl.tensorflow.fit import EPOCH_IS_OVER

__all__ = [
    "CommitStateCallback",
    "KerasState",
    "UpdateBatchStateCallback",
    "UpdateEpochStateCallback",
    "run",
]


class KerasState(TensorFlowKerasState):
    """A Keras model, its optimizer, and further attributes; see the class it is derived from."""


class CommitStateCallback(keras.callbacks.Callback):
    """Commits ``state`` after every ``batches_per_commit`` batches, and after each epoch.

    Put it behind the callbacks that update the state.
    """

    def __init__(self, state: TensorFlowKerasState, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._batches_per_commit = batches_per_commit
        self._left = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        self._left = self._batches_per_commit  # alike on all, who begin together

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        worker = current_worker()
        worker.beat()
        self._left -= 1
        if self._left == 0 or worker.warming_up:
            self._left = self._batches_per_commit
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """Keeps in ``state.batch`` how many batches of the epoch are trained.

    When ``fit`` is called again in the middle of an epoch, and knows its steps an epoch, it ends
    the first epoch that much earlier.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = 0  # batches of this epoch that were trained before fit was called

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self._state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._state.batch = self._before + batch + 1
        steps = self.params.get("steps")
        if steps and self._state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if self.model.stop_training is EPOCH_IS_OVER:
            self.model.stop_training = False
        self._state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """Keeps in ``state.epoch`` how many epochs are trained, over all calls of ``fit``."""

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._state.epoch = self._before + epoch + 1
