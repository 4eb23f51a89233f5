"""Put the callbacks of a ``fit`` in the order that edl needs, and refuse those that cannot work.

Keras makes the list of callbacks inside of ``fit``, and gives no access to it. So
:func:`watch_lists` changes the class of the list once, for the process: a list that has a
``KerasCallback`` is put in order before its callbacks are told of the model. Other lists are left
alone.

Keras numbers the batches that this process has taken in the epoch. A worker that joins in the midst
of an epoch would begin at 0, and a callback that computes a learning rate from the number would set
another rate there than on the others. So the callbacks get the job's number of the batch.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import keras
from keras.src.callbacks.progbar_logger import ProgbarLogger

from edl.errors import UsageError
from edl.step.record import stopping
from edl.step.weighting import weighted_means

_REFUSED: dict[type, str] = {
    keras.callbacks.BackupAndRestore: (
        "on a newcomer it would load an old backup over the job's state; use "
        "edl.checkpoint(directory) before fit, and `edl run --resume`"
    ),
    keras.callbacks.OrbaxCheckpoint: (
        "it writes from all workers at once; use edl.checkpoint(directory) or "
        "keras.callbacks.ModelCheckpoint"
    ),
    keras.callbacks.CallbackList: (
        "the callbacks in it would write files on all workers; give fit the callbacks themselves"
    ),
}

Arrange = Callable[[Any, list[Any], Any], list[Any]]  # (edl's callback, the others, model)


class Numbering(Protocol):
    """What gives Keras' list of callbacks the job's numbers of the batches: `KerasCallback`."""

    batch: int  # the index in its epoch, from 0, of the batch that was handed out last

    def begin_batch(self) -> int:
        """Begin a step of the job with the next batch; return its index in the epoch, from 0."""

    @property
    def is_within_step(self) -> bool:
        """Whether more batches follow in the open step, which other callbacks are told of once."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """End a batch of the open step, of which other callbacks are not told."""

    def with_steps(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return a copy of Keras' parameters of `fit`, with the job's steps of an epoch."""


@functools.cache
def watch_lists(kind: type[Any], arrange: Arrange) -> None:
    plain = keras.callbacks.CallbackList.set_model

    def set_model(self: Any, model: Any) -> None:
        ours = [callback for callback in self.callbacks if isinstance(callback, kind)]
        if model and ours:
            if len(ours) > 1:
                raise UsageError("fit was given two edl.KerasCallback(); give it one")
            others = [callback for callback in self.callbacks if callback is not ours[0]]
            _check(others)
            self.callbacks = arrange(ours[0], others, model)
            _number_batches(self, ours[0])
            self._async_train = False  # steps are begun and ended in the thread that trains
        plain(self, model)

    keras.callbacks.CallbackList.set_model = set_model


def _number_batches(callbacks: Any, job: Numbering) -> None:
    """Let each batch of Keras' list begin a step of the job, with the job's number of it."""
    plain_begin, plain_end, params = (
        callbacks.on_train_batch_begin,
        callbacks.on_train_batch_end,
        callbacks.set_params,
    )

    def begin(_: int, logs: Any = None) -> None:
        goes_on = job.is_within_step  # with logical workers: the batches of a step are told as one
        batch = job.begin_batch()
        if not goes_on:
            plain_begin(batch, logs)

    def end(_: int, logs: Any = None) -> None:
        if job.is_within_step:
            job.on_train_batch_end(job.batch, logs)
        else:
            plain_end(job.batch, logs)

    callbacks.on_train_batch_begin, callbacks.on_train_batch_end = begin, end
    callbacks.set_params = lambda given: params(job.with_steps(given) if given else given)


def with_progress(others: list[Any]) -> list[Any]:
    # With `verbose` 0 Keras makes no bar, and a newcomer may get another from the job.
    if any(isinstance(callback, ProgbarLogger) for callback in others):
        return others
    return [*others, ProgbarLogger()]


def _check(callbacks: list[Any]) -> None:
    for callback in callbacks:
        for kind, why in _REFUSED.items():
            if isinstance(callback, kind):
                name = type(callback).__name__
                raise UsageError(f"fit was given keras.callbacks.{name}: {why}")


# ------------------------------------------------------------
# Build and read the rows of floats, equal in length, that workers exchange when an epoch ends.
#
# One has the worker's id, its samples, a checksum of the metrics' names in order, the metrics, and
# zeros; the other its id, whether it wants to stop, and whether it is rank 0 and has written files.


ROOM = 32  # for metrics in a row; with more of them, as much again


def metrics_row(worker: int, samples: int, metrics: Mapping[str, float]) -> list[float]:
    names = zlib.crc32("\n".join(metrics).encode())
    # So workers with different metrics nearly always have rows of one length.
    room = -(-max(len(metrics), 1) // ROOM) * ROOM
    filling = [0.0] * (room - len(metrics))
    return [worker, samples, names, *metrics.values(), *filling]


def job_metrics(rows: Sequence[Sequence[float]], names: Sequence[str]) -> dict[str, float]:
    """Return the means over the workers, weighted with their samples; `names` are this worker's."""
    odd = [f"w{row[0]:.0f}" for row in rows if row[2] != rows[0][2]]
    if odd:
        raise UsageError(
            f"the metrics of {', '.join(odd)} are not those of w{rows[0][0]:.0f}; give all workers "
            f"the same metrics and the same validation_data (here: {', '.join(names)})"
        )
    means = weighted_means([[row[1], *row[3:]] for row in rows])
    return dict(zip(names, means, strict=False))  # what follows is the filling


@dataclass(frozen=True)
class Met:
    """An agreement of all workers at the end of an epoch."""

    stop: str  # why all stop; empty when they do not
    written: bool  # rank 0 had written what there was to write


def end_row(worker: int, wants_to_stop: bool, wrote: bool) -> list[float]:
    return [worker, float(wants_to_stop), float(wrote)]


def met(rows: Sequence[Sequence[float]]) -> Met:
    """Return what the rows of all workers say: all stop if one wants to."""
    stops, reason = stopping([int(row[0]) for row in rows if row[1]])
    return Met(stop=reason if stops else "", written=any(row[2] for row in rows))
