"""Keep track of the calls of ``model.fit`` in a script: freeze, ``fit``, unfreeze, ``fit``.

Keras numbers the epochs of each ``fit`` as its arguments say, and the job counts its epochs over
all fits. :class:`Fits` knows the difference between the two numbers. A fit that the job has done
already is passed over (:mod:`edl.core.job.fits`): Keras runs no epoch of it, and its ``History`` is
the job's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from edl.core.job.fits import DoneFit, json_value
from edl.errors import UsageError
from edl.tensorflow.variables import plain, variables_of
from edl.worker.worker import Worker

ONE_MODEL_AND_DATA = (
    "a job trains one model on one edl.Dataset, and each further fit goes on with these two; run "
    "each fold and each trial, with data or a model of its own, as a job of its own: `edl run ... "
    "train.py --fold 2`; at a prompt, edl.init() begins a new job"
)
LOOP_AFTER_FIT = (
    "this script has called fit, and a newcomer could not tell how far the job is in a loop that "
    "follows: go on with fit (a train_step of the model's own does what a loop does), or run the "
    "loop as a job of its own; at a prompt, edl.init() begins a new job"
)


class Fits:
    """The calls of `model.fit` that this process's script has made so far."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.done: tuple[DoneFit, ...] = ()  # also those that this worker skipped
        self.shift = 0  # the job's number of an epoch minus Keras' number, in the present fit

    @property
    def _before(self) -> int:
        return self.done[-1].until if self.done else 0

    def begin(self, first: int) -> None:
        """Begin a call of `fit`, whose `initial_epoch` is `first`, after the fit before."""
        self.shift = self._before - first
        self._worker.fits.begin(self.done)

    @property
    def is_fresh(self) -> bool:
        """Whether the job has begun no epoch of the present fit, which is not the first."""
        return self._worker.loader.epoch < self._before

    @property
    def next_epoch(self) -> int:
        """Keras' number of the epoch that the job is in, or of the first one in this fit."""
        return max(self._worker.loader.epoch, self._before) - self.shift

    def begin_epoch(self, epoch: int) -> None:
        """Move the job to its next epoch if the present one is trained, or is of an earlier fit."""
        loader = self._worker.loader
        if loader.ledger.finished:
            loader.next_epoch()
        elif self.is_fresh:  # the fit before was ended on purpose, inside an epoch
            loader.leave()
            loader.progress.next_epoch()
        if epoch + self.shift != loader.epoch:
            raise UsageError(
                f"fit counts this epoch as {epoch} and the job as {loader.epoch - self.shift}; let "
                "no callback change the epochs of a fit"
            )

    def end(self, history: Any, stopped: str = "") -> None:
        """Record the present fit as done, and save a checkpoint; all workers call it.

        `stopped` says why callbacks have stopped it, so that a resumed job trains no more of it.
        """
        until = max(self._before, self._worker.loader.ledger.epochs_begun)
        epochs = [] if history is None else [int(epoch) for epoch in history.epoch]
        numbers = {} if history is None else _as_values(history.history)
        self.done = (*self.done, DoneFit(until, epochs, numbers))
        self._worker.fits.end(self.done, stopped, self._worker.rank, self._worker.generation)

    def pass_over(self, done: Sequence[DoneFit], history: Any) -> None:
        """Record the present fit as done without training, since the job has done it already."""
        fit = done[len(self.done)]
        if history is not None:
            history.epoch = list(fit.epochs)
            history.history = {name: list(values) for name, values in fit.history.items()}
        self.done = (*self.done, fit)
        self._worker.fits.pass_over(self.done)

    def check_model(self, model: Any, before: Any) -> None:
        """Refuse a further fit of a `model` that shares no variable with the model `before`."""
        if not self.done or before is None or model is before:
            return
        known = {id(plain(one)) for one in variables_of(before) or []}
        if known.isdisjoint(id(plain(one)) for one in variables_of(model) or []):
            raise UsageError(ONE_MODEL_AND_DATA)


class PassedOver(keras.callbacks.Callback):
    """A callback, in place of the script's, with which a worker skips a fit the job has done."""

    def __init__(
        self, fits: Fits, done: Sequence[DoneFit], history: Any, build: Callable[[], None]
    ) -> None:
        super().__init__()
        self._fits, self._done, self._history, self._build = fits, done, history, build

    def on_train_begin(self, logs: Any = None) -> None:
        self._build()  # the variables, as the first step would
        self.model._initial_epoch = self.params["epochs"]  # where fit looks for its first epoch

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        self._fits.pass_over(self._done, self._history)


def history_among(callbacks: Sequence[Any]) -> Any:
    found = (one for one in callbacks if isinstance(one, keras.callbacks.History))
    return next(found, None)


def _as_values(history: dict[str, list[Any]]) -> dict[str, list[Any]]:
    """Return a copy with values of JSON; a callback may have put anything into the logs."""
    return {
        name: [json_value(_without_arrays(one)) for one in values]
        for name, values in history.items()
    }


def _without_arrays(value: Any) -> Any:
    """Return lists and numbers of Python, if numpy makes an array of `value`."""
    try:
        # numpy makes no array of TensorFlow's tensor of bfloat16
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value).tolist()
    except ValueError:
        return value
