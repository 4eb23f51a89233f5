"""This worker's part of the epoch: batches formed from its leases, in order, ahead of need."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.core.step.aligned import span_of
from edl.core.step.ledger import Ledger
from edl.core.step.shuffle import EpochOrder
from edl.core.step.source import Source
from edl.core.step.spans import Span

LEAST_CHANGE = 0.1  # of the size of a batch


@dataclass(frozen=True)
class Batch:
    """Samples that enter one step together. ``position`` is the epoch position of the first.

    ``counted``: the optimizers, as bits, for which they count for nothing: they have counted them.
    ``follow``: so many pieces of the same batch follow it.
    """

    position: int
    indices: npt.NDArray[np.int64]
    counted: int = 0
    follow: int = 0

    @property
    def samples(self) -> int:
        return len(self.indices)

    @property
    def items(self) -> list[Any]:
        """What a framework's loader makes samples of: their indices, or what was read of them."""
        items: list[Any] = self.indices.tolist()
        return items

    @property
    def keys(self) -> list[int]:
        """Which sample of the epoch each item is: numbers that are the same on all workers."""
        keys: list[int] = self.indices.tolist()
        return keys


class BatchSampler:
    """Forms batches from the front of a worker's leases; remembers those not yet trained.

    The ledger knows only what was trained. Between the two lie the batches formed ahead; their
    order never changes, so the n samples trained next are always the first n of the leases.

    Attributes:
        size: samples of a batch that is formed from now on; less than others form, if it is slow.
        takes_shares: it can form smaller batches for a slow worker.
        rereads: what was formed ahead can be discarded, and read again.
    """

    takes_shares = True

    def __init__(self, source: Source, worker: int) -> None:
        self.size = self._whole = source.batch_size
        self.rereads = False
        self._source = source
        self._worker = worker
        self._ring = 1  # its size
        self._sizes: deque[int] = deque()  # of the pieces that the batch in formation lacks
        self._ahead: deque[Batch] = deque()
        self._epoch = -1
        self.restarts = 0  # how often all batches formed ahead were discarded
        self._order = EpochOrder(0, 0, 0, shuffle=False)

    @property
    def ahead(self) -> int:
        """Samples formed into batches and not yet trained."""
        return sum(batch.samples for batch in self._ahead)

    def share(self, part: float) -> None:
        """Form batches of this part of the batch size; not for a difference that is no tenth.

        For a framework may compile anew for each size that it sees.
        """
        whole = self._whole
        size = min(whole, max(1, round(whole * part)))
        if size == whole or abs(size - self.size) > LEAST_CHANGE * self.size:
            self.size = size

    def take_place(self, members: Sequence[int]) -> None:
        """A ring of ``members`` stands: form batches as large as this worker's are in it."""
        self._ring = len(members)
        whole = self._source.batching.of_one(members.index(self._worker), len(members))
        if whole != self._whole:
            self.size = self._whole = whole

    def use(self, source: Source, members: Sequence[int], in_hand: Sequence[Batch]) -> None:
        """The source has other batches after those in hand, and is the same otherwise."""
        self._source = source
        self.take_place(members)
        if self.rereads:
            self.keep_only(in_hand)

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """The leases are those of another ring; ``in_hand``: what is trained now."""

    def keep_only(self, in_hand: Sequence[Batch]) -> None:
        """Forget what was formed ahead of ``in_hand``, the first ones."""
        self._sizes.clear()
        if len(in_hand) < len(self._ahead):
            self._ahead = deque(in_hand)
            self.restarts += 1

    def enter(self, epoch: int) -> None:
        """Forget what was formed and read ``epoch`` from now on."""
        self.restart()
        self._epoch, self._order = epoch, self._source.order(epoch)

    def row(self, ledger: Ledger, batches: Sequence[Batch]) -> dict[str, int]:
        """What the step record says of the place of ``batches`` in this worker's leases."""
        return {"position": batches[0].position if batches else -1}

    def left(self, ledger: Ledger, batches: Sequence[Batch]) -> int:
        """How much of its leases is left when ``batches`` are trained."""
        return ledger.held_samples(self._worker) - sum(batch.samples for batch in batches)

    def nothing(self, batches: Sequence[Batch]) -> Batch | None:
        """What was read after ``batches``, those of the open step, and has no samples, if any."""
        return None

    def restart(self) -> None:
        """Forget what was formed and not trained."""
        self._ahead.clear()
        self._sizes.clear()
        self.restarts += 1

    def form(self, ledger: Ledger) -> Batch | None:
        """The next batch, or None when the leases have none to give (now).

        A batch is smaller than ``size`` only when nothing is left to be leased, or when what
        follows is owed to other optimizers. One that is larger than a worker trains at once comes
        in pieces.
        """
        spans = _skip(ledger.held_by(self._worker), self.ahead)
        if not self._sizes:
            size = self._next_size(spans, ledger)
            if size == 0:
                return None
            self._sizes.extend(self._source.batching.split(size, self._ring))
        size = self._sizes.popleft()
        batch = self._cut(spans, size, ledger.counted(spans)[0], len(self._sizes))
        self._ahead.append(batch)
        return batch

    def has_more(self, ledger: Ledger) -> bool:
        """Whether :meth:`form` would return a batch now."""
        spans = _skip(ledger.held_by(self._worker), self.ahead)
        return bool(self._sizes) or self._next_size(spans, ledger) > 0

    def agrees_with(self, ledger: Ledger) -> bool:
        """Whether the batches formed ahead are the first ones of this worker's leases."""
        if ledger.epoch != self._epoch:
            return not self._ahead
        spans = ledger.held_by(self._worker)
        if sum(stop - start for start, stop in spans) < self.ahead:
            return False
        skipped = 0
        for batch in self._ahead:
            rest = _skip(spans, skipped)
            again = self._cut(rest, batch.samples, ledger.counted(rest)[0])
            if again.counted != batch.counted or not np.array_equal(again.indices, batch.indices):
                return False
            skipped += batch.samples
        return True

    def warm_up(self) -> Batch:
        """A batch of the epoch's first samples, which will not be counted."""
        count = min(self._source.warm_up_batch, self._source.total)
        return self._cut([(0, count)], count)

    def trained(self, batch: Batch) -> None:
        """The oldest batch formed is in the model."""
        oldest = self._ahead.popleft()
        assert oldest is batch, "batches are trained in the order they were formed"

    def wanted(self, ledger: Ledger, step_batches: int) -> int:
        """Samples to ask for, so that batches can be formed as far ahead as the loader reads."""
        return self._source.lacks(ledger, self._worker, step_batches, self._ring)

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        available, size = sum(stop - start for start, stop in spans), self.size
        _, alike = ledger.counted(spans)
        waits = available < size and ledger.free and alike == available
        return 0 if waits else min(size, alike)

    def _cut(self, spans: list[Span], samples: int, counted: int = 0, follow: int = 0) -> Batch:
        positions: list[npt.NDArray[np.int64]] = []
        position = spans[0][0]
        for start, stop in spans:
            cut = min(stop, start + samples)
            positions.append(self._order.at(start, cut))
            samples -= cut - start
            if samples == 0:
                break
        return Batch(position, np.concatenate(positions), counted, follow)


