"""Form this worker's batches of an epoch from its leases, in order and before they are trained.

:class:`BatchSampler` forms batches of each worker's own size, :class:`AlignedSampler` slices of a
fixed global batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from edl.core.step.aligned import AlignedSource, dealt, span_of
from edl.core.step.batch import Batch
from edl.core.step.exact_audit import AuditSteps, repeated
from edl.core.step.ledger import Ledger
from edl.core.step.shuffle import EpochOrder
from edl.core.step.source import Source
from edl.core.step.spans import Span, common, length
from edl.core.step.step_batches import StepBatches

LEAST_CHANGE = 0.1  # of the size of a batch


class BatchSampler:
    """The sampler that forms a worker's batches from the front of its leases, ahead of training."""

    takes_shares = True  # smaller batches for a slow worker

    def __init__(self, source: Source, worker: int) -> None:
        # samples of the next batches; fewer than on other workers if this one is slow
        self.size = self._whole = source.batch_size
        # batches formed ahead can be read again; the framework's loader sets it
        self.rereads = False
        self._source = source
        self._worker = worker
        self._ring = 1  # the number of its workers
        # All workers divide their next batches into so many. A repair changes it with logical
        # workers only: one that begins the open step afterwards has to divide its batch as those
        # that began it before, and its leases are of that ring.
        self.microbatches = 1
        self._sizes: deque[int] = deque()  # of the microbatches that the present batch lacks
        self._ahead: deque[Batch] = deque()
        self._formed: deque[Batch] = deque()  # these, and the repeats that were given out
        self._repeats: deque[Batch] = deque()  # of another worker, to follow the present batch
        self._has_repeats = False  # the caller may have read some ahead
        self._epoch = -1
        self.restarts = 0  # how often all batches formed ahead were discarded
        self.audit = AuditSteps()  # of logical workers; without them none
        self._order = EpochOrder(0, 0, 0, shuffle=False)

    @property
    def ahead(self) -> int:
        """The number of samples that are formed into batches and not yet trained."""
        return sum(batch.samples for batch in self._ahead)

    def share(self, part: float) -> None:
        """Form batches of `part` (above 0, at most 1) of the full batch size from now on."""
        whole = self._whole
        size = min(whole, max(1, round(whole * part)))
        # Not for small changes: a framework may compile its code for each new size.
        if size == whole or abs(size - self.size) > LEAST_CHANGE * self.size:
            self.size = size

    def take_place(self, members: Sequence[int]) -> None:
        """Set `size` to the full batch size that this worker has in a new ring."""
        self._ring = len(members)
        whole = self._source.batching.of_one(members.index(self._worker), len(members))
        if whole != self._whole:
            self.size = self._whole = whole

    def set_microbatches(self, ledger: Ledger, after_step: bool = False) -> None:
        """Set `microbatches`, on all workers between the same two steps."""
        self.microbatches = self._source.batching.microbatches(self._ring)

    def use(self, source: Source, members: Sequence[int], in_hand: Sequence[Batch]) -> None:
        """Form batches of the sizes of `source`, which is otherwise equal to the present source."""
        self._source = source
        self.take_place(members)
        if self.rereads:
            self.keep_only(in_hand)

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """Discard batches formed ahead that do not fit the leases of a new ring."""
        # None here, since the leases of a worker that stays do not change.

    def keep_only(self, in_hand: Sequence[Batch]) -> None:
        """Discard all batches that are formed and not yet trained, except `in_hand`."""
        self._sizes.clear()
        self._repeats.clear()
        if len(in_hand) < len(self._ahead) or self._has_repeats:
            self._ahead, self._has_repeats = deque(in_hand), False
            self._formed = deque(in_hand)
            self.restarts += 1

    def form_again(self, in_hand: StepBatches) -> None:
        """Discard all batches formed and not handed out, to form them again as they were."""
        given = {id(batch) for batch in (*in_hand.untrained, in_hand.newest)}
        places = [place for place, batch in enumerate(self._formed, 1) if id(batch) in given]
        lacks = [*self._formed][max(places, default=0) :][: in_hand.follow]
        # All workers have equally many microbatches in a step: the open step's come again.
        sizes = [batch.samples for batch in lacks if not batch.repeats]
        repeats = [batch for batch in lacks if batch.repeats]
        if len(lacks) < in_hand.follow:  # the others are yet to be formed
            sizes += self._sizes
            repeats += self._repeats
        self.keep_only(in_hand.untrained)
        self._sizes.extend(sizes)
        self._repeats.extend(repeats)
        self._has_repeats |= bool(repeats)

    def header(self) -> dict[str, Any]:
        """Return how the next step is divided, and what is audited, as JSON values by name."""
        return {"pieces": self.microbatches, "audit": self.audit.header()}

    def take_over(self, header: Mapping[str, Any]) -> None:
        """Divide the next step as the state source does, which has sent `header()`."""
        self.microbatches = int(header["pieces"])
        self.audit.take_over(header["audit"])

    def enter(self, epoch: int, resumes: bool = False) -> None:
        """Discard all batches that are formed; from now on form those of the epoch `epoch`."""
        self.restart()
        if resumes:
            self.audit.resume()
        self._epoch, self._order = epoch, self._source.order(epoch)

    def row(self, ledger: Ledger, batches: Sequence[Batch]) -> dict[str, int]:
        """Return the step record's field `position`: the epoch position of the open step."""
        return {"position": batches[0].position if batches else -1}

    def left(self, ledger: Ledger, batches: Sequence[Batch]) -> int:
        """Return how many samples of this worker's leases are left when `batches` are trained."""
        return ledger.held_samples(self._worker) - sum(batch.samples for batch in batches)

    def untrained_pieces(self, ledger: Ledger, batches: Sequence[Batch]) -> int:
        """Return how many pieces of the open step this worker has yet to train, after a repair."""
        return 0

    def nothing(self, batches: Sequence[Batch]) -> Batch | None:
        """Return a batch without samples if the end of a stream's shard comes next; else None."""
        return None

    def restart(self) -> None:
        """Discard all batches that were formed and not trained, and count this in `restarts`."""
        self._ahead.clear()
        self._formed.clear()
        self._sizes.clear()
        self._repeats.clear()
        self._has_repeats = False
        self.restarts += 1

    def form(self, ledger: Ledger) -> Batch | None:
        """Form the next batch, or return None if the leases have no samples for it now."""
        if self._repeats and not self._sizes:
            self._formed.append(self._repeats.popleft())
            return self._formed[-1]
        spans = _skip(ledger.held_by(self._worker), self.ahead)
        if not self._sizes:
            size = self._next_size(spans, ledger)
            if size == 0:
                return None
            self._sizes.extend(self._split(spans, size))
            self._repeats.extend(self._repeated(spans[0][0], ledger))
            self._has_repeats |= bool(self._repeats)
        size = self._sizes.popleft()
        follow = len(self._sizes) + len(self._repeats)
        batch = self._cut(spans, size, ledger.counted(spans)[0], follow)
        self._ahead.append(batch)
        self._formed.append(batch)
        return batch

    def _split(self, spans: Sequence[Span], size: int) -> list[int]:
        return self._source.batching.split(size, self.microbatches)

    def _repeated(self, position: int, ledger: Ledger) -> Sequence[Batch]:
        return ()

    def has_more(self, ledger: Ledger) -> bool:
        """Return whether `form` would return a batch now, by the leases in `ledger`."""
        spans = _skip(ledger.held_by(self._worker), self.ahead)
        return bool(self._sizes or self._repeats) or self._next_size(spans, ledger) > 0

    def agrees_with(self, ledger: Ledger) -> bool:
        """Return whether the batches formed ahead are the first samples of this worker's leases."""
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
        """Return a batch of the epoch's first samples for the warm-up, which is not counted."""
        count = min(self._source.warm_up_batch, self._source.total)
        return self._cut([(0, count)], count)

    def trained(self, batch: Batch) -> None:
        """Remove `batch`, which the model has trained, from the formed batches."""
        oldest = self._ahead.popleft()
        assert oldest is batch, "batches are trained in the order they were formed"
        while self._formed and self._formed.popleft() is not batch:
            pass  # the repeats of another worker's before it

    def wanted(self, ledger: Ledger, step_batches: int) -> int:
        """Return how many more samples (or global batches, if fixed) this worker needs to lease."""
        return self._source.lacks(ledger, self._worker, step_batches, self._ring)

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        """Return the size of the next batch; 0 if it has to wait for leases, or none are left."""
        available, size = sum(stop - start for start, stop in spans), self.size
        _, alike = ledger.counted(spans)
        waits = available < size and ledger.free and alike == available
        return 0 if waits else min(size, alike)

    def _cut(self, spans: list[Span], samples: int, counted: int = 0, follow: int = 0) -> Batch:
        """Return a batch of the samples at the first `samples` positions of `spans`."""
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
    """Return `spans`, pairs (start, stop), without their first `samples` positions."""
    rest: list[Span] = []
    for start, stop in spans:
        skipped = min(samples, stop - start)
        samples -= skipped
        if start + skipped < stop:
            rest.append((start + skipped, stop))
    return rest


