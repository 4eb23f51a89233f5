"""``elastic.ElasticSampler``: an epoch shared out among workers that come and go."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sized
from typing import Any

import numpy as np
import torch.utils.data

from edl.core.step.shuffle import EpochOrder
from edl.framework import process


class ElasticSampler(torch.utils.data.Sampler[int]):
    """The rest of an epoch, divided evenly among the workers of the present ring.

    Make it an attribute of the elastic state, call :meth:`record_batch` after each batch and
    :meth:`set_epoch` at the end of each epoch. The order of an epoch is a function of
    (``seed``, epoch) alone, and what is done of it is always its beginning, so no sample is left
    out or taken twice when the ring changes, also when a worker only leaves.

    As in Horovod, all workers get equally many samples: where the rest of an epoch cannot be
    divided evenly, its first samples are repeated at its end, fewer than there are workers.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset = dataset
        self.shuffle = shuffle
        self.seed = seed
        self.epoch = 0
        self.processed_num = 0  # of this epoch, by all workers together
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin ``epoch``; nothing of it is done."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Each worker has trained a batch of ``batch_size``."""
        self.processed_num += batch_size * self.num_replicas

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        self.epoch, self.processed_num = state_dict["epoch"], state_dict["processed_num"]
        self.reset()

    def reset(self) -> None:
        """Divide what is left of the epoch among the workers of the present ring."""
        self.rank, self.num_replicas = process.rank(), process.size()
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
