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
    """Raise UsageError if the job has logical workers, which do not go with a part of edl."""
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
    """Return the batch sizes of the job, from a script's arguments and the job's policy."""
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
    """Return whether the samples of a data set can be read by number."""
    if any(base.__name__ == "IterableDataset" for base in type(dataset).__mro__):
        return False  # PyTorch's inherits a __getitem__
    return hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")


def stream_of(dataset: Any) -> ShardReader:
    """Return a reader of the samples of `dataset`, which are not numbered, in order."""
    if isinstance(dataset, ShardReader):
        return dataset
    if isinstance(dataset, type):
        raise UsageError(f"edl needs a data set, and was given the class {dataset.__name__}")
    kind = type(dataset).__name__
    if not all(hasattr(dataset, name) for name in ("__iter__", "state_dict", "load_state_dict")):
        raise UsageError(NO_PLACE.format(kind=kind))
    if needed := _required(dataset.state_dict):  # as that of mosaicml-streaming
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
    """Return the names of the arguments without which `function` cannot be called."""
    try:
        parameters = inspect.signature(function).parameters.values()
    except (TypeError, ValueError):  # one that is written in C has no signature
        return []
    several = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return [one.name for one in parameters if one.default is one.empty and one.kind not in several]


def _is_indexed(dataset: Any) -> bool:
    # That of PyTorch's own classes only raises an error.
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
    """Declare `stream` as the training data, the same on all workers; return its description."""
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
    total: int,  # samples; with a sampler, positions of an epoch
    batches: Batching,
    shuffle: bool,
    seed: int | None,
    prefetch_batches: int,
    sampler: Callable[[int], Indices] | None = None,  # the samples of an epoch, by its number
) -> Source:
    """Declare a numbered data set, the same on all workers; return the data's description."""
    order = bool(shuffle), _whole_seed(seed)
    data = total, batches, *order, prefetch_batches, data_fingerprint(dataset), sampler
    audits = worker.checkpointing.settings.exact_audit if worker.logical else 0
    source = AlignedSource(*data, audits) if batches.global_batch else Source(*data)
    worker.attach_source(source)
    for reason, details in skip_events(dataset):
        worker.log_event(DataSkippedDetails(**details), reason)
    return source


def data_fingerprint(dataset: Any) -> str:
    """Return a line of text that is equal where the samples are, as far as edl can know that."""
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
    """Return a user's seed as an `int`, which messages and checkpoints can hold."""
    if given is None:
        return 0
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if not whole:
        raise UsageError(f"seed is {given!r}; give a whole number, the same on all workers")
    return int(given)
