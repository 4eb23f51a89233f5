"""Describe the data of a job: its number of samples, their order, and the sizes of its batches.

A :class:`Source` also says how the positions of an epoch are leased to the workers. Subclasses are
:class:`edl.step.source.AlignedSource`, for a fixed global batch, and
:class:`edl.step.source.StreamSource`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, Protocol

import numpy as np
import numpy.typing as npt

from edl.errors import DataError, NewcomerDiffers
from edl.step.batching import Batching, check_alike
from edl.step.ledger import (
    LeasePolicy,
    Ledger,
    Span,
    common,
    free_leases,
    grant,
    joined,
    length,
    restore,
    start_epoch,
    subtract_spans,
    take,
)

# ------------------------------------------------------------
# Derive the seed of a random number generator from parts, such as a seed, an epoch, a purpose.


def derived_seed(*parts: int | str) -> int:
    """Return a seed from 0 to 2**63 - 1, a hash of `parts` and their order."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


# ------------------------------------------------------------
# Compute which record is at which position of an epoch: a pure function of (seed, epoch).
#
# The ledger leases positions, not records. Every worker computes the same order, so a lease of
# positions names the same records everywhere.


Indices = npt.NDArray[np.int64]

SORTED = 2**16  # up to so many records, an order is computed as a whole, in some milliseconds

BLOCK = 4096  # positions of a longer order that are computed at a time

ROUNDS = 8  # rounds of the Feistel network

_WORD = np.uint64(64)

_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class SampleOrder(Protocol):
    """The samples of each epoch in order; a sample may be there several times, or not at all."""

    total: int  # how many positions an epoch has

    def __call__(self, epoch: int) -> Indices:
        """Return the index of the sample at each position of the epoch `epoch`, from 0."""


