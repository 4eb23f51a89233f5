"""A fixed global batch: step k of an epoch trains the same samples, whoever shares them out.

The positions of an epoch are cut into global batches, [0, B), [B, 2B), ..., and each of them is
dealt to all workers of the ring at once: n consecutive slices of like length, in rank order. So a
worker's leases are slices of one global batch after the other, and each of its batches is one of
them.

When the workers change between two steps, all that was dealt is dealt anew, so the next steps train
the same samples as without the change; what was read ahead is read again by whoever has it now. A
worker that dies in the midst of a step takes its slice out of it: the survivors complete the step
with theirs, and that slice becomes a step of its own, the next one. So a crash splits a step in
two.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from edl.core.step.ledger import LeasePolicy, Ledger, give_back
from edl.core.step.source import Source
from edl.core.step.spans import Span, common, joined, length, take, without


@dataclass(frozen=True)
class AlignedSource(Source):
    """Its batching has a ``global_batch``."""

    lets_newcomers_pad: ClassVar[bool] = False  # a step has all of its slices

    def policy(self, size: int) -> LeasePolicy:
        return SlicePolicy(self.batch_size)

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """How many more global batches are to be dealt when the step is complete.

        None behind one in which this worker has no slice: it would train them a step too early.
        """
        there = sorted(dealt(ledger, self.batch_size))
        if there[step_batches:]:
            last = [span_of(there[-1], self.batch_size)]
            if not common(ledger.held_by(worker), last):
                return 0
        return max(0, self.prefetch_batches + 2 * step_batches - len(there))

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """All is dealt anew; in a step the members keep the slices of the batches that it trains.

        What is left of these must not be dealt before the step is complete, lest somebody who has
        not begun it takes both for one.
        """
        now = sorted(dealt(ledger, self.batch_size))[:in_hand]
        trained = [span_of(number, self.batch_size) for number in now]
        kept = ((worker, common(spans, trained)) for worker, spans in ledger.leases)
        later = [s for _, spans in ledger.leases for s in without(spans, trained)]
        leases = tuple((worker, spans) for worker, spans in kept if spans)
        free = joined(tuple(sorted((*ledger.free, *later))))
        return give_back(replace(ledger, leases=leases, free=free), members)


@dataclass(frozen=True)
class SlicePolicy(LeasePolicy):
    """Global batches of ``batch_size`` are dealt; needs are numbers of them.

    As many as all need, and none behind one that has no slice for somebody.
    """

    def deal(
        self, free: list[Span], needs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, tuple[Span, ...]]]:
        for _ in range(min((need for _, need in needs), default=0)):
            if not free:
                return
            now = list(common(free, [span_of(free[0][0] // self.batch_size, self.batch_size)]))
            take(free, length(now))
            each, more = divmod(length(now), len(needs))
            for rank, (worker, _) in enumerate(needs):
                if taken := take(now, each + (rank < more)):
                    yield worker, taken
            if not each:
                return


def span_of(number: int, batch_size: int) -> Span:
    """The positions of a global batch."""
    return number * batch_size, (number + 1) * batch_size


def dealt(ledger: Ledger, batch_size: int) -> set[int]:
    """The numbers of the global batches of which anybody holds a slice."""
    spans = [span for _, held in ledger.leases for span in held]
    return {n for a, b in spans for n in range(a // batch_size, (b - 1) // batch_size + 1)}
