"""Keep the data ledger: which positions of an epoch are done, leased to a worker, or free.

:func:`start_epoch` makes a :class:`Ledger`, :func:`grant` leases free positions to the workers,
:func:`complete_step` moves it after each step, and :func:`free_leases` takes leases back. An epoch
is a line of ``total`` positions (:mod:`edl.step.source` says which record is at each).
Most positions of a stream hold nothing, see :mod:`edl.step.source`; what is said of samples
here holds for positions. Rules:

1. Every position is in exactly one place: free, in one worker's leases, in its current batch, or
   done.
2. A worker hands out samples from the front of its leases, in the order in which it was granted
   them; when a step is complete its n_i samples leave the front and are done. So the count alone
   says *which* samples were trained, provided that the script trains the batches in that order.
3. The ledger moves only when a step is complete, by :func:`complete_step` on the step records,
   which are the same on every worker. An interrupted step leaves no trace.
4. Leases of a worker that is gone become free again, and are granted again before later positions.
5. With several optimizers a batch has several steps. It is its worker's current batch from its
   first step until the next batch is handed out. When the worker goes meanwhile, its batch becomes
   free again, and is *partially applied*: it is trained once more only for the optimizers that have
   not applied it in a step.
6. Leases shrink toward the end of an epoch (guided self-scheduling, Polychronopoulos and Kuck 1987:
   each is a fraction of the free positions), so that no worker holds many samples while others have
   none.

Every worker holds the same ledger and computes the same grants, in rank order, so no worker's crash
loses the ledger. A :class:`Ledger` is immutable; each function returns a new one.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import msgspec

from edl.errors import DataError
from edl.step.record import StepRecords, moves

# ------------------------------------------------------------
# Compute with spans of positions and lists of spans.
#
# A span is a pair (start, stop) and holds the positions p with start <= p < stop. A list of spans
# has an order, which the functions keep. Spans of one list do not overlap.


Span = tuple[int, int]


def length(spans: Iterable[Span]) -> int:
    """Return how many positions `spans` hold together."""
    total = 0
    for start, stop in spans:
        total += stop - start
    return total


def take(spans: list[Span], count: int) -> tuple[Span, ...]:
    """Remove the first `count` positions of `spans`, and return them as spans in their order."""
    taken: list[Span] = []
    while count > 0 and spans:
        start, stop = spans[0]
        cut = min(stop, start + count)
        taken.append((start, cut))
        count -= cut - start
        if cut == stop:
            spans.pop(0)
        else:
            spans[0] = (cut, stop)
    return tuple(taken)


def parted(spans: tuple[Span, ...], count: int) -> tuple[tuple[Span, ...], tuple[Span, ...]]:
    """Split `spans` after the first `count` positions, or after all if there are fewer."""
    if count > 0 and spans and spans[0][0] + count < spans[0][1]:  # usual: a thousand times a step
        start, stop = spans[0]
        return ((start, start + count),), ((start + count, stop), *spans[1:])
    rest = list(spans)
    return take(rest, count), tuple(rest)


def joined(spans: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` with each span merged into the one before it that ends at its start."""
    found: list[Span] = []
    for start, stop in spans:
        if found and found[-1][1] == start:
            found[-1] = (found[-1][0], stop)
        else:
            found.append((start, stop))
    return tuple(found)


def subtract_spans(spans: Iterable[Span], taken: Iterable[Span]) -> tuple[Span, ...]:
    """Return `spans` without the positions in `taken`, in the order of `spans`."""
    rest = list(spans)
    for start, stop in taken:
        rest = [
            (a, b)
            for one, two in rest
            for a, b in ((one, min(two, start)), (max(one, stop), two))
            if a < b
        ]
    return tuple(rest)


def common(spans: Iterable[Span], others: Iterable[Span]) -> tuple[Span, ...]:
    """Return the positions of `spans` that are in `others` too, in the order of `spans`."""
    others = list(others)
    found: list[Span] = []
    for start, stop in spans:
        inside = ((max(start, a), min(stop, b)) for a, b in others)
        found.extend(sorted((a, b) for a, b in inside if a < b))
    return tuple(found)


