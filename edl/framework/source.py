"""Declare a script's training data to its worker, once in a job.

The data loader of each framework calls :func:`asked_batching`, and then :func:`attach_source` for
samples that have numbers, or :func:`attach_stream`.
"""

from __future__ import annotations

import inspect
import logging
import numbers
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np

from edl.core.events import DataSkippedDetails
from edl.core.step.aligned import AlignedSource
from edl.core.step.batching import Batching, batching, logical_batching
from edl.core.step.shuffle import Indices
from edl.core.step.source import NO_FINGERPRINT, SUBSET, Source
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

STATE_OF_OTHERS = (
    "{kind}.state_dict() needs {arguments}, which a loader of its own library gives it and edl's "
    "does not; {instead}"
)
BY_NUMBER = (
    "its samples have numbers, so give edl a map-style data set of the same files, for MDS shards "
    "streaming.LocalDataset(directory) (docs/guides/webdataset-and-mds.md)"
)
BY_SHARD = "give edl its shards with edl.data.stream(shards, open)"


def refuse_logical(worker: Worker, what: str) -> None:
    """Raise UsageError if the job has logical workers, which do not go with a part of edl.

    Args:
        worker: the worker that this process is.
        what: the part of edl, with a verb, such as "edl.tensorflow trains".
    """
    if worker.logical:
        raise UsageError(
            f"the job has {worker.logical} logical workers, and {what} without them only: leave "
            "out --logical, or train as docs/guides/exact.md says"
        )


def asked_batching(
    worker: Worker,
    what: str,
    batch_size: Any = 1,
    max_global_batch: Any = None,
    global_batch: Any = None,
    micro_batch: Any = None,
) -> Batching:
    """Return the batch sizes of the job, from a script's arguments and the job's policy.

    The four sizes are arguments of the script's data loader, in samples, and are checked here. If
    the policy (a TOML file of the job) has a table [batch], its sizes hold; ``batch_size`` is then
    used only if the table has none.

    Args:
        worker: the worker that this process is.
        what: the name of the script's call, for error messages.
        batch_size: samples in a batch of one worker; 1 if the script has given none.
        max_global_batch: the most samples in a batch of all workers together; None: no limit.
        global_batch: samples of all workers together in each step; or a pair of the fewest and the
            most, between which the job chooses; None: it depends on the number of workers.
        micro_batch: the most samples that a worker trains at once; it trains a larger batch in
            pieces. None: the whole batch.

    Raises:
        UsageError: if a size is not usable, or if the policy has a table [batch] and the script
            gives anything but ``batch_size``; or if the job has logical workers, and they cannot
            share what the script or the policy asks for.
    """
    own = batching(what, batch_size, max_global_batch, global_batch, micro_batch)
    if own.is_chosen and not worker.is_shared:
        logger.warning("without a launcher nobody chooses a global batch: it stays %s", own)
    policy = worker.follows()
    table = policy.batch if policy is not None else None
    if table is None:
        return logical_batching(what, own, worker.logical) if worker.logical else own
    if worker.logical:
        raise UsageError(
            f"the job has {worker.logical} logical workers, which fix its global batch, and its "
            "policy has a table [batch], too; leave one of them out"
        )
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
    """Return whether the samples of a data set can be read by number.

    That is so if it has ``__len__`` and ``__getitem__``, and none of its classes has the name
    IterableDataset, as PyTorch's, which inherits a ``__getitem__``.

    Args:
        dataset: any object; its methods are not called.
    """
    if any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def stream_of(dataset: Any) -> ShardReader:
    """Return a reader of the samples of ``dataset``, which are not numbered, in order.

    The result is ``dataset`` itself if it is a ShardReader, as ``edl.data.stream`` returns it.

    Args:
        dataset: a ShardReader, or an object that can be iterated over and whose ``state_dict()``
            and ``load_state_dict()`` save and set its position.

    Raises:
        UsageError: if ``dataset`` is a class, or has no ``state_dict()`` and ``load_state_dict()``
            for its position, or one that needs arguments (as the StreamingDataset of
            mosaicml-streaming), so that edl could not tell which samples are trained.
    """
    if isinstance(dataset, ShardReader):
        return dataset
    if isinstance(dataset, type):
        raise UsageError(f"edl needs a data set, and was given the class {dataset.__name__}")
    kind = type(dataset).__name__
    if not all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        raise UsageError(NO_PLACE.format(kind=kind))
    if needed := _required(dataset.state_dict):
        by_number = hasattr(dataset, "__len__") and _is_indexed(dataset)
        raise UsageError(
            STATE_OF_OTHERS.format(
                kind=kind,
                arguments=" and ".join(needed),
                instead=BY_NUMBER if by_number else BY_SHARD,
            )
        )
    return StatefulStream(dataset)


