"""Seed the random generators by (seed, epoch, sample) while a sample is loaded.

:class:`Seeded` and :class:`SeededCollate` do it around the data set and the collate function of a
loader. So the augmentation of a sample is the same whichever worker and loader process loads it,
also after the death of a worker and after a resize, and it differs between epochs. Each sample
seeds the global generators of Python, NumPy and PyTorch (6 µs, measured with Python 3.11 and torch
2.13). The generators are also seeded before the collate function makes a batch of the samples.
Without loader processes the generators of the training thread are saved while a batch is loaded,
and restored after it (15 µs). A data set that draws no random numbers is loaded without seeding, if
the script gives no collate function.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch.utils.data

from edl.binding.loop import seed_python
from edl.step.source import derived_seed

DRAWS_NOTHING = (torch.utils.data.TensorDataset, torch.Tensor, np.ndarray, list, tuple, range)

_global: Any = np.random  # its functions for the global generator are not in its stubs
_aside = np.random.MT19937()  # NumPy's generator while a batch is loaded in the training thread


class Items(list[Any]):
    """A list of the indices of a batch's samples, with the seeds to load them with."""

    epoch_seed = -1  # -1: the samples are loaded without seeds
    keys: Sequence[int] = ()  # the position of each sample in the epoch

    @classmethod
    def of(cls, items: list[Any], epoch_seed: int, keys: Sequence[int]) -> Items:
        made = cls(items)
        made.epoch_seed, made.keys = epoch_seed, keys
        return made


def seed_all(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch with `seed`."""
    seed_python(seed)
    for generator in _generators():
        generator.manual_seed(seed)


@contextmanager
def generators_aside() -> Iterator[None]:
    """Save the random generators at the start of the `with` block, and restore them at its end."""
    python, numpy_ = random.getstate(), _global.get_bit_generator()
    before = [(generator, generator.get_state()) for generator in _generators()]
    _global.set_bit_generator(_aside)
    try:
        yield
    finally:
        random.setstate(python)
        _global.set_bit_generator(numpy_)
        for generator, state in before:
            generator.set_state(state)


def seed_torch(seed: int | None) -> None:
    """Seed PyTorch's global generators; None: by chance."""
    if seed is None:
        torch.seed()
    else:
        torch.manual_seed(seed)


def read_seeded(dataset: Any, index: int, seed: int) -> Any:
    """Return the sample of `index`, read with generators that `seed` has seeded."""
    with generators_aside():
        seed_all(seed)
        return dataset[index]


def _generators() -> tuple[torch.Generator, ...]:
    uses_gpus = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    return (torch.default_generator, *(torch.cuda.default_generators if uses_gpus else ()))


class TorchGenerators:
    """PyTorch's global generators, as `Generators`."""

    def read(self) -> int:
        """Return the seed of the CPU's."""
        return torch.initial_seed()

    def seed(self, seed: int) -> None:
        """Seed all, those of GPUs that start later too; it takes 250 µs."""
        torch.manual_seed(seed)

    def save(self) -> list[torch.Tensor]:
        """Return their states."""
        return [generator.get_state() for generator in _generators()]

    def restore(self, saved: list[torch.Tensor]) -> None:
        """Set their states; a GPU that has started since `save` goes on as it is."""
        for generator, state in zip(_generators(), saved, strict=False):
            generator.set_state(state)

    def seed_between(self, seed: int) -> None:
        """Seed those in use."""
        for generator in _generators():
            generator.manual_seed(seed)


def draws_nothing(dataset: Any) -> bool:
    """Return whether it is certain that `dataset` draws no random numbers when a sample is read."""
    if isinstance(dataset, torch.utils.data.Subset):
        return draws_nothing(dataset.dataset)
    if isinstance(dataset, torch.utils.data.ConcatDataset):
        return all(map(draws_nothing, dataset.datasets))
    return type(dataset) in DRAWS_NOTHING  # derived classes may draw


def reads_batches(dataset: Any) -> bool:
    """Return whether `dataset` reads all samples of a batch at once, by its `__getitems__`."""
    subset = torch.utils.data.Subset
    if isinstance(dataset, subset) and type(dataset).__getitems__ is subset.__getitems__:
        return reads_batches(dataset.dataset)  # a Subset has that method for any data set
    return hasattr(dataset, "__getitems__")


class Seeded(torch.utils.data.Dataset[Any]):
    """A data set that seeds the random generators before it reads a sample of another data set."""

    def __init__(self, dataset: Any, in_thread: bool) -> None:
        vars(self).update(dataset=dataset, in_thread=in_thread)

    def __getattr__(self, name: str) -> Any:  # what worker_init_fn finds in get_worker_info()
        if name.startswith("__") or "dataset" not in vars(self):
            raise AttributeError(name)
        return getattr(self.dataset, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.dataset, name, value)

    def __getitem__(self, item: Any) -> Any:
        return self.dataset[item]

    def __getitems__(self, items: list[Any]) -> list[Any]:
        if not isinstance(items, Items) or items.epoch_seed < 0:
            return self._read(items)
        if not self.in_thread:
            return self._read_seeded(items)
        with generators_aside():  # the training thread's own random numbers must not change
            return self._read_seeded(items)

    def _read_seeded(self, items: Items) -> list[Any]:
        epoch, keys = items.epoch_seed, items.keys
        _LastSeed.batch = derived_seed("batch", epoch, keys[0])
        if reads_batches(self.dataset):
            seed_all(derived_seed("samples", epoch, keys[0]))
            return self._read(items)
        if draws_nothing(self.dataset):
            return self._read(items)
        samples: list[Any] = []
        for item, key in zip(items, keys, strict=True):
            seed_all(derived_seed(epoch, key))
            samples += self._read([item])
        return samples

    def _read(self, items: list[Any]) -> list[Any]:
        if hasattr(self.dataset, "__getitems__"):
            return list(self.dataset.__getitems__(items))
        return [self.dataset[item] for item in items]


class _LastSeed:
    """The seed of the batch that this process has read last, for its collate function."""

    batch = 0


class SeededCollate:
    """A collate function with seeded generators: it may draw, for mixup or MLM masks."""

    def __init__(self, collate: Callable[[list[Any]], Any], in_thread: bool) -> None:
        self._collate, self._in_thread = collate, in_thread

    def __call__(self, samples: list[Any]) -> Any:
        if not self._in_thread:
            seed_all(_LastSeed.batch)
            return self._collate(samples)
        with generators_aside():
            seed_all(_LastSeed.batch)
            return self._collate(samples)
