"""Form this worker's batches of an epoch from its leases, in order and before they are trained.

:class:`BatchSampler` forms batches of each worker's own size, :class:`AlignedSampler` slices of a
fixed global batch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from edl.errors import DataError
from edl.step.engine import Batch, StepBatches
from edl.step.ledger import Ledger, Span, common, joined, length, subtract_spans, take
from edl.step.source import (
    AHEAD,
    SHARD,
    AlignedSource,
    EpochOrder,
    Source,
    StreamSource,
    by_shard,
    dealt,
    span_of,
)
from edl.step.state_check import AuditSteps, repeated

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


# ------------------------------------------------------------
# Form this worker's batches of a stream, from the samples that it reads in its leases.
#
# `StreamSampler` does that; it reads by a `StreamReader`. A stream has shards: sequences, such as
# files, whose lengths are not known before they are read. A batch is read when it is formed, so its
# size is known before its step begins. One sample more is read than the batch needs, to know
# whether the shard ends with the batch. If it does, the leased positions behind the end, which hold
# no samples, are marked as done together with the batch.


NO_INDICES = np.empty(0, dtype=np.int64)


class StreamReader(Protocol):
    """The interface of an object that reads the samples of a stream."""

    def read(self, epoch: int, shard: int, offset: int, count: int) -> list[Any]:
        """Return up to `count` samples of a shard; fewer mean that the shard ends there."""


@dataclass(frozen=True, eq=False)
class StreamBatch(Batch):
    """A batch of samples that were read from a stream."""

    read: tuple[Any, ...] = ()  # the samples, in the order of their positions
    # that the batch takes from its worker's leases, also behind the end of a shard, without samples
    spans: tuple[Span, ...] = ()

    @property
    def samples(self) -> int:
        return len(self.read)

    @property
    def items(self) -> list[Any]:
        """The samples, of which the framework's loader makes the batch."""
        return list(self.read)

    @property
    def keys(self) -> list[int]:
        """The epoch positions of the samples, which identify them on all workers."""
        positions = itertools.chain.from_iterable(range(*span) for span in self.spans)
        return list(itertools.islice(positions, len(self.read)))


@dataclass
class _ReadSpan:
    """The samples that were read from one span of positions, without a gap."""

    start: int  # of the first sample that is in no batch yet
    stop: int  # behind the last sample; behind the whole span if the shard ended in it
    samples: list[Any]  # in no batch yet
    counted: int  # as in `Batch`


