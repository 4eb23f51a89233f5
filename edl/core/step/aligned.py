"""Lease a fixed global batch: step k of an epoch trains the same samples on any set of workers.

:class:`AlignedSource` is the data of such a job, :class:`SlicePolicy` leases it. The positions of
an epoch are cut into global batches of B samples, [0, B), [B, 2B), ... Each global batch is leased
to all workers of the ring at once: n workers get n consecutive slices of equal length (or one
more), in rank order. So a worker's leases are slices of one global batch after the other, and each
of its batches is one slice.

When the workers change between two steps, all global batches that are not in training are cut and
leased again, so the next steps train the same samples as without the change. Samples that a worker
has read ahead may be leased to another worker, which reads them again. If a worker dies in the
middle of a step, the survivors complete the step with their slices, and the slice of the dead
worker becomes a step of its own, the next one. So a crash splits a step in two. In a job with
logical workers it does not: there the survivors train the slice in the same step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import ClassVar

from edl.core.step.ledger import LeasePolicy, Ledger, free_leases, grant
from edl.core.step.source import SliceSizes, Source
from edl.core.step.spans import Span, common, joined, length, subtract_spans, take


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