@dataclass(frozen=True)
class LeasePolicy:
    """The rule that says how many samples a worker is granted in one lease; `grant` uses it."""

    batch_size: int  # the batch of one worker, in samples
    lease_batches: int = 8  # the length of the longest lease, in batches

    def share(self, free: int, size: int) -> int:
        """Return the length of a lease, in samples: half of a worker's equal share of `free`."""
        guided = self.whole_batches(-(-free // (2 * size)))
        return max(self.batch_size, min(guided, self.lease_batches * self.batch_size))

    def take(self, free: list[Span], need: int, asking: int, size: int) -> tuple[Span, ...]:
        """Remove from the front of `free` the spans that one worker is granted, and return them."""
        left, longest = length(free), self.lease_batches * self.batch_size
        if need <= longest <= left // (2 * size):  # usual; the lines below agree
            return take(free, longest)
        # An equal part among the `asking` workers, which are still to be granted samples.
        fair = self.whole_batches(-(-left // asking))
        wish = max(self.whole_batches(need), self.share(left, size))
        return take(free, min(wish, fair))

    def deal(
        self, free: list[Span], needs: Sequence[tuple[int, int]]
    ) -> Iterator[tuple[int, tuple[Span, ...]]]:
        """Remove from `free` the leases of all workers in need, and yield them worker by worker."""
        asking = [(worker, need) for worker, need in needs if need > 0]
        for served, (worker, need) in enumerate(asking):
            if taken := self.take(free, need, len(asking) - served, len(needs)):
                yield worker, taken

    def whole_batches(self, samples: int) -> int:
        """Return the number `samples` rounded up to a multiple of `batch_size`."""
        return -(-samples // self.batch_size) * self.batch_size


@dataclass(frozen=True)
class Ledger:
    """The state of one epoch: which positions are done, leased, in training, or free."""

    total: int  # how many positions the epoch has
    epoch: int  # the number of the epoch, from 0
    free: tuple[Span, ...]  # the free spans, in ascending order
    # (worker id, its spans, oldest grant first), sorted by worker, without workers that have none
    leases: tuple[tuple[int, tuple[Span, ...]], ...] = ()
    # in the same form, what each worker trains in the steps of its present batch; used with several
    # optimizers only
    current: tuple[tuple[int, tuple[Span, ...]], ...] = ()
    # optimizers, as bits (bit k: number k), that have applied the present batch
    applied_by: int = 0
    # what is not done, but applied by some: (start, stop, the optimizers as bits), ascending
    partially_applied: tuple[tuple[int, int, int], ...] = ()
    # for a stream, how many samples are done; -1: it is no stream, each position is a sample
    trained: int = -1

    @property
    def free_samples(self) -> int:
        """The number of positions that are neither done, nor leased, nor in training."""
        return length(self.free)

    @property
    def leased_samples(self) -> int:
        """The number of positions leased to workers; those in `current` are not counted."""
        return sum(length(spans) for _, spans in self.leases)

    @property
    def current_samples(self) -> int:
        """The number of positions in `current`; 0 with one optimizer, which does not use it."""
        return sum(length(spans) for _, spans in self.current)

    @property
    def done(self) -> int:
        """The number of samples of this epoch that are done; of a stream, also `current` ones."""
        if self.trained >= 0:
            return self.trained
        return self.total - self.free_samples - self.leased_samples - self.current_samples

    @property
    def finished(self) -> bool:
        """Whether the epoch is over: no position is free, leased or in `current`."""
        return not self.free and not self.leases and not self.current

    @property
    def epochs_begun(self) -> int:
        """The number of epochs, from the job's first, of which samples are done."""
        return self.epoch + int(self.finished or self.done > 0)

    def held_by(self, worker: int) -> tuple[Span, ...]:
        """Return the spans that are leased to `worker`, in the order in which it trains them."""
        return dict(self.leases).get(worker, ())

    def held_samples(self, worker: int) -> int:
        """Return how many positions are leased to `worker`."""
        return length(self.held_by(worker))

    def counted(self, spans: Iterable[Span]) -> tuple[int, int]:
        """Return the optimizers (bits) that have applied the first sample, and how many like it."""
        spans = list(spans)
        if not self.partially_applied:
            return 0, length(spans)
        pieces = [piece for span in spans for piece in self.by_optimizers(span)]
        bits = pieces[0][1] if pieces else 0
        alike = 0
        for size, theirs in pieces:
            if theirs != bits:
                break
            alike += size
        return bits, alike

    def by_optimizers(self, span: Span) -> list[tuple[int, int]]:
        """Split `span` into (length, the optimizers, as bits, that have applied it), in order."""
        at, stop = span
        pieces = []
        for start, end, bits in self.partially_applied:
            if start < stop and end > at:
                if start > at:
                    pieces.append((start - at, 0))
                at = max(at, start)
                pieces.append((min(end, stop) - at, bits))
                at = min(end, stop)
        if at < stop:
            pieces.append((stop - at, 0))
        return pieces

    def digest(self) -> int:
        """Return a 32-bit checksum of the ledger, the same on every machine."""
        values = tuple(getattr(self, field.name) for field in fields(self))
        return zlib.crc32(msgspec.json.encode(values))

    def snapshot(self) -> dict[str, Any]:
        """Return the ledger as JSON values, which `restore` reads."""
        return {
            "total": self.total,
            "epoch": self.epoch,
            "free": [list(span) for span in self.free],
            "leases": {str(worker): [list(s) for s in spans] for worker, spans in self.leases},
            "in_hand": {str(worker): [list(s) for s in spans] for worker, spans in self.current},
            "counted_by": self.applied_by,
            "owed": [list(piece) for piece in self.partially_applied],
            "trained": self.trained,
        }


def start_epoch(total: int, epoch: int, is_stream: bool = False) -> Ledger:
    """Return the ledger of an epoch in which all positions are free."""
    if total < 1:
        raise DataError(f"the dataset has {total} samples; at least one is needed")
    return Ledger(total, epoch, ((0, total),), trained=0 if is_stream else -1)


def restore(snapshot: Mapping[str, Any]) -> Ledger:
    """Return the ledger from its JSON form, the inverse of `Ledger.snapshot`, and check it."""
    try:
        ledger = Ledger(
            int(snapshot["total"]),
            int(snapshot["epoch"]),
            tuple((int(a), int(b)) for a, b in snapshot["free"]),
            _held(snapshot["leases"]),
            _held(snapshot["in_hand"]),
            int(snapshot["counted_by"]),
            tuple((int(a), int(b), int(bits)) for a, b, bits in snapshot["owed"]),
            int(snapshot["trained"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise DataError(f"this is not a ledger snapshot: {error!r}") from error
    if ledger.total < 1:
        raise DataError(f"this is not a ledger snapshot: it has {ledger.total} samples")
    _check_disjoint(ledger)
    return ledger


def grant(ledger: Ledger, needs: Sequence[tuple[int, int]], policy: LeasePolicy) -> Ledger:
    """Lease free positions to workers; `needs` are in rank order, in the unit of the policy."""
    if not ledger.free or all(need <= 0 for _, need in needs):
        return ledger
    free, leases = list(ledger.free), dict(ledger.leases)
    for worker, taken in policy.deal(free, needs):
        leases[worker] = joined(leases.get(worker, ()) + taken)
    return replace(ledger, free=tuple(free), leases=_sorted(leases))


def complete_step(
    ledger: Ledger,
    records: StepRecords,
    policy: LeasePolicy,
    counted_by: int | None = None,  # as bits; None: one optimizer, and its samples are done
) -> Ledger:
    """Return the ledger after a step: its samples are done, and the workers got new leases."""
    leases, in_hand = dict(ledger.leases), dict(ledger.current)
    workers, moved_positions = records.values("worker"), moves(records).tolist()
    rows = zip(workers, moved_positions, records.values("position"), strict=True)
    for rank, (worker, count, position) in enumerate(rows):
        if count == 0:
            continue
        held = leases.get(worker, ())
        taken, rest = parted(held, count)
        if length(taken) != count or taken[0][0] != position:
            wrong = records[rank]
            raise DataError(
                f"worker w{worker} trained {wrong.samples} samples from position {position} in "
                f"step {wrong.step}, but its leases are {held}"
            )
        leases[worker] = rest
        if counted_by is not None:
            in_hand[worker] = taken
    moved = replace(
        ledger,
        leases=_sorted(leases),
        current=_sorted(in_hand),
        applied_by=ledger.applied_by | (counted_by or 0),
    )
    if ledger.trained >= 0:
        first = records.column("part") == 0
        samples = int(records.column("samples")[first].sum())
        moved = replace(moved, trained=ledger.trained + samples)
        for end in {end for end in records.values("end") if end >= 0}:
            moved = _cut(moved, end)
    needs = list(zip(workers, records.values("wanted"), strict=True))
    return grant(moved, needs, policy)


def _cut(ledger: Ledger, end: int) -> Ledger:
    """Return the ledger of a shared stream without the positions from `end`, its end, on."""
    nothing = ((end, ledger.total),)
    leases = {worker: subtract_spans(spans, nothing) for worker, spans in ledger.leases}
    return replace(ledger, free=subtract_spans(ledger.free, nothing), leases=_sorted(leases))


def complete_batch(ledger: Ledger) -> Ledger:
    """Return the ledger after all optimizers have applied the batches in `current`."""
    if not ledger.current and not ledger.applied_by:
        return ledger
    done = [span for _, spans in ledger.current for span in spans]
    return replace(
        ledger, current=(), applied_by=0, partially_applied=_without(ledger.partially_applied, done)
    )


def free_leases(ledger: Ledger, members: Iterable[int]) -> Ledger:
    """Return the ledger after workers have gone: the positions that they held are free again."""
    staying = set(members)
    leases = {worker: spans for worker, spans in ledger.leases if worker in staying}
    in_hand = {worker: spans for worker, spans in ledger.current if worker in staying}
    left = [s for worker, spans in ledger.current if worker not in staying for s in spans]
    leased = [s for worker, spans in ledger.leases if worker not in staying for s in spans]
    owed = ledger.partially_applied
    if ledger.applied_by:
        pieces = [(a, b, bits | ledger.applied_by) for a, b, bits in _pieces(ledger, left)]
        owed = tuple(sorted((*_without(owed, left), *pieces)))
    return replace(
        ledger,
        free=joined(tuple(sorted((*ledger.free, *leased, *left)))),
        leases=_sorted(leases),
        current=_sorted(in_hand),
        partially_applied=owed,
    )


def _pieces(ledger: Ledger, spans: Iterable[Span]) -> list[tuple[int, int, int]]:
    """Split `spans` into (start, stop, the optimizers, as bits, that have applied it), in order."""
    found = []
    for at, stop in spans:
        for size, bits in ledger.by_optimizers((at, stop)):
            found.append((at, at + size, bits))
            at += size
    return found


def _without(
    owed: tuple[tuple[int, int, int], ...], spans: Iterable[Span]
) -> tuple[tuple[int, int, int], ...]:
    for start, stop in spans:
        owed = tuple(
            (a, b, bits)
            for one, two, bits in owed
            for a, b in ((one, min(two, start)), (max(one, stop), two))
            if a < b
        )
    return owed


def _sorted(leases: Mapping[int, tuple[Span, ...]]) -> tuple[tuple[int, tuple[Span, ...]], ...]:
    return tuple(sorted((worker, spans) for worker, spans in leases.items() if spans))


def _held(spans: Mapping[str, Any]) -> tuple[tuple[int, tuple[Span, ...]], ...]:
    """Return the spans of each worker, read from JSON values, in the form of `Ledger.leases`."""
    return _sorted(
        {int(worker): tuple((int(a), int(b)) for a, b in each) for worker, each in spans.items()}
    )


def _check_disjoint(ledger: Ledger) -> None:
    """Raise an error if a position of `ledger` is in two places, or a span is empty or outside."""
    held = [*ledger.leases, *ledger.current]
    spans = sorted([*ledger.free, *(span for _, spans in held for span in spans)])
    edge = 0
    for start, stop in spans:
        if start < edge or stop <= start or stop > ledger.total:
            raise DataError(f"the ledger's span ({start}, {stop}) overlaps or lies outside")
        edge = stop
