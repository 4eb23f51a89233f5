"""What a script trains on, made known to its worker and to the job's event log."""

from __future__ import annotations

from typing import Any, NamedTuple

from edl.core.events import DataSkippedDetails
from edl.core.step.aligned import AlignedSource
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


class Batches(NamedTuple):
    """How large batches are.

    ``size``: samples of one worker, or of all together if ``is_global``; ``most``: of all together;
    0: any number.
    """

    size: int
    most: int = 0
    is_global: bool = False


def batches_of(batch_size: Any, max_global_batch: Any, global_batch: Any, what: str) -> Batches:
    """What a script asks for; ``what``: the call, for its sentence.

    Raises:
        UsageError: it cannot be.
    """
    given = batch_size if global_batch is None else global_batch
    name = "batch_size" if global_batch is None else "global_batch"
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(
            f"{name} is {given!r}; {what} needs a whole number of samples. Where "
            "each item of the data set is a batch already, give batch_size=1"
        )
    if given < 1:
        raise UsageError(f"{name} is {given}; it must be at least 1")
    if global_batch is not None:
        if batch_size != 1 or max_global_batch is not None:
            raise UsageError(
                f"{what} was given global_batch, by which each worker has its part of that, and "
                "batch_size or max_global_batch, too; leave these out"
            )
        return Batches(given, is_global=True)
    if max_global_batch is None:
        return Batches(given)
    whole = isinstance(max_global_batch, int) and not isinstance(max_global_batch, bool)
    if not whole or max_global_batch < given:
        raise UsageError(
            f"max_global_batch is {max_global_batch!r} and batch_size {given}; give the most "
            "samples that all workers together may have in a batch, not fewer than one of them has"
        )
    return Batches(given, max_global_batch)


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
    batches: Batches,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
) -> Source:
    """Declare ``stream``.

    Raises:
        DataError, UsageError: see :meth:`edl.daemon.progress.TrainingProgress.attach`; or the
            shards of a stream that has none are to be shuffled, or its global batches fixed.
    """
    if batches.is_global:
        raise UsageError(
            "the samples of a stream have no numbers, so nobody could tell which of them a global "
            "batch has: give batch_size, and max_global_batch if you like"
        )
    if shuffle and stream.shared:
        raise UsageError(
            "edl cannot shuffle a data set without numbered samples; let it do so itself, in "
            "the same order on all workers"
        )
    source = StreamSource.of(
        stream.count,
        batches.size,
        shuffle,
        seed,
        prefetch_batches,
        stream.fingerprint,
        stream.shared,
        batches.most,
    )
    worker.attach_source(source, stream)
    return source


def attach_source(
    worker: Worker,
    dataset: Any,
    total: int,
    batches: Batches,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
) -> Source:
    """Declare ``dataset`` with its ``total`` samples, and log what was left out of it.

    Raises:
        DataError, UsageError: see :meth:`edl.daemon.progress.TrainingProgress.attach`.
    """
    fingerprint = fingerprint_of(dataset)
    kind = AlignedSource if batches.is_global else Source
    order = shuffle, seed, prefetch_batches
    source = kind(total, batches.size, *order, fingerprint, max_global_batch=batches.most)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source
