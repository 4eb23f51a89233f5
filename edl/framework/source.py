"""What a script trains on, made known to its worker and to the job's event log."""

from __future__ import annotations

import logging
from typing import Any

from edl.core.events import DataSkippedDetails
from edl.core.step.aligned import AlignedSource
from edl.core.step.batching import Batching, batching
from edl.core.step.source import Source
from edl.core.step.stream import StreamSource
from edl.data.dataset import fingerprint_of, skip_events
from edl.data.stateful_stream import StatefulStream
from edl.data.stream import ShardReader
from edl.errors import UsageError
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

NO_PLACE = (
    "the samples of a {kind} have no numbers (__len__, __getitem__), and it cannot tell where in "
    "them it is, so some could be lost or trained twice when a worker goes; give edl its shards "
    "with edl.data.stream(shards, open), or give it state_dict() and load_state_dict(), as "
    "torchdata's StatefulDataLoader asks"
)


def asked_batching(
    worker: Worker,
    what: str,
    batch_size: Any = 1,
    max_global_batch: Any = None,
    global_batch: Any = None,
    micro_batch: Any = None,
) -> Batching:
    """How large batches are: what a script asks for, and the job's policy.

    Args:
        what: the script's call, for sentences.

    Raises:
        UsageError: it cannot be, or both say it.
    """
    own = batching(what, batch_size, max_global_batch, global_batch, micro_batch)
    if own.is_chosen and not worker.is_shared:
        logger.warning("without a launcher nobody chooses a global batch: it stays %s", own)
    policy = worker.follows()
    table = policy.batch if policy is not None else None
    if table is None:
        return own
    sizes = {
        "max_global_batch": max_global_batch,
        "global_batch": global_batch,
        "micro_batch": micro_batch,
    }
    for name in (name for name, given in sizes.items() if given is not None):
        raise UsageError(
            f"{what} was given {name}, and the job's policy has a table [batch], too; leave one of "
            "them out"
        )
    if table.batch_size:
        return table
    most, micro = table.max_global_batch or None, table.micro_batch or None
    return batching(what, batch_size, most, micro_batch=micro)


def is_numbered(dataset: Any) -> bool:
    """Whether its samples have numbers. PyTorch's iterable sets have a ``__getitem__``, too."""
    if any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def stream_of(dataset: Any) -> ShardReader:
    """A data set without numbered samples as a stream.

    Raises:
        UsageError: nobody could tell which samples of it are trained.
    """
    if isinstance(dataset, ShardReader):
        return dataset
    if isinstance(dataset, type):
        raise UsageError(f"edl needs a data set, and was given the class {dataset.__name__}")
    if all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        return StatefulStream(dataset)
    raise UsageError(NO_PLACE.format(kind=type(dataset).__name__))


def attach_stream(
    worker: Worker,
    stream: ShardReader,
    batches: Batching,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
) -> Source:
    """Declare ``stream``.

    Raises:
        DataError, UsageError: see :meth:`edl.worker.loader_progress.LoaderProgress.attach`; or the
            shards of a stream that has none are to be shuffled, or its global batches fixed.
    """
    if batches.global_batch or batches.micro_batch:
        raise UsageError(
            "the samples of a stream have no numbers, so nobody could tell which of them a global "
            "batch or a piece of one has: give no global_batch or micro_batch, but batch_size, and "
            "max_global_batch if you like"
        )
    if shuffle and stream.shared:
        raise UsageError(
            "edl cannot shuffle a data set without numbered samples; let it do so itself, in "
            "the same order on all workers"
        )
    source = StreamSource.of(
        stream.count,
        batches,
        shuffle,
        seed,
        prefetch_batches,
        stream.fingerprint,
        stream.shared,
    )
    worker.attach_source(source, stream)
    return source


def attach_source(
    worker: Worker,
    dataset: Any,
    total: int,
    batches: Batching,
    shuffle: bool,
    seed: int,
    prefetch_batches: int,
) -> Source:
    """Declare ``dataset`` with its ``total`` samples, and log what was left out of it.

    Raises:
        DataError, UsageError: see :meth:`edl.worker.loader_progress.LoaderProgress.attach`.
    """
    fingerprint = fingerprint_of(dataset)
    kind = AlignedSource if batches.global_batch else Source
    source = kind(total, batches, shuffle, seed, prefetch_batches, fingerprint)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source
