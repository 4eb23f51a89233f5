"""Streams: data in shards whose lengths show only when they are read to their ends.

To the ledger a shard is a span of :data:`SHARD` positions: the n-th sample of the s-th shard of an
epoch stands at ``s * SHARD + n``, and what is behind the last one is nothing. Who reads a shard to
its end takes the nothing away together with the last samples, so a step takes more positions off
a worker's leases than it has samples.

Shards are leased whole, and read by one worker each. What a worker that is gone leaves of a shard
is read on by another one, from the same sample. A *shared* stream is one shard that all workers
read, each for its own leases of a few batches; who comes to its end says where that is, and what
is behind it goes from everybody's leases.
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
    """A stream that the script trains on, equal on all workers.

    ``shared``: it is one shard, which all workers read.
    """

    shared: bool = False

    @classmethod
    def of(
        cls,
        shards: int,
        batching: Batching,
        shuffle: bool,
        seed: int,
        prefetch_batches: int,
        fingerprint: str = "",
        shared: bool = False,
    ) -> StreamSource:
        """A stream of so many ``shards``.

        Raises:
            DataError: they are none, or too many.
        """
        if not 1 <= shards <= MOST_SHARDS:
            raise DataError(f"the stream has {shards} shards; it must have 1 to {MOST_SHARDS}")
        total = shards * SHARD
        return cls(total, batching, shuffle, seed, prefetch_batches, fingerprint, shared)

    @property
    def shards(self) -> int:
        return self.total // SHARD

    @property
    def known_total(self) -> int:
        return 0

    def describe_total(self, total: int) -> str:
        return f"{total // SHARD} shards"

    def policy(self, size: int) -> LeasePolicy:
        return super().policy(size) if self.shared else ShardPolicy(self.batch_size)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        if self.shared:
            return super().lacks(ledger, worker, step_batches, size)
        return max(0, AHEAD - len(by_shard(ledger.held_by(worker))))

    def start(self, epoch: int) -> Ledger:
        return start_epoch(self.total, epoch, is_stream=True)

    def order(self, epoch: int) -> EpochOrder:
        """The shard at each place of an epoch."""
        return EpochOrder(self.shards, self.seed, epoch, self.shuffle)


@dataclass(frozen=True)
class ShardPolicy(LeasePolicy):
    """Whole shards are granted, or what is left of them; needs are numbers of shards."""

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
    """``spans``, each within one shard."""
    pieces = []
    for start, stop in spans:
        while start < stop:
            end = min(stop, (start // SHARD + 1) * SHARD)
            pieces.append((start, end))
            start = end
    return pieces
