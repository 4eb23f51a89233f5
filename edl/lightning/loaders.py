"""Divide the data of a script's loaders among the workers, who prepare them one after another.

Training data by edl's ledger; validation data by rank and size when a validation begins.
"""

from __future__ import annotations

import math
import os
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sized
from pathlib import Path
from typing import Any, cast

import torch.utils.data
from filelock import FileLock, Timeout
from torch.utils.data import BatchSampler, RandomSampler, SequentialSampler

from edl.binding.loop import refuse_logical
from edl.binding.process import current_worker
from edl.errors import UsageError
from edl.torch.loader import DataLoader, training_options

PREPARE_TIMEOUT_S = 3600.0  # for the other workers of the host, which may download


def training_loader(given: object, **batching: Any) -> DataLoader:
    if not isinstance(given, torch.utils.data.DataLoader):
        raise UsageError(
            f"the training data come from a {type(given).__name__}; with ElasticStrategy give "
            "trainer.fit() one torch.utils.data.DataLoader, whose data set edl divides among the "
            "workers"
        )
    refuse_logical(current_worker(), "Lightning's Trainer counts batches, so it trains")
    asked = {name: value for name, value in batching.items() if value is not None}
    options = training_options(given) | asked
    if "global_batch" in asked:
        del options["batch_size"]
    return DataLoader(**options)


class RankSampler(torch.utils.data.Sampler[int]):
    """The sampler of a validation loader: rank, rank + size, ..., divided anew when iterated."""

    def __init__(self, dataset: Sized, place: Callable[[], tuple[int, int]]) -> None:
        self._dataset = dataset
        self._place = place

    def __iter__(self) -> Iterator[int]:
        return iter(self._part())

    def __len__(self) -> int:
        return len(self._part())

    def _part(self) -> range:
        rank, size = self._place()
        total = len(self._dataset)
        # With fewer samples than workers, several take the same one.
        return range(rank % max(1, min(size, total)), total, size)


Rebuilt = Callable[[torch.utils.data.DataLoader[Any], RankSampler], object]


def shared(given: object, place: Callable[[], tuple[int, int]], rebuilt: Rebuilt) -> object:
    """Return a loader that gives each worker a part of the validation data, if that can be."""
    if not isinstance(given, torch.utils.data.DataLoader):
        return given
    # Each worker validates on all of an iterable data set, or of what the script's sampler gives.
    plain = type(given.batch_sampler) is BatchSampler
    if not plain or type(given.sampler) not in (RandomSampler, SequentialSampler):
        return given
    return rebuilt(given, RankSampler(cast(Sized, given.dataset), place))


def limited_batches(loaders: Iterable[object], limit: float, known: list[float]) -> list[float]:
    """Return how many batches of each loader this worker validates, of its present part."""
    # At least 1: a worker that validated nothing would not take part in the exchange of results.
    return [
        max(1, int(len(cast(Sized, loader)) * limit)) if 0 < before < math.inf else before
        for loader, before in zip(loaders, known, strict=True)
    ]


class LoaderView:
    """A stand-in for the script's training loader; Lightning's loop takes no batches from it."""

    def __init__(self, given: torch.utils.data.DataLoader[Any], loader: DataLoader) -> None:
        self._given = given
        self._loader = loader
        self._length: int | None = None

    def __iter__(self) -> Iterator[Any]:
        if hasattr(self._given.dataset, "__len__"):  # else Lightning takes a first batch
            yield from self._given

    def __len__(self) -> int:
        if self._length is None:  # it stays that of the beginning
            self._length = len(self._loader)
        return self._length

    def __getattr__(self, name: str) -> Any:
        return getattr(self._given, name)


class PreparationLock:
    """A lock of all workers on this host that run one script as one user, for `prepare_data`."""

    def __init__(self, script: str, timeout_s: float = PREPARE_TIMEOUT_S) -> None:
        number = zlib.crc32(str(Path(script).resolve()).encode())
        name = f"edl-prepare-data-{os.getuid()}-{number:08x}.lock"
        # The system releases it when a process dies.
        self._lock = FileLock(Path(tempfile.gettempdir()) / name, timeout=timeout_s)
        self._timeout_s = timeout_s

    @property
    def is_held(self) -> bool:
        return self._lock.is_locked

    def acquire(self) -> None:
        try:
            self._lock.acquire()
        except Timeout as error:
            raise UsageError(
                f"the workers of this host call prepare_data one after another, and one of them "
                f"has not ended it in {self._timeout_s:g} s; prepare the data in a script of its "
                "own, before the job"
            ) from error

    def release(self) -> None:
        if self._lock.is_locked:
            self._lock.release()
