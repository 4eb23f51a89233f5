"""Describe the data of a job: its number of samples, their order, and the sizes of its batches.

A :class:`Source` also says how the positions of an epoch are leased to the workers. Subclasses are
:class:`edl.step.source.AlignedSource`, for a fixed global batch, and
:class:`edl.step.source.StreamSource`.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from edl.errors import CheckpointError, DataError, NewcomerDiffers, UsageError
from edl.record import Record
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
from edl.text import counted

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


# ------------------------------------------------------------
# Compute which samples a script's input pipeline gives to each rank, in the order of the steps.
#
# A `Pipeline` describes a pipeline of stages as `tf.data` has them: a source of numbered samples,
# and then `Shard`, `Shuffle`, `Repeat`, `Take`, `Skip` and one `Batch`. Each stage maps a position
# in its output to a position in its input, so the samples of any batch are known without a run of
# those before it. `PipelineOrder` lays the batches of all ranks out as the epochs of a job.
#
# A position is counted within a *pass*: one run of the pipeline from its beginning to its end. A
# `Repeat` gives each of its rounds a pass of its own, and a `Shuffle` has another order in each
# pass.


# ------------------------------------------------------------
# Divide the batches of an evaluation among workers, some of which may die before they answer.
#
# A worker evaluates its part of each open span of batches (`parts_of`), and all workers then
# exchange what they found. The parts of workers that died before are open again (`open_parts`), and
# are divided among the survivors. So each batch is in exactly one result.


def parts_of(open_spans: Iterable[Span], rank: int, size: int) -> tuple[Span, ...]:
    """Return the part of each span that the worker of `rank` evaluates, of `size` workers."""
    parts = []
    for start, stop in open_spans:
        count = stop - start
        part = (start + count * rank // size, start + count * (rank + 1) // size)
        if part[0] < part[1]:
            parts.append(part)
    return tuple(parts)


def open_parts(
    open_spans: Iterable[Span], size: int, evaluated: Collection[Span]
) -> tuple[Span, ...]:
    """Return the parts of all `size` workers that are not in `evaluated`, in their order."""
    every = [part for rank in range(size) for part in parts_of(open_spans, rank, size)]
    return tuple(sorted(part for part in every if part not in evaluated))


_NEXT = 1_000_003  # the passes of a repeated pipeline are numbered far from each other
MOST = 2**28  # positions of an epoch whose order is kept in memory
Length = int | None  # of a pipeline, in elements; None: it never ends
Places = tuple[Indices, Indices]  # positions, and the pass of each


@dataclass(frozen=True)
class Shard:
    """A stage that keeps each `count`-th element; each rank has its own first one."""

    count: int  # of ranks

    def length(self, before: Length, rank: int) -> Length:
        """Return the number of elements that `rank` gets of `before`."""
        return None if before is None else max(0, -(-(before - rank) // self.count))

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        """Return where the elements at `places` of this stage are in the stage before it."""
        return places[0] * self.count + rank, places[1]


@dataclass(frozen=True)
class Shuffle:
    """A stage with its elements in random order, another one in each pass."""

    buffer: int  # elements that `tf.data` would choose from
    seed: int | None = None  # of the script; None: it gives none
    changes: bool = True  # the order differs from pass to pass
    of_rank: bool = False  # each rank has an order of its own
    number: int = 0  # of stages of this kind before it

    def length(self, before: Length, rank: int) -> Length:
        return before

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        positions, passes = places
        # A pipeline that never ends is shuffled in runs, any other as a whole.
        run = self.buffer if before is None else max(1, before)
        parts = "shuffle", self.seed or 0, self.number, rank if self.of_rank else -1
        derived = derived_seed(seed if self.seed is None else 0, *parts)
        rounds = passes if self.changes else np.zeros_like(passes)
        keys = rounds * _NEXT + positions // run
        within = positions % run
        chosen = np.empty_like(positions)
        rounds_there, sorted_by_key = np.unique(keys), np.argsort(keys, kind="stable")
        ends = np.searchsorted(keys[sorted_by_key], rounds_there, side="right")
        for key, here in zip(rounds_there, np.split(sorted_by_key, ends[:-1]), strict=True):
            chosen[here] = EpochOrder(run, derived, int(key), True).at(0, run)[within[here]]
        return positions - within + chosen, passes


@dataclass(frozen=True)
class Repeat:
    """A stage that goes through its input several times."""

    count: int | None = None  # how many times; None: without end

    def length(self, before: Length, rank: int) -> Length:
        return None if before is None or self.count is None else before * self.count

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        positions, passes = places
        if not before:  # one that never ends has one round
            return places
        return positions % before, passes * (self.count or _NEXT) + positions // before


@dataclass(frozen=True)
class Take:
    """A stage with the first elements of its input."""

    count: int

    def length(self, before: Length, rank: int) -> Length:
        return self.count if before is None else min(self.count, before)

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        return places


@dataclass(frozen=True)
class Skip:
    """A stage without the first elements of its input."""

    count: int

    def length(self, before: Length, rank: int) -> Length:
        return None if before is None else max(0, before - self.count)

    def inner(self, places: Places, before: Length, rank: int, seed: int) -> Places:
        return places[0] + self.count, places[1]


@dataclass(frozen=True)
class Batch:
    """A stage that makes batches of its input's elements, which are samples."""

    size: int  # the samples of a batch
    drop_last: bool = False  # a smaller last batch is left out

    def length(self, before: Length, rank: int) -> Length:
        if before is None:
            return None
        return before // self.size if self.drop_last else -(-before // self.size)

    def samples(self, batches: Indices, before: Length) -> Indices:
        """Return how many samples each of `batches`, positions of batches, has."""
        if before is None:
            return np.full_like(batches, self.size)
        return np.minimum(self.size, before - batches * self.size)


