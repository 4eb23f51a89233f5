"""Read a few samples of the data set, to compare them with those of the other workers.

A script may build or order its data set by what differs between workers: a newcomer has not run the
epochs before, a rank or a host is in a seed. Then an index is another sample on each worker, and
samples are trained twice or never. So at each epoch's start, and where workers join, all read
:data:`COUNT` samples of the same indices (:class:`edl.worker.state_check.StateCheck` compares
them). Samples that are not the same each time, as of a data set with a generator of its own, or
that cannot be read here, are not compared.
"""

from __future__ import annotations

import dataclasses
import random
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from edl.step.source import derived_seed
from edl.step.state_check import DATA, UNSTABLE

COUNT = 3
READS = 4  # of the same sample, if workers differ; a flip by chance is the same in one of 8
SCALE = 1.37  # so that rounding, which hosts may do differently, does not differ twice


class DataCheck:
    """Digests of a few samples of the data set."""

    def __init__(self, total: Callable[[], int], read: Callable[[int, int], Any]) -> None:
        self._total, self._read = total, read  # read(index, seed of the random numbers)

    def digests(self, epoch: int) -> dict[str, int]:
        """Return a digest of each sample that is compared in an epoch, by a name."""
        return {f"{DATA}{k}": self._digest(epoch, k, 1.0) for k in self._indices(epoch)}

    def again(self, epoch: int) -> dict[str, int]:
        """Return other digests of the same samples; `UNSTABLE` for one that changes."""
        found = {}
        for index in self._indices(epoch):
            read = {self._digest(epoch, index, SCALE) for _ in range(READS)}
            found[f"{DATA}{index}"] = read.pop() if len(read) == 1 else UNSTABLE
        return found

    def _indices(self, epoch: int) -> list[int]:
        numbers, total = random.Random(derived_seed(DATA, epoch)), self._total()
        return numbers.sample(range(total), min(COUNT, total))

    def _digest(self, epoch: int, index: int, scale: float) -> int:
        try:
            sample = self._read(index, derived_seed(DATA, epoch, index))
            content = _content(sample, scale, False)
            if _is_empty(content):
                content = _content(sample, scale, True)  # it has nothing but texts
            return zlib.crc32(repr(content).encode())
        except Exception:  # noqa: BLE001 - it may be readable in loader processes only
            return UNSTABLE


def held(dataset: Any, index: int) -> Any:
    """Return what `dataset` holds at `index` in lists of numbers and names; read nothing else."""
    # Loader processes read such a data set. If it opens a file when it is first read, it must not
    # do so in the process that forks them.
    found: dict[str, Any] = {}
    while dataset is not None:
        own, length = getattr(dataset, "__dict__", {}), len(dataset)
        for name, value in own.items():
            if hasattr(value, "__getitem__") and hasattr(value, "__len__") and len(value) == length:
                if isinstance(value, Mapping) or value is own.get("dataset"):
                    continue
                one = value[index % length]
                found[f"{len(found)} {name}"] = one if _is_plain(one) else None
        dataset = own.get("dataset")
    return found


def _is_plain(value: Any) -> bool:
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return isinstance(value, int | str | np.integer) or getattr(value, "shape", None) == ()


def _content(value: Any, scale: float, with_texts: bool) -> Any:
    """Return what is compared of a sample: numbers, rounded if they are no integers, and bytes."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        value = vars(value)
    if isinstance(value, Mapping):
        return [(str(key), _content(item, scale, with_texts)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return [_content(item, scale, with_texts) for item in value]
    if isinstance(value, str):
        return value if with_texts else None  # it may be a path, which differs between hosts
    if value is None or isinstance(value, bytes):
        return value
    try:
        array = np.asarray(value)  # of a tensor, too
    except Exception:  # noqa: BLE001 - whatever a sample's own code raises
        return None
    if array.dtype.kind == "f":
        flat = array.astype(np.float64).ravel()
        weighted = flat * np.cos(np.arange(flat.size))  # so the order of the values counts
        sums = flat.mean(), flat.std(), weighted.mean()
        return array.shape, [f"{scale * each:.2g}" for each in sums]
    return (array.shape, array.tobytes()) if array.dtype.kind in "biu" else None


def _is_empty(content: Any) -> bool:
    if isinstance(content, list):
        return all(_is_empty(each[1] if isinstance(each, tuple) else each) for each in content)
    return content is None