def _skip(spans: tuple[Span, ...], samples: int) -> list[Span]:
    """``spans`` without their first ``samples`` positions."""
    rest: list[Span] = []
    for start, stop in spans:
        skipped = min(samples, stop - start)
        samples -= skipped
        if start + skipped < stop:
            rest.append((start + skipped, stop))
    return rest


class AlignedSampler(BatchSampler):
    """Of a fixed global batch (:mod:`edl.core.step.aligned`): a batch is a slice of it, whole."""

    takes_shares = False

    def share(self, part: float) -> None:
        """A slice is as it was dealt."""

    def take_place(self, members: Sequence[int]) -> None:
        """Slices are dealt anew."""
        self._ring = len(members)

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """What was formed ahead is dealt anew."""
        self.keep_only(in_hand)

    def agrees_with(self, ledger: Ledger) -> bool:
        if not super().agrees_with(ledger):
            return False
        spans, skipped = ledger.held_by(self._worker), 0
        left = 0  # of the pieces of one slice so far
        for batch in self._ahead:
            left += batch.samples
            if batch.follow:
                continue
            if self._next_size(_skip(spans, skipped), ledger) != left:
                return False
            skipped, left = skipped + left, 0
        return True

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        if not spans:
            return 0
        end = span_of(spans[0][0] // self._source.batch_size, self._source.batch_size)[1]
        size = sum(min(stop, end) - start for start, stop in spans if start < end)
        return min(size, ledger.counted(spans)[1])
