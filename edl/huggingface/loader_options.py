"""Turn a training loader of PyTorch, as scripts make one, into options of edl's loader."""

from __future__ import annotations

from typing import Any

import torch.utils.data

from edl.errors import UsageError

LEDGER = "the job's ledger decides which worker trains what"


def is_shuffled(loader: torch.utils.data.DataLoader[Any]) -> bool:
    """Return whether ``loader`` was made with ``shuffle=True``, as a loader of training data is."""
    return isinstance(loader.sampler, torch.utils.data.RandomSampler)


def training_options(loader: torch.utils.data.DataLoader[Any]) -> dict[str, Any]:
    """Return the arguments of ``edl.torch.DataLoader`` for the data and options of ``loader``.

    Raises:
        UsageError: the loader has a sampler of its own, ``drop_last`` or no batch size.
    """
    streams = isinstance(loader.dataset, torch.utils.data.IterableDataset)
    _refuse(loader, streams)
    usual_collate = loader.collate_fn is torch.utils.data.default_collate
    options: dict[str, Any] = {
        "dataset": loader.dataset,
        "batch_size": loader.batch_size,
        "shuffle": is_shuffled(loader),
        "seed": 0 if loader.generator is None else loader.generator.initial_seed(),
        "collate_fn": None if usual_collate else loader.collate_fn,
        "pin_memory": loader.pin_memory,
        "timeout": loader.timeout,
        "worker_init_fn": loader.worker_init_fn,
    }
    if loader.num_workers > 0:
        options |= {
            "num_workers": loader.num_workers,
            "prefetch_factor": loader.prefetch_factor,
            "multiprocessing_context": loader.multiprocessing_context,
        }
    return options


def _refuse(loader: torch.utils.data.DataLoader[Any], streams: bool) -> None:
    """Raise UsageError for options of ``loader`` that would decide who trains which sample."""
    instead = "give it shuffle and batch_size, or make an edl.DataLoader"
    usual = (torch.utils.data.RandomSampler, torch.utils.data.SequentialSampler)
    sampler: Any = loader.sampler
    if loader.batch_size is None:
        raise UsageError(
            "the training loader has a batch_sampler of its own, or batch_size=None, and "
            f"{LEDGER}; {instead}"
        )
    if loader.drop_last:
        raise UsageError(
            "the training loader has drop_last, and edl trains every sample; leave it out"
        )
    if streams:
        return
    if type(sampler) not in usual or _draws(sampler):
        raise UsageError(
            f"the training loader has a sampler, {type(sampler).__name__}, and {LEDGER}; {instead}"
        )


def _draws(sampler: Any) -> bool:
    """Return whether PyTorch's ``sampler`` leaves out samples, or repeats some of them."""
    return getattr(sampler, "replacement", False) or len(sampler) != len(sampler.data_source)