def _required(function: Callable[..., Any]) -> list[str]:
    """Return the names of the arguments without which ``function`` cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one that is written in C has no signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in several]


def _is_indexed(dataset: Any) -> bool:
    """Return whether a class of ``dataset`` reads samples by number.

    The ``__getitem__`` of PyTorch's own classes only raises an error.
    """
    own = [base for base in type(dataset).__mro__ if not base.__module__.startswith("torch.")]
    return any("__getitem__" in vars(base) for base in own)


def attach_stream(
    worker: Worker,
    stream: ShardReader,
    batches: Batching,
    shuffle: bool,
    seed: int | None,
    prefetch_batches: int,
) -> Source:
    """Declare ``stream`` as the job's training data, and return the data's description.

    All workers must declare the same data. The worker then is in epoch 0.

    Args:
        worker: the worker that this process is.
        stream: the reader of the samples.
        batches: the batch sizes, as :func:`asked_batching` returns them.
        shuffle: whether to shuffle the order of the shards.
        seed: the seed of that order; None: 0.
        prefetch_batches: how many batches the loader forms ahead of the one in training.

    Raises:
        DataError: if the stream has no shards, or too many.
        UsageError: if the worker has training data already, if the script has an elastic state or
            has trained to its end, if ``batches`` has a global batch or a micro-batch, if a data
            set without shards is to be shuffled, or if ``seed`` is no whole number.
    """
    if worker.logical:
        raise UsageError(
            "the samples of a stream have no numbers, so nobody could tell which of them a logical "
            "worker trains: leave out --logical, or give edl a map-style data set"
        )
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
        bool(shuffle),
        _whole_seed(seed),
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
    seed: int | None,
    prefetch_batches: int,
    sampler: Callable[[int], Indices] | None = None,
) -> Source:
    """Declare a numbered data set as the job's training data, and return its description.

    All workers must declare the same data. The worker then is in epoch 0. If edl has left damaged
    parts out of the data set's files, rank 0 writes events about them into the job's event log,
    after the return.

    Args:
        worker: the worker that this process is.
        dataset: the data set, whose samples can be read by number.
        total: the number of samples in it; with ``sampler``, the number of positions of an epoch.
        batches: the batch sizes, as :func:`asked_batching` returns them.
        shuffle: whether to shuffle the samples in each epoch.
        seed: the seed of the shuffled order; None: 0.
        prefetch_batches: how many batches the loader forms ahead of the one in training.
        sampler: returns the sample at each position of an epoch, by the epoch's number from 0, the
            same on all workers; None: the order follows from ``shuffle`` and ``seed``.

    Raises:
        DataError: if the data set is empty.
        UsageError: if the worker has training data already, if the script has an elastic state or
            has trained to its end, or if ``seed`` is no whole number.
    """
    order = bool(shuffle), _whole_seed(seed)
    data = total, batches, *order, prefetch_batches, data_fingerprint(dataset), sampler
    audits = worker.checkpointing.settings.exact_audit if worker.logical else 0
    source = AlignedSource(*data, audits) if batches.global_batch else Source(*data)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source


def data_fingerprint(dataset: Any) -> str:
    """Return a line of text that is equal where the samples are, as far as edl can know that.

    For edl's data sets it is that of their files. For a ``Subset`` of PyTorch, such as one of
    ``random_split()``, it tells which samples are chosen, and for a ``ConcatDataset`` it has that
    of each part. The result is "" for any other data set.
    """
    kinds = {kind.__name__ for kind in type(dataset).__mro__}  # PyTorch is not imported here
    if "Subset" in kinds:
        chosen = np.asarray(dataset.indices)
        which = f"{SUBSET} of {len(chosen)} samples ({zlib.crc32(chosen.tobytes()):08x})"
        within = data_fingerprint(dataset.dataset)
        return f"{which} of {within}" if within else which
    if "ConcatDataset" in kinds:
        parts = [data_fingerprint(part) for part in dataset.datasets]
        return " and ".join(part or NO_FINGERPRINT for part in parts) if any(parts) else ""
    return fingerprint_of(dataset)


def _whole_seed(given: Any) -> int:
    """Return a user's seed as an ``int``, which messages and checkpoints can hold.

    Args:
        given: the seed; an integer of NumPy is one, too. None: 0.

    Raises:
        UsageError: ``given`` is no integer (a boolean is none).
    """
    if given is None:
        return 0
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if not whole:
        raise UsageError(f"seed is {given!r}; give a whole number, the same on all workers")
    return int(given)
