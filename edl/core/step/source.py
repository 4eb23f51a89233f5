"""What a job trains on, as its steps need to know it: how many samples, and in which order."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar

from edl.core.step.batching import Batching
from edl.core.step.ledger import LeasePolicy, Ledger, give_back, start_epoch
from edl.core.step.shuffle import EpochOrder

NO_FINGERPRINT = "data of unknown files"


@dataclass(frozen=True)
class Source:
    """What the script trains on, equal on all workers: its size and how it is read.

    ``prefetch_batches``: how many batches the loader forms ahead of the one in training.
    ``fingerprint``: one line that differs where the data do; empty where nobody can tell.
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
        """Samples of a worker's batch as the weights of gradients count them, whatever it has."""
        batching = self.batching
        return batching.global_batch or batching.batch_range[0] or batching.batch_size

    @property
    def warm_up_batch(self) -> int:
        """Samples of a newcomer's first batch, which counts for nothing.

        Of a global batch a half: there is one more worker.
        """
        is_shared = self.batching.is_chosen or self.batching.global_batch
        whole = -(-self.batch_size // 2) if is_shared else self.batch_size
        return min(whole, self.batching.micro_batch or whole)

    def need(self, step_batches: int, size: int) -> int:
        """Samples that each of ``size`` workers wants to hold, so that its loader never waits.

        ``step_batches``: how many batches it takes for one step. It wants to hold those of the step
        that is under way, and of the next one.
        """
        return (self.prefetch_batches + 2 * step_batches) * self.batching.of_one(0, size)

    @property
    def known_total(self) -> int:
        """Samples of an epoch; 0: nobody knows before they are read."""
        return self.total

    def describe_total(self, total: int) -> str:
        """A total as people count it."""
        return f"{total} samples"

    def policy(self, size: int) -> LeasePolicy:
        """How much of it is leased at once to each of ``size`` workers."""
        return LeasePolicy(self.batching.of_one(0, size))

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """How much more one of ``size`` workers needs leases for.

        As :func:`edl.core.step.ledger.grant` asks.
        """
        return max(0, self.need(step_batches, size) - ledger.held_samples(worker))

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