class EpochOrder:
    """The order of an epoch: a permutation that maps each position to the index of its record."""

    def __init__(self, total: int, seed: int, epoch: int, shuffle: bool) -> None:
        self._total = total
        self._whole: Indices | None = None
        self._records: Callable[[], Indices] | None = None
        self._keys: npt.NDArray[np.uint64] | None = None
        self._block = -1, np.empty(0, dtype=np.int64)  # number and records of the newest block
        if not shuffle:
            return
        # numpy promises that this raw stream stays the same in later versions, but not
        # `Generator.permutation` (NEP 19): with another order, a job that is resumed from a
        # checkpoint would repeat some records and miss others.
        bits = np.random.PCG64(np.random.SeedSequence((seed & (2**63 - 1), epoch)))
        if total <= SORTED:
            keys = bits.random_raw(total)
            self._whole = np.argsort(keys, kind="stable").astype(np.int64, copy=False)
        else:
            # of a Feistel network, computed around the positions asked for: no process holds a
            # hundred million numbers
            self._keys = bits.random_raw(ROUNDS)

    @classmethod
    def given(cls, total: int, records: Callable[[], Indices]) -> EpochOrder:
        """Return an order of `total` positions whose records another object chooses."""
        order = cls(total, 0, 0, False)
        order._records = records
        return order

    def __len__(self) -> int:
        return self._total

    def at(self, start: int, stop: int) -> Indices:
        """Return the indices of the records at the positions `start` to `stop - 1`, in order."""
        start, stop = min(start, self._total), min(stop, self._total)
        if self._whole is None and self._records is not None:
            self._whole = self._records()
        if self._whole is not None:
            return self._whole[start:stop]  # must not be changed: it is a part of the order itself
        if self._keys is None:
            return np.arange(start, stop, dtype=np.int64)
        parts = [np.empty(0, dtype=np.int64)]
        while start < stop:
            number = start // BLOCK
            first = number * BLOCK
            block = self._block  # another thread may read elsewhere meanwhile
            if block[0] != number:
                block = number, self._computed(first, min(first + BLOCK, self._total))
                self._block = block
            end = min(stop, first + BLOCK)
            parts.append(block[1][start - first : end - first])
            start = end
        return np.concatenate(parts)

    def _computed(self, start: int, stop: int) -> Indices:
        """Return the records at the positions `start` to `stop - 1` of a long, shuffled order."""
        total = np.uint64(self._total)
        found = self._permuted(np.arange(start, stop, dtype=np.uint64))
        while (outside := found >= total).any():  # no records: once more (cycle walking)
            found[outside] = self._permuted(found[outside])
        return found.astype(np.int64)

    def _permuted(self, numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        """Return `numbers` under the Feistel network, a permutation of range(2**width)."""
        assert self._keys is not None
        width = (self._total - 1).bit_length()
        low = width // 2
        bits = np.uint64(low), np.uint64(width - low)
        halves = [numbers & np.uint64(2**low - 1), numbers >> bits[0]]
        # Each half is changed by a function of the other one, which can be undone: a permutation.
        for turn, key in enumerate(self._keys):
            changed = turn % 2
            halves[changed] = halves[changed] ^ _mixed(halves[1 - changed] + key, bits[changed])
        joined: npt.NDArray[np.uint64] = halves[0] | (halves[1] << bits[0])
        return joined


def _mixed(words: npt.NDArray[np.uint64], bits: np.uint64) -> npt.NDArray[np.uint64]:
    """Return the highest `bits` bits, as a number, of a 64-bit hash of each item of `words`."""
    # The finalizer of splitmix64 (Steele, Lea, Flood: Fast splittable pseudorandom number
    # generators); each of its bits depends on all bits of the word.
    words = (words ^ (words >> np.uint64(30))) * _FACTORS[0]
    words = (words ^ (words >> np.uint64(27))) * _FACTORS[1]
    mixed: npt.NDArray[np.uint64] = (words ^ (words >> np.uint64(31))) >> (_WORD - bits)
    return mixed


NO_FINGERPRINT = "data of unknown files"

SUBSET = "a Subset"  # in the fingerprint of data of which the script chooses some samples


@dataclass(frozen=True)
class SliceSizes:
    """The number of samples that one worker trains together: a logical worker's batch, or 1."""

    usual: int = 1  # in all global batches, but for those from `shorter_from` on
    shorter_from: int | None = None  # epoch position; None: nowhere
    shorter: int = 1  # there, at the end of an epoch

    def at(self, position: int) -> int:
        """Return the number in the global batch that has the epoch position `position`."""
        is_last = self.shorter_from is not None and position >= self.shorter_from
        return self.shorter if is_last else self.usual


@dataclass(frozen=True)
class Source:
    """A description of the data that a script trains on, equal on all workers; it reads no data."""

    total: int  # positions of an epoch: its samples, unless the data is a stream
    batching: Batching
    shuffle: bool  # the order of an epoch is random
    seed: int  # of that order
    prefetch_batches: int  # that the loader forms ahead of the one in training
    fingerprint: str = ""  # one line that differs where the data differ; empty: not known
    # from an epoch, the sample at each position; None: it follows from `shuffle` and `seed`
    sampler: Callable[[int], Indices] | None = field(default=None, compare=False, repr=False)

    lets_newcomers_pad: ClassVar[bool] = True  # until their first batch is loaded

    @property
    def needs_same_seed(self) -> bool:
        """Whether all workers, and a checkpoint that is resumed, must have the same `seed`."""
        # Augmentation of logical workers must draw the same numbers on each worker; other scripts
        # may put the rank into the seed.
        return bool(self.batching.logical) or (self.shuffle and self.sampler is None)

    @property
    def batch_size(self) -> int:
        """The nominal batch, in samples, from which the weights of gradients are computed."""
        batching = self.batching
        return batching.global_batch or batching.batch_range[0] or batching.batch_size

    @property
    def units(self) -> SliceSizes:
        """The numbers of samples that one worker trains together; 1 without logical workers."""
        return SliceSizes()

    @property
    def warm_up_batch(self) -> int:
        """The number of samples of a newcomer's first batch, whose result is discarded."""
        # At least two workers share a global batch.
        is_shared = self.batching.is_chosen or self.batching.global_batch
        whole = -(-self.batch_size // 2) if is_shared else self.batch_size
        return min(whole, self.batching.micro_batch or whole)

    def need(self, step_batches: int, size: int) -> int:
        """Return how many leased samples a worker wants to hold, so that its loader never waits."""
        return (self.prefetch_batches + 2 * step_batches) * self.batching.of_one(0, size)

    @property
    def known_total(self) -> int:
        """The number of samples of an epoch; 0 for a stream, where it is not known."""
        return self.total

    def describe_total(self, total: int) -> str:
        """Return a number of positions of an epoch, `total`, in words: "960 samples"."""
        return f"{total} samples"

    def policy(self, size: int) -> LeasePolicy:
        """Return the policy that leases samples in a ring of `size` workers."""
        return LeasePolicy(self.batching.of_one(0, size))  # rank 0 has the largest batch

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many more samples must be leased to `worker`, at least 0."""
        return max(0, self.need(step_batches, size) - ledger.held_samples(worker))

    def start(self, epoch: int) -> Ledger:
        """Return the ledger of the epoch `epoch` (from 0), in which all positions are free."""
        return start_epoch(self.total, epoch)

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """Return the ledger for a new ring: leases of workers that are not in it are free again."""
        return free_leases(ledger, members)

    def added_pieces(self, ledger: Ledger, members: Collection[int], in_hand: int) -> int:
        """Return how many more pieces each worker trains in a step that workers have left."""
        return 0

    def order(self, epoch: int) -> EpochOrder:
        """Return which sample is at each position of the epoch `epoch` (from 0)."""
        if self.sampler is not None:
            return EpochOrder.given(self.total, partial(self.sampler, epoch))
        return EpochOrder(self.total, self.seed, epoch, self.shuffle)


def check_same_data(mine: Source, header: Mapping[str, Any], worker: int) -> None:
    """Refuse to take over the progress of a job that trains on other data, or in another order."""
    theirs = header["fingerprint"]
    if mine.fingerprint != theirs:
        both = f"Here: {mine.fingerprint or NO_FINGERPRINT}. The job: {theirs or NO_FINGERPRINT}"
        if SUBSET in mine.fingerprint and SUBSET in theirs:
            raise NewcomerDiffers(
                f"the samples that w{worker} chooses are not the job's; choose them alike on all "
                "workers, as random_split() with a generator of a fixed seed does, without the "
                f"rank in it. {both}"
            )
        # The worker is started again: its host may lack the data for a moment, while it is copied.
        raise DataError(
            f"the data of w{worker} are not the job's; every worker must load the same. {both}"
        )
    check_alike(mine.batching, Batching.from_json(header["batching"]), worker)
    total, total_of_job = mine.total, restore(header["ledger"]).total
    if total_of_job != total:
        raise DataError(
            f"the dataset of w{worker} has {mine.describe_total(total)} and the job's "
            f"{mine.describe_total(total_of_job)}; every worker must load the same data"
        )
    # A worker with another order is not replaced: its script would ask for the same again or, by a
    # seed from the clock, for yet another. A `sampler` is not compared: it may take long.
    if mine.needs_same_seed and mine.seed != header["order_seed"]:
        raise NewcomerDiffers(
            f"the seed of the data loader of w{worker} is {mine.seed} and the job's "
            f"{header['order_seed']}; give all workers the same seed, or a generator with the same "
            "one, without the rank or the time in it"
        )
    if mine.shuffle != header["shuffle"]:
        raise NewcomerDiffers(
            f"shuffle of the data loader of w{worker} is {mine.shuffle} and the job's "
            f"{header['shuffle']}; give all workers the same shuffle"
        )


# ------------------------------------------------------------
# Lease a fixed global batch: step k of an epoch trains the same samples on any set of workers.
#
# `AlignedSource` is the data of such a job, `SlicePolicy` leases it. The positions of an epoch are
# cut into global batches of B samples, [0, B), [B, 2B), ... Each global batch is leased to all
# workers of the ring at once: n workers get n consecutive slices of equal length (or one more), in
# rank order. So a worker's leases are slices of one global batch after the other, and each of its
# batches is one slice.
#
# When the workers change between two steps, all global batches that are not in training are cut and
# leased again, so the next steps train the same samples as without the change. Samples that a
# worker has read ahead may be leased to another worker, which reads them again. If a worker dies in
# the middle of a step, the survivors complete the step with their slices, and the slice of the dead
# worker becomes a step of its own, the next one. So a crash splits a step in two. In a job with
# logical workers it does not: there the survivors train the slice in the same step.


@dataclass(frozen=True)
class AlignedSource(Source):
    """The data of a job with a fixed global batch: each step is leased in slices to all workers."""

    audit_steps: int = 0  # steps after each start and join that are trained twice (`exact_audit`)

    lets_newcomers_pad: ClassVar[bool] = False  # each worker trains its slice of a step

    def policy(self, size: int) -> LeasePolicy:
        """Return the policy that leases each global batch in slices to all workers."""
        fewest = 1 if self.batching.logical else 2
        return SlicePolicy(self.batch_size, units=self.units, fewest=fewest)

    @property
    def units(self) -> SliceSizes:
        """The numbers of samples that one worker trains together, of which slices are made."""
        unit = self.batching.micro_batch if self.batching.logical else 1
        if self.sampler is None:
            return SliceSizes(unit)
        # A distributed sampler's replicas are the logical workers: all train equally many of the
        # last global batch.
        rest = self.total % self.batch_size
        each = -(-rest // self.batching.logical) if self.batching.logical else 1
        return SliceSizes(unit, self.total - rest, each)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many more global batches `worker` needs to be leased."""
        there = sorted(dealt(ledger, self.batch_size))
        if there[step_batches:]:
            last = [span_of(there[-1], self.batch_size)]
            if not common(ledger.held_by(worker), last):
                return 0  # with a later lease it would train that while the others train the last
        return max(0, self.prefetch_batches + 2 * step_batches - len(there))

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """Return the ledger for a new ring: leases become free, except those in training."""
        now = sorted(dealt(ledger, self.batch_size))[:in_hand]
        trained = [span_of(number, self.batch_size) for number in now]
        kept = ((worker, common(spans, trained)) for worker, spans in ledger.leases)
        later = [s for _, spans in ledger.leases for s in subtract_spans(spans, trained)]
        leases = tuple((worker, spans) for worker, spans in kept if spans)
        free = joined(tuple(sorted((*ledger.free, *later))))
        left = free_leases(replace(ledger, leases=leases, free=free), members)
        # The caller leases the free slices after the step: before, a worker that has not begun the
        # step would train one and its own as one batch. With logical workers that is right.
        if not self.batching.logical or not now:
            return left
        # Only what is in training: the needs are of one global batch, which comes first.
        slices = common(left.free, trained)
        rest = subtract_spans(left.free, slices)
        dealt_now = grant(replace(left, free=slices), [(w, 1) for w in members], self.policy(0))
        return replace(dealt_now, free=joined(tuple(sorted((*dealt_now.free, *rest)))))

    def added_pieces(self, ledger: Ledger, members: Collection[int], in_hand: int) -> int:
        """Return how many more pieces each worker trains in a step that workers have left."""
        if not self.batching.logical:
            return 0
        now = sorted(dealt(ledger, self.batch_size))[:in_hand]
        trained = [span_of(number, self.batch_size) for number in now]
        gone = (spans for worker, spans in ledger.leases if worker not in members)
        left = sum(length(common(spans, trained)) for spans in gone)
        unit = self.units.at(trained[0][0]) if trained else 1
        return -(-left // (unit * len(members)))


@dataclass(frozen=True)
class SlicePolicy(LeasePolicy):
    """The policy that leases global batches of `batch_size` samples in slices to all workers."""

    # a slice has a multiple of this many samples, except at the end of an epoch
    units: SliceSizes = field(default_factory=SliceSizes)
    # samples of a slice of an incomplete global batch, at least: BatchNorm has no variance of one
    fewest: int = 1

    def deal(
        self, free: list[Span], needs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, tuple[Span, ...]]]:
        """Remove global batches from `free`, and yield each worker's slice of each of them."""
        # A need is a number of global batches; all workers get as many.
        for _ in range(min((need for _, need in needs), default=0)):
            if not free:
                return
            now = list(common(free, [span_of(free[0][0] // self.batch_size, self.batch_size)]))
            unit = self.units.at(free[0][0])
            take(free, length(now))
            samples, slices = length(now), len(needs)
            if samples < self.batch_size:
                slices = min(slices, max(1, samples // self.fewest))
            each, more = divmod(-(-samples // unit), slices)
            for rank, (worker, _) in enumerate(needs[:slices]):
                if taken := take(now, (each + (rank < more)) * unit):
                    yield worker, taken
            # Incomplete: the last one, or the rest of a dead worker's.
            if not each or slices < len(needs):
                return


def first_untrained(ledger: Ledger, batch_size: int) -> int:
    """Return the index in its epoch of the first global batch that is not completely trained."""
    spans = [*ledger.free, *(span for _, held in ledger.leases for span in held)]
    if not spans:
        return -(-ledger.total // batch_size)
    return min(start for start, _ in spans) // batch_size


def span_of(number: int, batch_size: int) -> Span:
    """Return the positions (start, stop) of the global batch with index `number` in its epoch."""
    return number * batch_size, (number + 1) * batch_size


def dealt(ledger: Ledger, batch_size: int) -> set[int]:
    """Return the indices, in the epoch, of the global batches of which any worker holds a lease."""
    spans = [span for _, held in ledger.leases for span in held]
    return {n for a, b in spans for n in range(a // batch_size, (b - 1) // batch_size + 1)}


# ------------------------------------------------------------
# Map streams to a ledger: data in shards whose lengths are known only when they are read.
#
# To the ledger a shard is a span of `SHARD` positions: the n-th sample of the s-th shard of an
# epoch is at position `s * SHARD + n`, and the positions after the last sample are empty. A worker
# that reads a shard to its end removes the empty positions together with the last samples, so a
# step takes more positions off a worker's leases than it has samples.
#
# Shards are leased whole, and read by one worker each. When a worker is gone, another one reads the
# rest of its shard, from the same sample. A *shared* stream is one shard that all workers read,
# each for its own leases of a few batches; a worker that comes to its end reports where that is,
# and the positions after it are removed from the leases of all workers.


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
