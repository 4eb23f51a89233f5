"""Map streams to a ledger: data in shards whose lengths are known only when they are read.

To the ledger a shard is a span of :data:`SHARD` positions: the n-th sample of the s-th shard of an
epoch is at position ``s * SHARD + n``, and the positions after the last sample are empty. A worker
that reads a shard to its end removes the empty positions together with the last samples, so a step
takes more positions off a worker's leases than it has samples.

Shards are leased whole, and read by one worker each. When a worker is gone, another one reads the
rest of its shard, from the same sample. A *shared* stream is one shard that all workers read, each
for its own leases of a few batches; a worker that comes to its end reports where that is, and the
positions after it are removed from the leases of all workers.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from edl.core.step.batching import Batching
from edl.core.step.ledger import LeasePolicy, Ledger, start_epoch
from edl.core.step.shuffle import EpochOrder
from edl.core.step.source import Source
from edl.core.step.spans import Span
from edl.errors import DataError

SHARD = 2**36  # positions; no shard has so many samples
MOST_SHARDS = 2**26  # their positions fit into int64
AHEAD = 2  # shards that a worker wants to hold: one is read, and the next is known


@dataclass(frozen=True)
class StreamSource(Source):
    """The description of a stream that a script trains on, made by `of`."""

    shared: bool = False  # one shard that all workers read, each for its own leases

    @classmethod
    def of(
        cls,
        shards: int,
        batching: Batching,
        shuffle: bool,
        seed: int,
        prefetch_batches: int,
        fingerprint: str = "",
        shared: bool = False,  # then `shards` is 1, which is not checked
    ) -> StreamSource:
        """Return the description of a stream of `shards` shards."""
        if not 1 <= shards <= MOST_SHARDS:
            raise DataError(f"the stream has {shards} shards; it must have 1 to {MOST_SHARDS}")
        total = shards * SHARD
        return cls(total, batching, shuffle, seed, prefetch_batches, fingerprint, shared=shared)

    @property
    def shards(self) -> int:
        return self.total // SHARD

    @property
    def known_total(self) -> int:
        """Always 0: the number of samples is not known before they are read."""
        return 0

    def describe_total(self, total: int) -> str:
        """Return how many shards `total` positions are, in words for a message: "8 shards"."""
        return f"{total // SHARD} shards"

    def policy(self, size: int) -> LeasePolicy:
        """Return the policy that leases whole shards, or samples of a shared stream."""
        return super().policy(size) if self.shared else ShardPolicy(self.batch_size)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many shards `worker` lacks: how many it needs beyond those leased to it."""
        if self.shared:
            return super().lacks(ledger, worker, step_batches, size)
        return max(0, AHEAD - len(by_shard(ledger.held_by(worker))))

    def start(self, epoch: int) -> Ledger:
        """Return the ledger of the epoch `epoch` (from 0), with nothing done or leased."""
        return start_epoch(self.total, epoch, is_stream=True)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of the shards in the epoch with this number (from 0)."""
        return EpochOrder(self.shards, self.seed, epoch, self.shuffle)


@dataclass(frozen=True)
class ShardPolicy(LeasePolicy):
    """The policy that leases whole shards, or the rest of one; a need is a number of shards."""

    def take(self, free: list[Span], need: int, asking: int, size: int) -> tuple[Span, ...]:
        shards = sum((stop - 1) // SHARD - start // SHARD + 1 for start, stop in free)
        taken: list[Span] = []
        while free and len(taken) < min(need, -(-shards // asking)):
            start, stop = free.pop(0)
            end = min(stop, (start // SHARD + 1) * SHARD)
            taken.append((start, end))
            if end < stop:
                free.insert(0, (end, stop))
        return tuple(taken)


def by_shard(spans: Iterable[Span]) -> list[Span]:
    """Cut `spans` of positions at the borders of shards, and return the pieces."""
    pieces = []
    for start, stop in spans:
        while start < stop:
            end = min(stop, (start // SHARD + 1) * SHARD)
            pieces.append((start, end))
            start = end
    return pieces
