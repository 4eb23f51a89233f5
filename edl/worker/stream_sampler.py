"""Form this worker's batches of a stream, from the samples that it reads in its leases.

:class:`StreamSampler` does that; it reads by a :class:`StreamReader`. A stream has shards:
sequences, such as files, whose lengths are not known before they are read. A batch is read when it
is formed, so its size is known before its step begins. One sample more is read than the batch
needs, to know whether the shard ends with the batch. If it does, the leased positions behind the
end, which hold no samples, are marked as done together with the batch.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from edl.core.step.batch import Batch
from edl.core.step.ledger import Ledger
from edl.core.step.source import Source
from edl.core.step.spans import Span, common, joined, length, subtract_spans, take
from edl.core.step.stream import AHEAD, SHARD, StreamSource, by_shard
from edl.errors import DataError
from edl.worker.sampler import BatchSampler

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
