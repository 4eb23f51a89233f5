"""Define ``hvd.elastic`` for Keras scripts: the state, and callbacks that commit it in ``fit``."""

from __future__ import annotations

from typing import Any

import keras

from edl.binding.process import current_worker
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
    """The elastic state of a Keras model, its optimizer, and further attributes.

    It is ``KerasState(model, optimizer=None, **attributes)``, a
    :class:`~edl.tensorflow.elastic.TensorFlowKerasState` under the name that Horovod has for Keras
    scripts.
    """


class CommitStateCallback(keras.callbacks.Callback):
    """A callback that commits ``state`` after every ``batches_per_commit`` batches and each epoch.

    A commit keeps a copy of the state, to which the workers return after a crash. When workers join
    or leave, it raises HostsUpdatedInterrupt out of ``fit``, and the function that ``elastic.run``
    has wrapped is called again. Put this callback after the callbacks that update the state.

    Args:
        state: the elastic state.
        batches_per_commit: the number of batches from one commit to the next.
    """

    def __init__(self, state: TensorFlowKerasState, batches_per_commit: int = 1) -> None:
        super().__init__()
        self._state = state
        self._left = self._batches_per_commit = batches_per_commit

    def on_train_begin(self, logs: Any = None) -> None:
        """Begin to count batches, as all workers do, which begin ``fit`` together."""
        self._left = self._batches_per_commit

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Commit the state after ``batches_per_commit`` batches; in a warm-up, end that.

        Raises:
            HostsUpdatedInterrupt: workers join or leave, or the warm-up ends.
        """
        worker = current_worker()
        worker.script.beat()
        self._left -= 1
        if self._left == 0 or worker.warming_up:
            self._left = self._batches_per_commit
            self._state.commit()

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Commit the state, or raise HostsUpdatedInterrupt, as after a batch."""
        self._state.commit()


class UpdateBatchStateCallback(keras.callbacks.Callback):
    """A callback that keeps in ``state.batch`` how many batches of the epoch are trained.

    If ``fit`` is called again in the middle of an epoch, this callback ends the first epoch of the
    call after the batches that are not trained yet. ``fit`` must know its number of steps per epoch
    for that; otherwise the first epoch has its full length.

    Args:
        state: the elastic state, with an attribute ``batch``, 0 at first.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = 0  # batches of this epoch that were trained before fit was called

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember ``state.batch``, the batches of the epoch trained before ``fit`` was called."""
        self._before = self._state.batch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Count ``batch`` in ``state.batch``, and end the epoch if all its batches are trained."""
        self._state.batch = self._before + batch + 1
        steps = self.params.get("steps")
        if steps and self._state.batch >= steps and not self.model.stop_training:
            self.model.stop_training = EPOCH_IS_OVER

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set ``state.batch`` to 0, and let ``fit`` continue if only the epoch was ended."""
        if self.model.stop_training is EPOCH_IS_OVER:
            self.model.stop_training = False
        self._state.batch = self._before = 0


class UpdateEpochStateCallback(keras.callbacks.Callback):
    """A callback that counts in ``state.epoch`` the epochs of all calls of ``fit`` so far.

    Give each call of ``fit`` ``epochs=total - state.epoch``, and no ``initial_epoch``.

    Args:
        state: the elastic state, with an attribute ``epoch``, 0 at first.
    """

    def __init__(self, state: Any) -> None:
        super().__init__()
        self._state = state
        self._before = 0

    def on_train_begin(self, logs: Any = None) -> None:
        """Remember ``state.epoch``, how many epochs were trained before this call of ``fit``."""
        self._before = self._state.epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Set ``state.epoch`` to the number of epochs trained in all calls of ``fit``."""
        self._state.epoch = self._before + epoch + 1
