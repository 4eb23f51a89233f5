"""What a script trains on, made known to its worker and to the job's event log."""

from __future__ import annotations

from typing import Any

from edl.core.events import DataSkippedDetails
from edl.core.step.source import Source
from edl.core.step.stream import StreamSource
from edl.daemon.worker import Worker
from edl.data.dataset import fingerprint_of, skip_events
from edl.data.stateful_stream import StatefulStream
from edl.data.stream import Reading
from edl.errors import UsageError

NO_PLACE = (
    "the samples of a {kind} have no numbers (__len__, __getitem__), and it cannot tell where in "
    "them it is, so some could be lost or trained twice when a worker goes; give edl its shards "
    "with edl.data.stream(shards, open), or give it state_dict() and load_state_dict(), as "
    "torchdata's StatefulDataLoader asks"
)


def is_numbered(dataset: Any) -> bool:
    """Whether its samples have numbers. PyTorch's iterable sets have a ``__getitem__``, too."""
    if any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def stream_of(dataset: Any) -> Reading:
    """A data set without numbered samples as a stream.

    Raises:
        UsageError: nobody could tell which samples of it are trained.
    """
    if isinstance(dataset, Reading):
        return dataset
    if isinstance(dataset, type):
        raise UsageError(f"edl needs a data set, and was given the class {dataset.__name__}")
    if all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        return StatefulStream(dataset)
    raise UsageError(NO_PLACE.format(kind=type(dataset).__name__))


def attach_stream(
    worker: Worker,
    stream: Reading,
    batch_size: int,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
    max_global_batch: int = 0,
) -> Source:
    """Declare ``stream``.

    Raises:
        DataError, UsageError: see :meth:`edl.daemon.progress.TrainingProgress.attach`; or the
            shards of a stream that has none are to be shuffled.
    """
    if shuffle and stream.shared:
        raise UsageError(
            "edl cannot shuffle a data set without numbered samples; let it do so itself, in "
            "the same order on all workers"
        )
    source = StreamSource.of(
        stream.count,
        batch_size,
        shuffle,
        seed,
        prefetch_batches,
        stream.fingerprint,
        stream.shared,
        max_global_batch,
    )
    worker.attach_source(source, stream)
    return source


def attach_source(
    worker: Worker,
    dataset: Any,
    total: int,
    batch_size: int,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
    max_global_batch: int = 0,
) -> Source:
    """Declare ``dataset`` with its ``total`` samples, and log what was left out of it.

    Raises:
        DataError, UsageError: see :meth:`edl.daemon.progress.TrainingProgress.attach`.
    """
    fingerprint = fingerprint_of(dataset)
    source = Source(
        total,
        batch_size,
        shuffle,
        seed,
        prefetch_batches,
        fingerprint,
        max_global_batch=max_global_batch,
    )
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source


def check_batch(batch_size: Any, max_global_batch: Any, what: str) -> int:
    """The largest global batch as a number, 0 for any. ``what``: the call, for its sentence.

    Raises:
        UsageError: one of the two cannot be.
    """
    if not isinstance(batch_size, int) or isinstance(batch_size, bool):
        raise UsageError(
            f"batch_size is {batch_size!r}; {what} needs a whole number of samples. Where "
            "each item of the data set is a batch already, give batch_size=1"
        )
    if batch_size < 1:
        raise UsageError(f"batch_size is {batch_size}; it must be at least 1")
    if max_global_batch is None:
        return 0
    whole = isinstance(max_global_batch, int) and not isinstance(max_global_batch, bool)
    if not whole or max_global_batch < batch_size:
        raise UsageError(
            f"max_global_batch is {max_global_batch!r} and batch_size {batch_size}; give the most "
            "samples that all workers together may have in a batch, not fewer than one of them has"
        )
    most: int = max_global_batch
    return most