class StreamSampler(BatchSampler):
    """The sampler that reads a worker's batches of a stream from the front of its leases."""

    def __init__(self, source: StreamSource, worker: int, reader: StreamReader) -> None:
        super().__init__(source, worker)
        self._stream = source
        self._reader = reader
        self._pieces: deque[_ReadSpan] = deque()
        self._end = -1  # the end of a shared stream, once this worker has read so far
        self._ended: list[int] = []  # the lengths of shards that were read from their beginning
        self._first: StreamBatch | None = None

    def enter(self, epoch: int, resumes: bool = False) -> None:
        """Discard all samples that are read; from now on read those of the epoch `epoch`."""
        super().enter(epoch, resumes)
        self._end = -1

    def restart(self) -> None:
        """Discard all batches that were formed and not trained, and all samples that were read."""
        super().restart()
        self._pieces = deque()

    def keep_only(self, in_hand: Sequence[Batch]) -> None:
        """Discard all batches that are formed and not yet trained, except `in_hand`."""
        if len(in_hand) < len(self._ahead):
            self._pieces = deque()
        super().keep_only(in_hand)

    def form(self, ledger: Ledger) -> Batch | None:
        """Read the samples that the next batch lacks, and return the batch."""
        if not self.has_more(ledger):
            return None
        batch = self._cut_off(self.size)
        self._ahead.append(batch)
        return batch

    def has_more(self, ledger: Ledger) -> bool:
        """Read the samples of the next batch, and return whether `form` would return one now."""
        bounded = self._fill(ledger)
        samples = self._samples_alike()
        short = samples < self.size and not bounded
        # With other batches ahead it waits for more leases, which may come.
        return samples > 0 and not (short and self._ahead and self._may_get(ledger))

    def use(self, source: Source, members: Sequence[int], in_hand: Sequence[Batch]) -> None:
        """Form batches of the sizes of `source` from now on."""
        assert isinstance(source, StreamSource)
        self._stream = source
        super().use(source, members, in_hand)

    def nothing(self, batches: Sequence[Batch]) -> Batch | None:
        """Return a batch without samples if the end of a shard comes next, else None."""
        # Batches that are formed ahead come first.
        if not self._pieces or self._pieces[0].samples or len(self._ahead) > len(batches):
            return None
        batch = self._cut_off(0)
        self._ahead.append(batch)
        return batch

    def agrees_with(self, ledger: Ledger) -> bool:
        """Return whether what was read and not trained is the front of this worker's leases."""
        if ledger.epoch != self._epoch:
            return not self._ahead
        held, mine = ledger.held_by(self._worker), self._spans()
        gone = subtract_spans(mine, held)
        # Positions behind the end of a shared stream need not be leased any more.
        if gone and (self._end < 0 or min(start for start, _ in gone) < self._end):
            return False
        kept = joined(common(mine, held))
        if kept != joined(take([*held], length(kept))):
            return False
        batches = [each for each in self._ahead if isinstance(each, StreamBatch)]
        parts = [
            *((each.spans, each.counted) for each in batches if each.samples),
            *(([(each.start, each.stop)], each.counted) for each in self._pieces if each.samples),
        ]
        return all(ledger.counted(common(spans, held))[0] == bits for spans, bits in parts)

    def warm_up(self) -> Batch:
        """Return a batch of the epoch's first samples for the warm-up, which is not counted."""
        if self._first is None:
            size, read = self._stream.warm_up_batch, list[Any]()
            for place in range(len(self._order)):
                shard = self._shard_at(place)
                read += self._reader.read(self._epoch, shard, 0, size - len(read))
                if len(read) == size:
                    break
            if not read:
                raise DataError("the stream has 0 samples; at least one is needed")
            self._first = StreamBatch(0, NO_INDICES, read=tuple(read), spans=((0, len(read)),))
        return self._first

    def wanted(self, ledger: Ledger, step_batches: int) -> int:
        """Return how many more shards this worker needs; of a shared stream, samples."""
        if self._stream.shared:
            return super().wanted(ledger, step_batches)
        unread = by_shard(subtract_spans(ledger.held_by(self._worker), self._spans()))
        usual = sum(self._ended) / len(self._ended) if self._ended else SHARD
        ahead = AHEAD + int(self._stream.need(step_batches, self._ring) / max(1.0, usual))
        return max(0, ahead - len(unread))

    def row(self, ledger: Ledger, batches: Sequence[Batch]) -> dict[str, int]:
        """Return the step record's fields about the positions that `batches` take."""
        spans = common(_spans(batches), ledger.held_by(self._worker))
        position = spans[0][0] if spans else -1
        return {"position": position, "taken": length(spans), "end": self._end}

    def left(self, ledger: Ledger, batches: Sequence[Batch]) -> int:
        """Return how many positions of this worker's leases are left when `batches` are trained."""
        return length(subtract_spans(ledger.held_by(self._worker), _spans(batches)))

    def _shard_at(self, place: int) -> int:
        return int(self._order.at(place, place + 1)[0])

    # --- what is read

    def _fill(self, ledger: Ledger) -> bool:
        """Read a batch and one sample more, or to the end; whether the batch has to end there."""
        size = self.size
        while (missing := size + 1 - sum(len(piece.samples) for piece in self._pieces)) > 0:
            rest = by_shard(subtract_spans(ledger.held_by(self._worker), self._spans()))
            if not rest:
                return False
            start, stop = rest[0]
            counted, alike = ledger.counted([rest[0]])
            if any(piece.samples and piece.counted != counted for piece in self._pieces):
                return True
            self._read(start, min(stop, start + alike), counted, missing)
        return False

    def _read(self, start: int, stop: int, counted: int, missing: int) -> None:
        """Read up to `missing` samples of the positions from `start` to `stop`, of one shard."""
        place, offset = divmod(start, SHARD)
        count = min(missing, stop - start)
        shard = self._shard_at(place)
        samples = self._reader.read(self._epoch, shard, offset, count)
        end = start + len(samples)
        if len(samples) < count:
            if self._stream.shared:
                self._end = end
            self._ended = [*self._ended[-15:], offset + len(samples)]
        self._pieces.append(
            _ReadSpan(start, stop if len(samples) < count else end, samples, counted)
        )

    def _may_get(self, ledger: Ledger) -> bool:
        return any(self._end < 0 or start < self._end for start, _ in ledger.free)

    def _samples_alike(self) -> int:
        """Return how many of the first samples that were read may form one batch."""
        samples, counted = 0, -1
        for piece in self._pieces:
            if piece.samples:
                if counted not in (-1, piece.counted):
                    break
                counted = piece.counted
                samples += len(piece.samples)
        return samples

    def _cut_off(self, size: int) -> StreamBatch:
        """Return a batch of the first `size` samples at most, removed from those that were read."""
        # Its spans cover the positions without samples at the ends of shards, too.
        read: list[Any] = []
        spans: list[Span] = []
        counted = next((piece.counted for piece in self._pieces if piece.samples), 0)
        while self._pieces:
            piece = self._pieces[0]
            if piece.samples and (len(read) == size or piece.counted != counted):
                break
            taken = piece.samples[: size - len(read)]
            read += taken
            if len(taken) == len(piece.samples):
                spans.append((piece.start, piece.stop))
                self._pieces.popleft()
            else:
                cut = piece.start + len(taken)
                spans.append((piece.start, cut))
                piece.start, piece.samples = cut, piece.samples[len(taken) :]
        return StreamBatch(spans[0][0], NO_INDICES, counted, read=tuple(read), spans=tuple(spans))

    def _spans(self) -> list[Span]:
        return [*_spans(self._ahead), *((piece.start, piece.stop) for piece in self._pieces)]


def _spans(batches: Iterable[Batch]) -> list[Span]:
    return [span for each in batches if isinstance(each, StreamBatch) for span in each.spans]
