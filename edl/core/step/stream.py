"""Map streams to a ledger: data in shards whose lengths are known only when they are read.

To the ledger a shard is a span of :data:`SHARD` positions: the n-th sample of the s-th shard of an
epoch is at position ``s * SHARD + n``, and the positions after the last sample are empty. A worker
that reads a shard to its end removes the empty positions together with the last samples, so a step
takes more positions off a worker's leases than it has samples.

Shards are leased whole, and read by one worker each. When a worker is gone, another one reads the
rest of its shard, from the same sample. A *shared* stream is one shard that all workers read, each
for its own leases of a few batches; a worker that comes to its end reports where that is, and the
positions after it are removed from the leases of all workers. A script's stream is described by
``StreamSource.of(...)``.
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
    """The description of a stream that a script trains on, made by :meth:`of`.

    It is equal on all workers. The stream has shards whose lengths are known only when they are
    read. ``total`` is a number of positions: :data:`SHARD` for each shard. The other inherited
    fields are ``batching``, ``shuffle``, ``seed``, ``prefetch_batches`` and ``fingerprint``.

    Attributes:
        shared: whether the stream is one shard that all workers read, each for its own leases.
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
        """Return the description of a stream of ``shards`` shards.

        Args:
            shards: the number of shards.
            batching: the sizes of the batches.
            shuffle: whether the order of the shards is random.
            seed: the seed of that order.
            prefetch_batches: how many batches the loader forms ahead of the one in training.
            fingerprint: one line that differs where the data differ; empty where that is not known.
            shared: whether all workers read the whole stream, each for its own leases of samples;
                ``shards`` must be 1 then, which is not checked.

        Raises:
            DataError: ``shards`` is below 1 or above :data:`MOST_SHARDS`.
        """
        if not 1 <= shards <= MOST_SHARDS:
            raise DataError(f"the stream has {shards} shards; it must have 1 to {MOST_SHARDS}")
        total = shards * SHARD
        return cls(total, batching, shuffle, seed, prefetch_batches, fingerprint, shared=shared)

    @property
    def shards(self) -> int:
        """The number of shards of the stream."""
        return self.total // SHARD

    @property
    def known_total(self) -> int:
        """The number of samples of an epoch: always 0, for it is not known before they are read."""
        return 0

    def describe_total(self, total: int) -> str:
        """Return how many shards ``total`` positions are, in words for a message: "8 shards"."""
        return f"{total // SHARD} shards"

    def policy(self, size: int) -> LeasePolicy:
        """Return the rule that says how long a lease is: whole shards; in a shared stream, samples.

        ``size`` is the number of workers in the ring; it matters for a shared stream only.
        """
        return super().policy(size) if self.shared else ShardPolicy(self.batch_size)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many shards ``worker`` lacks: how many it needs beyond those leased to it.

        A worker needs :data:`AHEAD` shards. For a shared stream the result is a number of samples.
        It is 0 if nothing is lacking, and does not depend on how much of the epoch is left to
        lease.

        Args:
            ledger: the ledger of the epoch.
            worker: the id of the worker.
            step_batches: how many batches of each worker make one step; above 1 if the script
                accumulates gradients. Used for a shared stream only.
            size: the number of workers in the ring; used for a shared stream only.
        """
        if self.shared:
            return super().lacks(ledger, worker, step_batches, size)
        return max(0, AHEAD - len(by_shard(ledger.held_by(worker))))

    def start(self, epoch: int) -> Ledger:
        """Return the ledger of the epoch ``epoch`` (from 0), with nothing done or leased."""
        return start_epoch(self.total, epoch, is_stream=True)

    def order(self, epoch: int) -> EpochOrder:
        """Return the order of the shards in the epoch with this number (from 0).

        It is a permutation of their indices: random by the seed and ``epoch``, equal on all
        workers; without ``shuffle``, ascending.
        """
        return EpochOrder(self.shards, self.seed, epoch, self.shuffle)


@dataclass(frozen=True)
class ShardPolicy(LeasePolicy):
    """The policy that leases whole shards of a stream, or the rest of a shard that was begun.

    :meth:`StreamSource.policy` makes it, for a stream that is not shared; the ledger calls
    :meth:`take`. The need of a worker is a number of shards. ``batch_size`` (samples) and
    ``lease_batches`` do not influence how many shards a worker gets.
    """

    def take(self, free: list[Span], need: int, asking: int, size: int) -> tuple[Span, ...]:
        """Remove the shards that one worker is granted from the front of ``free``.

        The rest of a shard that was begun counts as one shard.

        Args:
            free: the free spans of the epoch in order; the list is changed in place.
            need: how many shards the worker needs.
            asking: how many workers are still to be granted shards, this one included: the worker
                gets at most its equal part of the free shards, rounded up.
            size: the number of workers in the ring; not used.

        Returns:
            The spans of these shards, in the order of ``free``; empty if ``need`` is 0, or if
            ``free`` is empty.
        """
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
    """Cut ``spans`` of positions at the borders of shards, and return the pieces.

    The pieces, pairs (first position, position after the last), are in the order of ``spans``.
    """
    pieces = []
    for start, stop in spans:
        while start < stop:
            end = min(stop, (start // SHARD + 1) * SHARD)
            pieces.append((start, end))
            start = end
    return pieces