class AlignedSampler(BatchSampler):
    """The sampler for a fixed global batch: a worker's batch is its slice of the global batch."""

    takes_shares = False

    def __init__(self, source: AlignedSource, worker: int) -> None:
        super().__init__(source, worker)
        self.audit = AuditSteps(source.audit_steps)

    def share(self, part: float) -> None:
        """Do nothing, whatever `part` is: a slow worker gets no smaller slice."""

    def take_place(self, members: Sequence[int]) -> None:
        """Note which workers, `members`, share each global batch from now on."""
        self._ring = len(members)
        self.audit.enter_ring(members)

    def regroup(self, in_hand: Sequence[Batch]) -> None:
        """Discard the batches formed ahead, since each worker has new slices; keep `in_hand`."""
        self.keep_only(in_hand)

    def agrees_with(self, ledger: Ledger) -> bool:
        """Return whether the batches formed ahead are the first slices of this worker's leases."""
        if not super().agrees_with(ledger):
            return False
        if self._source.batching.logical:  # in a repair a slice may have grown
            return True
        spans, skipped = ledger.held_by(self._worker), 0
        left = 0  # samples in the microbatches of one slice so far
        for batch in self._ahead:
            left += batch.samples
            if batch.follow:
                continue
            if self._next_size(_skip(spans, skipped), ledger) != left:
                return False
            skipped, left = skipped + left, 0
        return True

    def _next_size(self, spans: list[Span], ledger: Ledger) -> int:
        """Return the size of the next slice: the positions of one global batch in `spans`."""
        if not spans:
            return 0
        end = span_of(spans[0][0] // self._source.batch_size, self._source.batch_size)[1]
        size = sum(min(stop, end) - start for start, stop in spans if start < end)
        return min(size, ledger.counted(spans)[1])

    def _split(self, spans: Sequence[Span], size: int) -> list[int]:
        """Return the lengths of the microbatches of the next slice, the first `size` samples."""
        if not self._source.batching.logical:
            return super()._split(spans, size)
        # A microbatch is of one logical worker, so it ends where a span ends.
        unit, sizes = self._source.units.at(spans[0][0]), []
        for start, stop in spans:
            samples = min(stop - start, size)
            size -= samples
            whole, rest = divmod(samples, unit)
            sizes += [unit] * whole + [rest] * (rest > 0)
        return sizes

    def set_microbatches(self, ledger: Ledger, after_step: bool = False) -> None:
        """Set `microbatches`; with logical workers, to the most that a worker has next."""
        super().set_microbatches(ledger)
        batching, size = self._source.batching, self._source.batch_size
        if not batching.logical:
            return
        if after_step:
            self.audit.end_step()
        if known := dealt(ledger, size):
            now = [span_of(min(known), size)]
            most = max(length(common(spans, now)) for _, spans in ledger.leases)
            # So the last one of a step is no padding on all workers, also at the end of an epoch.
            self.microbatches = -(-most // self._source.units.at(now[0][0]))
            self.audit.next_step(min(known))
            if self.audit.left:
                self.microbatches *= 2

    def _repeated(self, position: int, ledger: Ledger) -> Sequence[Batch]:
        """Return the microbatches of the next worker's slice, if their step is audited."""
        size = self._source.batch_size
        if not self.audit.has(number := position // size):
            return ()
        rest = [*repeated(ledger, self._worker, self.audit.members, span_of(number, size))]
        sizes, found = self._split(rest, length(rest)) if rest else [], list[Batch]()
        for index, samples in enumerate(sizes, 1):
            batch = self._cut(rest, samples, follow=len(sizes) - index)
            found.append(replace(batch, repeats=True))
            rest = _skip(tuple(rest), samples)
        return found

    def untrained_pieces(self, ledger: Ledger, batches: Sequence[Batch]) -> int:
        """Return how many logical workers this worker has yet to train in the open step."""
        held = ledger.held_by(self._worker)
        if not self._source.batching.logical or not held:
            return 0
        # Right after a repair nothing is leased but the global batch in training.
        return -(-self.left(ledger, batches) // self._source.units.at(held[0][0]))
