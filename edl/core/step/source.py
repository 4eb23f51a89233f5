"""Describe the data of a job: its number of samples, their order, and the sizes of its batches.

A :class:`Source` also says how the positions of an epoch are leased to the workers.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from edl.core.step.batching import Batching
from edl.core.step.ledger import LeasePolicy, Ledger, free_leases, start_epoch
from edl.core.step.shuffle import EpochOrder

NO_FINGERPRINT = "data of unknown files"


@dataclass(frozen=True)
class Source:
    """The data that a script trains on, equal on all workers: its size and how it is read.

    Attributes:
        total: how many positions an epoch has; one for each sample, unless the data is a stream.
        batching: the sizes of the batches.
        shuffle: whether the order of an epoch is random.
        seed: the seed of that order.
        prefetch_batches: how many batches the loader forms ahead of the one in training.
        fingerprint: one line that differs where the data differ; empty where that is not known.
        lets_newcomers_pad: whether a newcomer trains padding batches until its first batch is
            loaded.
    """

    total: int
    batching: Batching
    shuffle: bool
    seed: int
    prefetch_batches: int
    fingerprint: str = ""

    lets_newcomers_pad: ClassVar[bool] = True  # until their first batch is loaded

    @property
    def batch_size(self) -> int:
        """The nominal batch that the weights of gradients refer to, in samples.

        It is equal on all workers: the global batch where there is one (the smallest of a range),
        else the batch of one worker.
        """
        batching = self.batching
        return batching.global_batch or batching.batch_range[0] or batching.batch_size

    @property
    def warm_up_batch(self) -> int:
        """The number of samples of a newcomer's first batch, whose result is discarded.

        It is the batch of one worker. If the job has a global batch, it is half of that, for at
        least two workers share it. It is at most ``micro_batch``, if that is set.
        """
        is_shared = self.batching.is_chosen or self.batching.global_batch
        whole = -(-self.batch_size // 2) if is_shared else self.batch_size
        return min(whole, self.batching.micro_batch or whole)

    def need(self, step_batches: int, size: int) -> int:
        """Return how many leased samples a worker wants to hold, so that its loader never waits.

        These are the batches that its loader prefetches, and those of two steps.

        Args:
            step_batches: how many batches of each worker make one step; above 1 if the script
                accumulates gradients.
            size: the number of workers in the ring.
        """
        return (self.prefetch_batches + 2 * step_batches) * self.batching.of_one(0, size)

    @property
    def known_total(self) -> int:
        """The number of samples of an epoch; 0 if it is not known before they are read."""
        return self.total

    def describe_total(self, total: int) -> str:
        """Return ``total``, the number of positions of an epoch, in words: "960 samples"."""
        return f"{total} samples"

    def policy(self, size: int) -> LeasePolicy:
        """Return the policy that leases samples in a ring of ``size`` workers."""
        return LeasePolicy(self.batching.of_one(0, size))

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many more samples ``worker`` needs leases for, by :meth:`need`.

        The number is the worker's need in :func:`edl.core.step.ledger.grant`.

        Args:
            ledger: the ledger of the epoch.
            worker: the id of the worker.
            step_batches: how many batches of each worker make one step; above 1 if the script
                accumulates gradients.
            size: the number of workers in the ring.
        """
        return max(0, self.need(step_batches, size) - ledger.held_samples(worker))

    def start(self, epoch: int) -> Ledger:
        """Return the ledger of the epoch with this number, with nothing done or leased yet."""
        return start_epoch(self.total, epoch)

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """Return the ledger for a new ring: leases of workers that are not in it are dropped.

        Their positions can be leased again.

        Args:
            ledger: the ledger of the epoch, with the leases of the old ring.
            members: the ids of the workers of the new ring.
            in_hand: how many successive batches a worker may be training now; only subclasses use
                it.
        """
        return free_leases(ledger, members)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of the epoch with this number: which sample is at each position."""
        return EpochOrder(self.total, self.seed, epoch, self.shuffle)
