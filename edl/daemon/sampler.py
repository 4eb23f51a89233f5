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
    """

    position: int
    indices: npt.NDArray[np.int64]
    counted: int = 0

    @property
    def samples(self) -> int:
        return len(self.indices)

    @property
    def items(self) -> list[Any]:
        """What a framework's loader makes samples of: their indices, or what was read of them."""
        items: list[Any] = self.indices.tolist()
        return items


class BatchSampler:
    """Forms batches from the front of a worker's leases; remembers those not yet trained.

    The ledger knows only what was trained. Between the two lie the batches formed ahead; their
    order never changes, so the n samples trained next are always the first n of the leases.

    Attributes:
        size: samples of a batch that is formed from now on; less than others form, if it is slow.
        takes_shares: it can form smaller batches for a slow worker.
    """

    takes_shares = True

    def __init__(self, source: Source, worker: int) -> None:
        self.size = self._whole = source.batch_size
        self._source = source
        self._worker = worker
        self._ahead: deque[Batch] = deque()
        self._epoch = -1
        self.restarts = 0  # how often all batches formed ahead were given up
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
        whole = self._source.batch_of(members.index(self._worker), len(members))
        if whole != self._whole:
            self.size = self._whole = whole

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """The leases are those of another ring; ``in_hand``: what is trained now."""

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
        self.restarts += 1

    def form(self, ledger: Ledger) -> Batch | None:
        """The next batch, or None when the leases have none to give (now).

        A batch is smaller than ``size`` only when nothing is left to be leased, or when what
        follows is owed to other optimizers.
        """
        spans = _skip(ledger.held_by(self._worker), self.ahead)
        size = self._next_size(spans, ledger)
        if size == 0:
            return None
        batch = self._cut(spans, size, ledger.counted(spans)[0])
        self._ahead.append(batch)
        return batch

    def has_more(self, ledger: Ledger) -> bool:
        """Whether :meth:`form` would return a batch now."""
        return self._next_size(_skip(ledger.held_by(self._worker), self.ahead), ledger) > 0

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
        count = min(self._source.batch_size, self._source.total)
        return self._cut([(0, count)], count)

    def trained(self, batch: Batch) -> None:
        """The oldest batch formed is in the model."""
        oldest = self._ahead.popleft()
        assert oldest is batch, "batches are trained in the order they were formed"

    def wanted(self, ledger: Ledger, step_batches: int) -> int:
        """Samples to ask for, so that batches can be formed as far ahead as the loader reads."""
        return self._source.lacks(ledger, self._worker, step_batches)

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        available, size = sum(stop - start for start, stop in spans), self.size
        _, alike = ledger.counted(spans)
        waits = available < size and ledger.free and alike == available
        return 0 if waits else min(size, alike)

    def _cut(self, spans: list[Span], samples: int, counted: int = 0) -> Batch:
        positions: list[npt.NDArray[np.int64]] = []
        position = spans[0][0]
        for start, stop in spans:
            cut = min(stop, start + samples)
            positions.append(self._order.at(start, cut))
            samples -= cut - start
            if samples == 0:
                break
        return Batch(position, np.concatenate(positions), counted)


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

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """What was formed ahead is dealt anew."""
        if len(in_hand) < len(self._ahead):
            self._ahead = deque(in_hand)
            self.restarts += 1

    def agrees_with(self, ledger: Ledger) -> bool:
        if not super().agrees_with(ledger):
            return False
        spans, skipped = ledger.held_by(self._worker), 0
        for batch in self._ahead:
            if self._next_size(_skip(spans, skipped), ledger) != batch.samples:
                return False
            skipped += batch.samples
        return True

    def warm_up(self) -> Batch:
        """A newcomer's is a half of a global batch: there is one more worker."""
        count = min(-(-self._source.batch_size // 2), self._source.total)
        return self._cut([(0, count)], count)

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        if not spans:
            return 0
        end = span_of(spans[0][0] // self._source.batch_size, self._source.batch_size)[1]
        size = sum(min(stop, end) - start for start, stop in spans if start < end)
        return min(size, ledger.counted(spans)[1])
