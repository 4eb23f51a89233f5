"""What a job trains on, as its steps need to know it: how many samples, and in which order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from edl.core.step.ledger import LeasePolicy, Ledger, give_back, start_epoch
from edl.core.step.shuffle import EpochOrder

NO_FINGERPRINT = "data of unknown files"


@dataclass(frozen=True)
class Source:
    """What the script trains on, equal on all workers: its size and how it is read.

    ``prefetch_batches``: how many batches the loader forms ahead of the one in training.
    ``fingerprint``: one line that differs where the data do; empty where nobody can tell.
    ``max_global_batch``: samples of one batch of all workers together, at most; 0: any number.
    """

    total: int
    batch_size: int
    shuffle: bool
    seed: int
    prefetch_batches: int
    fingerprint: str = ""
    max_global_batch: int = field(default=0, kw_only=True)

    lets_newcomers_pad: ClassVar[bool] = True  # until their first batch is loaded

    def batch_of(self, rank: int, size: int) -> int:
        """Samples in a batch of one of ``size`` workers.

        ``batch_size``, as long as all together have no more than ``max_global_batch``; else they
        share that out evenly, the first ones with one more (AutoScaling, MLSys 2020). One at least.
        """
        if not self.max_global_batch or self.batch_size * size <= self.max_global_batch:
            return self.batch_size
        each, more = divmod(self.max_global_batch, size)
        return max(1, each + (rank < more))

    def global_batch(self, size: int) -> int:
        """Samples in a batch of all of ``size`` workers."""
        whole = self.batch_size * size
        return max(size, min(whole, self.max_global_batch)) if self.max_global_batch else whole

    def need(self, step_batches: int) -> int:
        """Samples that a worker wants to hold, so that its loader never waits for a lease.

        ``step_batches``: how many batches it takes for one step. It wants to hold those of the step
        that is under way, and of the next one.
        """
        return (self.prefetch_batches + 2 * step_batches) * self.batch_size

    @property
    def known_total(self) -> int:
        """Samples of an epoch; 0: nobody knows before they are read."""
        return self.total

    def told(self, total: int) -> str:
        """A total as people count it."""
        return f"{total} samples"

    @property
    def policy(self) -> LeasePolicy:
        """How much of it is leased at once."""
        return LeasePolicy(self.batch_size)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int) -> int:
        """How much more ``worker`` needs leases for, as :func:`edl.core.step.ledger.grant` asks."""
        return max(0, self.need(step_batches) - ledger.held_samples(worker))

    def start(self, epoch: int) -> Ledger:
        """An epoch of which everything is free."""
        return start_epoch(self.total, epoch)

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """``ledger`` when a ring of ``members`` stands.

        ``in_hand``: of so many batches, one after the other, each may be training its part now.
        """
        return give_back(ledger, members)

    def order(self, epoch: int) -> EpochOrder:
        """The sample at each position of an epoch."""
        return EpochOrder(self.total, self.seed, epoch, self.shuffle)
