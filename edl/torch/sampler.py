"""Provide ``elastic.ElasticSampler``, which divides an epoch among workers that join and leave.

:func:`refuse_partial_samplers` keeps PyTorch's sampler from leaving samples out.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.utils.data
from torch.utils.data import DistributedSampler

from edl.binding import process
from edl.errors import UsageError
from edl.step.source import EpochOrder
from edl.text import workers

_allows_logical = False
_of_ring: weakref.WeakSet[DistributedSampler[Any]] = weakref.WeakSet()


def refuse_partial_samplers() -> None:
    """Let PyTorch's DistributedSampler refuse the number of logical workers for processes."""
    make = DistributedSampler.__init__
    signature = inspect.signature(make)

    @functools.wraps(make)
    def checked(self: DistributedSampler[Any], *given: Any, **named: Any) -> None:
        if _allows_logical and process.is_initialized():
            asked = signature.bind(self, *given, **named)
            _lower_rank(asked.arguments, process.current_worker().logical)
            make(*asked.args, **asked.kwargs)
            return
        make(self, *given, **named)
        if not process.is_initialized():
            return
        worker = process.current_worker()
        if self.num_replicas == worker.logical and worker.logical != worker.size:
            raise UsageError(
                f"a DistributedSampler for {worker.logical} replicas, the number of logical "
                f"workers, would leave samples out: {workers(worker.size)} share them now; give it "
                "num_replicas=edl.num_processes(), and make it anew for each evaluation"
            )
        # A derived class may have computed more from the share.
        if type(self) is DistributedSampler and (
            (self.num_replicas, self.rank) == (process.num_processes(), process.rank())
        ):
            _of_ring.add(self)

    DistributedSampler.__init__ = checked  # type: ignore[method-assign]


def divide_among_ring() -> None:
    """Divide anew what each DistributedSampler has divided among the workers of the last ring."""
    for sampler in list(_of_ring):
        epoch = sampler.epoch
        DistributedSampler.__init__(
            sampler,
            sampler.dataset,
            process.num_processes(),
            process.rank(),
            sampler.shuffle,
            sampler.seed,
            sampler.drop_last,
        )
        sampler.epoch = epoch


def _lower_rank(asked: dict[str, Any], logical: int) -> None:
    """Lower the rank of a sampler for all logical workers to the largest that PyTorch takes."""
    rank = asked.get("rank")
    if rank is not None and asked.get("num_replicas") == logical:
        asked["rank"] = min(rank, logical - 1)  # a newcomer may expect the rank `logical`


def allow_logical_samplers() -> None:
    """Let scripts make a DistributedSampler for the number of logical workers, from now on."""
    global _allows_logical
    _allows_logical = True


class ElasticSampler(torch.utils.data.Sampler[int]):
    """A sampler of this worker's share of an epoch, divided evenly among the workers of the ring.

    It yields the indices of the samples in this worker's share that no worker had trained when the
    share was made. Make it an attribute of the elastic state, call :meth:`record_batch` after each
    batch and :meth:`set_epoch` with the next number at the end of each epoch. The order of an epoch
    is a function of (``seed``, epoch) alone, and the trained samples are always the first ones of
    that order. So no sample is left out or taken twice when the ring changes, also when a worker
    only leaves.

    As in Horovod, all workers get equally many samples. Where the untrained samples of an epoch
    cannot be divided evenly, the first of them are repeated at the end; fewer samples are repeated
    than there are workers.

    Args:
        dataset: the data set, whose length is the number of samples in an epoch.
        shuffle: whether the order of the samples is random.
        seed: the seed of that order.

    Attributes:
        epoch: the number of the current epoch.
        processed_num: how many samples of this epoch all workers together have trained.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # of this epoch, by all workers together
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin the epoch with the number ``epoch``, of which no sample is trained yet.

        All of its samples are divided among the workers of the present ring.
        """
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Record that each worker of the ring has trained a batch of ``batch_size`` samples.

        This worker's present share stays as it is; the record counts at the next :meth:`reset`.
        ``batch_idx`` is not used; Horovod's sampler has it.
        """
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the sampler in its data, for :meth:`load_state_dict`.

        It is a dict with ``epoch``, the number of the current epoch, and ``processed_num``, how
        many samples of that epoch all workers together have trained.
        """
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Load ``state_dict``, a result of :meth:`state_dict`, and call :meth:`reset`."""
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide the untrained samples of the epoch among the workers of the present ring.

        Each worker takes its own share, without a message. Iterators made before go on with the old
        share.
        """
        self.rank, self.num_replicas = process.rank(), process.num_processes()
        order = EpochOrder(len(self.dataset), self.seed, self.epoch, self.shuffle)
        self.remaining_indices = order.at(self.processed_num, len(order))
        self.num_samples = -(-len(self.remaining_indices) // self.num_replicas)
        self.total_size = self.num_samples * self.num_replicas

    def __iter__(self) -> Iterator[int]:
        padded = np.resize(self.remaining_indices, self.total_size)
        mine: list[int] = padded[self.rank :: self.num_replicas].tolist()
        return iter(mine)

    def __len__(self) -> int:
        return self.num_samples