Stage = Shard | Shuffle | Repeat | Take | Skip | Batch

UNEQUAL = (
    "the batches of the script's data set differ in size ({one} and {other} samples) before the "
    "end of an epoch, or from rank to rank; give batch() drop_remainder=True, or put repeat() "
    "before it"
)

ENDLESS = (
    "the script's data set never ends, and nothing says how long an epoch is: give model.fit "
    "steps_per_epoch, or the data set take(n)"
)

SHORT = (
    "steps_per_epoch is {steps}, and the script's data set has {batches} batches: put repeat() "
    "before its batch(), or leave out steps_per_epoch"
)

SPLIT = (
    "the script trains on a part, by {name}({count}), of a data set in one random order for all "
    "epochs (reshuffle_each_iteration=False), and edl computes another order than TensorFlow: the "
    "other part, such as that of the validation, would have samples that are trained; divide the "
    "arrays before from_tensor_slices, or, if {name} only limits the steps, put repeat() before it"
)

NO_BATCHES = "the script's data set has no batch(n): edl needs to know the samples of a batch"

DIFFERENT = (
    "the ranks have different numbers of batches, from {least} to {most}: give model.fit "
    "steps_per_epoch, or the data set take(n), so that all have equally many"
)


@dataclass(frozen=True)
class Pipeline:
    """A source of samples and the stages after it, as a script has put them together."""

    total: int  # samples of the source
    stages: tuple[Stage, ...] = ()

    def followed_by(self, stage: Stage) -> Pipeline:
        """Return the pipeline with `stage` at its end."""
        before = self.stages
        if isinstance(stage, Shuffle):
            number = sum(isinstance(one, Shuffle) for one in before)
            stage = replace(stage, of_rank=stage.seed is None, number=number)
            # Shuffled in each round, which mixes better.
            if before and isinstance(before[-1], Repeat):
                return Pipeline(self.total, (*before[:-1], stage, before[-1]))
        if isinstance(stage, Shard):  # of one order for all ranks, or samples would be missing
            before = tuple(_common(one) for one in before)
        return Pipeline(self.total, (*before, stage))

    @property
    def batch(self) -> Batch:
        found = [one for one in self.stages if isinstance(one, Batch)]
        if not found:
            raise UsageError(NO_BATCHES)
        return found[0]

    def length(self, rank: int) -> Length:
        """Return the number of elements that `rank` gets in a pass; None: there is no end."""
        return self._lengths(rank)[-1]

    def _lengths(self, rank: int) -> list[Length]:
        """Return the number of elements before the first stage and after each one."""
        found: list[Length] = [self.total]
        for stage in self.stages:
            found.append(stage.length(found[-1], rank))
        return found

    def batches(self, first: int, count: int, number: int, rank: int, seed: int) -> list[Indices]:
        """Return the samples of batches of a rank in the pass `number`, and the sizes of these."""
        lengths = self._lengths(rank)
        positions = np.arange(first, first + count, dtype=np.int64)
        places = positions, np.full_like(positions, number)
        sizes = None
        for stage, before in zip(reversed(self.stages), reversed(lengths[:-1]), strict=True):
            if isinstance(stage, Batch):
                sizes = stage.samples(places[0], before)
                starts = np.repeat(places[0] * stage.size, sizes)
                within = np.arange(len(starts)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
                places = starts + within, np.repeat(places[1], sizes)
            else:
                places = stage.inner(places, before, rank, seed)
        if sizes is None:
            raise UsageError(NO_BATCHES)
        return [places[0], sizes]


def _refuse_split(pipeline: Pipeline, ranks: int) -> None:
    """Raise UsageError for a pipeline that trains one part of samples in an order that stays."""
    lengths = [pipeline._lengths(rank) for rank in range(ranks)]
    stays = False
    for index, stage in enumerate(pipeline.stages):
        # A Take or a Skip after a Repeat is for the number of steps.
        if isinstance(stage, Repeat) and stage.count != 1:
            return
        if isinstance(stage, Shuffle):
            # Else two parts have common samples under TensorFlow, too.
            stays = stays or not stage.changes
        elif isinstance(stage, Take | Skip) and stays and _changes(index, lengths):
            name = "take" if isinstance(stage, Take) else "skip"
            raise UsageError(SPLIT.format(name=name, count=stage.count))


def _changes(index: int, lengths: list[list[Length]]) -> bool:
    """Return whether the stage leaves elements out on a rank."""
    return any(of_rank[index] != of_rank[index + 1] for of_rank in lengths)


def _common(stage: Stage) -> Stage:
    return replace(stage, of_rank=False) if isinstance(stage, Shuffle) else stage


class PipelineOrder:
    """The samples of each epoch of a job, in the order of steps, and of ranks within a step."""

    def __init__(
        self,
        pipeline: Pipeline,
        ranks: int,
        steps: int | None,
        seed: int = 0,
    ) -> None:
        _refuse_split(pipeline, ranks)
        self._pipeline, self._ranks, self._seed = pipeline, ranks, seed
        size = pipeline.batch.size
        lengths = [pipeline.length(rank) for rank in range(ranks)]
        self._goes_on = None in lengths  # epochs are cuts of one pass
        self.steps = _steps(lengths, steps)  # of an epoch
        last = {int(pipeline.batches(self.steps - 1, 1, 0, r, 0)[1][0]) for r in range(ranks)}
        if len(last) > 1:
            raise UsageError(UNEQUAL.format(one=min(last), other=max(last)))
        self._last = last.pop()
        self.total = ((self.steps - 1) * size + self._last) * ranks  # positions of an epoch
        if self.total > MOST:
            raise UsageError(
                f"an epoch of the script's data set has {self.total} samples, and edl keeps the "
                f"order of at most {MOST}: give model.fit a smaller steps_per_epoch"
            )
        if self._goes_on and self._last != size:
            raise UsageError(UNEQUAL.format(one=size, other=self._last))

    def __call__(self, epoch: int) -> Indices:
        first, number = (epoch * self.steps, 0) if self._goes_on else (0, epoch)
        size = self._pipeline.batch.size
        whole = self.steps - (self._last != size)
        full, rest = [], []
        for rank in range(self._ranks):
            found, sizes = self._pipeline.batches(first, self.steps, number, rank, self._seed)
            if (sizes[:whole] != size).any():
                raise UsageError(UNEQUAL.format(one=size, other=int(sizes[:whole].min())))
            full.append(found[: whole * size].reshape(whole, size))
            rest.append(found[whole * size :])
        return np.concatenate([np.stack(full, axis=1).ravel(), *rest])


def _steps(lengths: list[Length], asked: int | None) -> int:
    """Return the number of steps of an epoch."""
    known = [length for length in lengths if length is not None]
    if not known:
        if asked is None:
            raise UsageError(ENDLESS)
        return asked
    least, most = min(known), max(known)
    if asked is None and least != most:
        raise UsageError(DIFFERENT.format(least=least, most=most))
    if asked is not None and asked != least:
        raise UsageError(SHORT.format(steps=asked, batches=least))
    if least < 1:
        raise UsageError("the script's data set has no batch for each rank; give it more samples")
    return least


# ------------------------------------------------------------
# Order the samples of an epoch as the replicas of a distributed sampler train them.
#
# PyTorch's `DistributedSampler` gives sample i of a shuffled epoch to replica i modulo the number
# of replicas, and each replica's loader cuts its samples into batches. `by_steps` orders the
# samples by steps, and within a step by replicas, so that the batch of each replica is a slice.


def samples_of_replica(samples: int, replicas: int, drop_last: bool) -> int:
    """Return how many samples of an epoch each replica gets."""
    return samples // replicas if drop_last else -(-samples // replicas)  # else some are repeated


def by_steps(shuffled: Indices, replicas: int, each: int, batch_size: int) -> Indices:
    """Return the indices of an epoch's samples in the order of steps, then of replicas."""
    columns = np.resize(shuffled, replicas * each).reshape(each, replicas)  # repeats the first
    whole = each - each % batch_size
    full = columns[:whole].reshape(-1, batch_size, replicas).transpose(0, 2, 1)
    return np.concatenate([full.ravel(), columns[whole:].T.ravel()])


# ------------------------------------------------------------
# Define after how many samples an LR scheduler makes a step: `StepInterval`.


class StepInterval(NamedTuple):
    """After how many samples an LR scheduler makes a step that counts samples."""

    batch: int  # samples of one step
    # samples of an epoch, of which the rest at the end counts as one more step; None: epochs make
    # no difference
    epoch: int | None = None

    def steps(self, samples: int) -> int:
        """Return how many steps a scheduler makes in the first `samples` samples of a job."""
        if self.epoch is None:
            return samples // self.batch
        epochs, rest = divmod(samples, self.epoch)
        return epochs * self._steps_of_epoch(self.epoch) + rest // self.batch

    def samples(self, steps: int) -> int:
        """Return after how many samples of a job a scheduler has made `steps` steps."""
        if self.epoch is None:
            return steps * self.batch
        epochs, rest = divmod(steps, self._steps_of_epoch(self.epoch))
        return epochs * self.epoch + rest * self.batch

    def _steps_of_epoch(self, epoch: int) -> int:
        return -(-epoch // self.batch)


# ------------------------------------------------------------
# Compute how many steps a training by epochs has left.


def steps_left(epochs: float, epoch: int, done: int, total: int, batch: int) -> int:
    """Return about how many steps are left: workers come and go, and last steps may be small."""
    now = min(1.0, epochs - epoch) * total - done
    later = max(0.0, epochs - epoch - 1)
    whole = math.floor(later)
    steps = whole * math.ceil(total / batch) + math.ceil((later - whole) * total / batch)
    return steps + max(0, math.ceil(now / batch))


# ------------------------------------------------------------
# Define how long a job trains: `TrainingLength`, which all workers of a job share.
#
# Each worker's script asks for a length. A newcomer's script may ask for another one than the job
# has, if it computes the number from a file that the job has rewritten meanwhile: the newcomer then
# takes over the job's. `resuming` decides on the length of a resumed job.


UNREACHED_STEPS = 2**62  # a number of updates that stands for no limit


@dataclass(frozen=True)
class TrainingLength(Record):
    """How long a job trains, counted from its begin; a resumed job goes on with the same counts."""

    epochs: int | None = None  # None: there is no limit, or it is not known
    max_steps: int | None = None  # updates; None: only the epochs end the training

    @classmethod
    def asked(cls, epochs: float | None, max_steps: int | None) -> TrainingLength:
        """Return the length that a script asks for, in plain whole numbers."""
        return cls(
            None if epochs is None or epochs == math.inf else math.ceil(epochs),
            None if max_steps is None or max_steps >= UNREACHED_STEPS else int(max_steps),
        )

    def left(self, epoch: int, done: int, total: int, step: int, batch: float) -> float | None:
        """Return the number of samples that all workers have to train until the end of the job."""
        limits: list[float | None] = []
        if self.epochs is not None:
            limits.append((self.epochs - epoch) * total - done if total else None)
        if self.max_steps is not None:
            limits.append(max(0, self.max_steps - step) * batch if batch else None)
        known = [float(samples) for samples in limits if samples is not None]
        return min(known) if known and len(known) == len(limits) else None

    def is_below(self, other: TrainingLength) -> bool:
        """Return whether the epochs or the updates are fewer than those of `other`."""
        pairs = (self.epochs, other.epochs), (self.max_steps, other.max_steps)
        return any(mine is not None and its is not None and mine < its for mine, its in pairs)

    def resuming(
        self, saved: TrainingLength, restarts: bool = False, automatic: bool = False
    ) -> TrainingLength:
        """Return the length of a job that is resumed; this one is the script's."""
        if restarts:  # nobody resumed it: all its workers died, and new ones go on
            return self if saved == NO_LENGTH else saved
        # More epochs are allowed, and fewer updates: scripts compute these from the updates of an
        # epoch, of which more workers make fewer.
        if not TrainingLength(self.epochs).is_below(TrainingLength(saved.epochs)):
            return self
        if automatic:  # a job of a cluster begins or goes on, whichever is possible
            return TrainingLength(saved.epochs, self.max_steps)
        # A script that subtracts what a file says is trained asks for fewer epochs, and would end
        # in the midst of the job, which would count as finished.
        raise CheckpointError(
            f"cannot resume: the job that saved the checkpoint trains {saved}, and this script "
            f"asks for {self}; give the number for the whole job, not for what is left of it "
            "(a larger one trains longer). To end earlier, stop inside the loop"
        )

    def __str__(self) -> str:
        updates = "" if self.max_steps is None else counted(self.max_steps, "update")
        if self.epochs is None:
            return updates or "without an end"
        return counted(self.epochs, "epoch") + (updates and f", at most {updates}")


NO_LENGTH = TrainingLength()  # not known, or without an end


# ------------------------------------------------------------
# Compute how many steps an LR scheduler makes that Lightning steps after updates.
#
# The number of updates depends on the workers, so a job counts something else. Where the samples
# end an epoch, it counts samples. Where a number of batches ends it, such as `limit_train_batches`,
# the samples of an epoch depend on the workers, too, and the job counts its epochs and the batches
# in each.


class EpochPosition(NamedTuple):
    """How much of its epochs a job has trained that has a limit of batches; all workers know it."""

    epoch: int  # epochs that the job has trained or left
    batches: int  # trained of the present epoch, whatever their sizes
    limit: int  # batches after which the present epoch ends at the latest
    samples: int  # trained of the present epoch


class UpdateInterval(NamedTuple):
    """After which updates Lightning steps an LR scheduler that has `"interval": "step"`."""

    # Lightning numbers the batches of each epoch from 1, updates after each group of accumulated
    # batches and after the last batch of an epoch, and steps the scheduler after each update whose
    # last batch has a multiple of `frequency` as its number.
    frequency: int
    # the batches of a group, by the first epoch in which it has so many, of which one is 0
    accumulated: Mapping[int, int]
    samples: int | None  # of the data set; None: not known
    # batches after which an epoch ends at the latest, with the first workers; None: no limit
    limit: int | None = None

    @property
    def is_known(self) -> bool:
        """Whether the steps are known: the groups stay the same, or epochs have a length."""
        one_size = len({*self.accumulated.values()}) == 1
        return one_size or self.samples is not None or self.limit is not None

    def steps(self, trained: int, batch: int, first_epoch: int = 0) -> int:
        """Return the steps after `trained` samples of a job with a constant global batch."""
        if self.samples is None:
            return trained // (batch * self._spacing(self.accumulated[0]))
        epochs, rest = divmod(trained, self.samples)
        return self._steps(epochs, rest // batch, -(-self.samples // batch), first_epoch)

    def limited_steps(self, at: EpochPosition, batch: int, first_epoch: int = 0) -> int:
        """Return the steps of a job with a limit, as if its global batch were constant."""
        assert self.limit is not None
        of_epoch, by_samples = self.limit, 0
        if self.samples is not None:
            of_epoch = min(self.limit, -(-self.samples // batch))
            by_samples = at.samples * of_epoch // self.samples
        # By batches or by samples, whichever are nearer to the end of the epoch.
        trained = min(of_epoch, max(at.batches * of_epoch // at.limit, by_samples))
        return self._steps(at.epoch, trained, of_epoch, first_epoch)

    def _steps(self, epochs: int, batches: int, of_epoch: int, first_epoch: int) -> int:
        # Another training has trained the epochs before `first_epoch`.
        starts, last = sorted(self.accumulated), first_epoch + epochs
        steps = 0
        for start, stop in zip(starts, [*starts[1:], last], strict=True):
            count = max(0, min(stop, last) - max(start, first_epoch))
            steps += count * self._steps_of_epoch(of_epoch, self.accumulated[start])
        now = self.accumulated[max(start for start in starts if start <= last)]
        return steps + batches // self._spacing(now)

    def _steps_of_epoch(self, batches: int, accumulated: int) -> int:
        is_last_one_more = batches % accumulated != 0 and batches % self.frequency == 0
        return batches // self._spacing(accumulated) + is_last_one_more

    def _spacing(self, accumulated: int) -> int:
        return math.lcm(accumulated, self.frequency)


# ------------------------------------------------------------
# Learn which of several optimizers update with which batch: a schedule that all workers follow.
#
# Scripts choose by a count of their own (`if number % 5 == 0:` in `for number, batch in
# enumerate(loader)`), and a newcomer begins to count with its first batch. So newcomers join at a
# batch with which the schedule begins again: the first one of an epoch, or of a period. A worker
# keeps an `UpdateOrder`, whose `takes_newcomers` says where that is.


Updates = tuple[int, ...]  # the optimizers, as bits, that have made updates in each step of a batch
KEPT = 256  # first batches of an epoch from which the schedule is learned
SEEN = 16  # batches before a schedule counts as known


def period(turns: Sequence[Updates]) -> int | None:
    """Return after how many batches a schedule of updates repeats itself."""
    for batches in range(1, len(turns) // 2 + 1):
        if all(turns[at] == turns[at - batches] for at in range(batches, len(turns))):
            return batches
    return None


@dataclass(frozen=True)
class UpdateOrder:
    """The order in which several optimizers made updates in an epoch so far; an immutable value."""

    batch: int = 0  # index in the epoch of the present batch; between two, of the next one
    updates: Updates = ()  # of the present batch; () if no step of it is complete
    # of the epoch's first `KEPT` batches that have ended; empty for a script with one optimizer
    of_batches: tuple[Updates, ...] = ()
    before: tuple[Updates, ...] = ()  # `of_batches` of the epoch before

    def after_step(self, updated: int) -> UpdateOrder:
        """Return the order with one more complete step of the present batch."""
        return replace(self, updates=(*self.updates, updated))

    def after_batch(self) -> UpdateOrder:
        """Return the order after the present batch has ended: `batch` is the next one's index."""
        turns = (*self.of_batches, self.updates)[:KEPT] if self.updates else self.of_batches
        return replace(self, batch=self.batch + 1, updates=(), of_batches=turns)

    def next_epoch(self) -> UpdateOrder:
        return UpdateOrder(before=self.of_batches)

    def takes_newcomers(self, ends_epoch: bool) -> bool:
        """Return whether a newcomer may join after the present batch."""
        # A newcomer counts its batches from 0, so it may join where the schedule begins again.
        if ends_epoch:
            return True
        alike = self.before[: len(self.of_batches)] == self.of_batches
        known = self.before if alike else self.of_batches  # that one is longer
        if len(known) < SEEN:
            return False
        length = period(known)
        return len(known) == KEPT if length is None else (self.batch + 1) % length == 0

    def snapshot(self) -> dict[str, Any]:
        """Return the order as JSON values, to be sent to newcomers between two batches."""
        # `updates` is empty between two batches.
        return {"batch": self.batch, "turns": self.of_batches, "before": self.before}

    @staticmethod
    def restore(snapshot: Mapping[str, Any]) -> UpdateOrder:
        turns, before = (
            tuple(tuple(turn) for turn in snapshot[name]) for name in ("turns", "before")
        )
        return UpdateOrder(int(snapshot["batch"]), (), turns, before)
