"""Turn a training loader of PyTorch, as scripts make one, into options of edl's loader.

The adapters of trainers use it (:mod:`edl.lightning`, :mod:`edl.huggingface`): their users write
PyTorch's loader.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    IterableDataset,
    RandomSampler,
    SequentialSampler,
    default_collate,
)

from edl.errors import UsageError

INSTEAD = (
    "edl decides which worker trains which sample: give the loader batch_size and shuffle only, or "
    "a data set that has what your sampler would choose (docs/guides/loading.md)"
)
PASSED_ON = ("num_workers", "pin_memory", "timeout", "worker_init_fn", "multiprocessing_context")


def is_shuffled(loader: DataLoader[Any]) -> bool:
    """Return whether `loader` was made with `shuffle=True`, as a loader of training data is."""
    return isinstance(loader.sampler, RandomSampler)


def seed_of_order(seed: int | None, generator: Any, shuffle: bool) -> int:
    if seed is not None:
        return seed
    # A generator that orders nothing may have the rank in its seed.
    return generator.initial_seed() if shuffle and isinstance(generator, torch.Generator) else 0


def training_options(loader: DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of `edl.torch.DataLoader` for the data and options of `loader`."""
    _refuse(loader)
    options: dict[str, Any] = {name: getattr(loader, name) for name in PASSED_ON}
    options |= {
        "persistent_workers": loader.persistent_workers,
        "dataset": loader.dataset,
        "batch_size": loader.batch_size,
        "shuffle": is_shuffled(loader),
        "generator": loader.generator,
        "order_generator": getattr(loader.sampler, "generator", None),
    }
    if loader.num_workers:
        options["prefetch_factor"] = loader.prefetch_factor
    if loader.collate_fn is not default_collate:
        options["collate_fn"] = loader.collate_fn
    return options


def _refuse(loader: DataLoader[Any]) -> None:
    """Raise UsageError for options of `loader` that would decide who trains which sample."""
    if type(loader.batch_sampler) is not BatchSampler:
        why = "a batch sampler of its own" if loader.batch_sampler else "no batch_size"
        raise UsageError(f"the training loader has {why}; {INSTEAD}")
    if loader.drop_last:
        raise UsageError(
            "the training loader has drop_last=True, and edl trains every sample; leave it out"
        )
    sampler: Any = loader.sampler
    if isinstance(loader.dataset, IterableDataset) or type(sampler) is SequentialSampler:
        return
    plain = type(sampler) is RandomSampler and not sampler.replacement
    if not plain or sampler.num_samples != len(sampler.data_source):
        raise UsageError(f"the training loader has a {type(sampler).__name__}; {INSTEAD}")
