"""Define the step record, which workers exchange once a step, and what they compute from it.

Each worker contributes one row of int64 to a small collective that starts when the batch is handed
out and is awaited before the update is applied. All workers then hold the same table of shape
``(size, WIDTH)``, rows in rank order, and run the same functions on it, so they agree on the
weights of the step, on the ledger and on when to switch, with no further message. What each step
needs is read by columns (:class:`StepRecords`): a job has a thousand rows, and a step some
milliseconds. The entry points are :class:`StepRecord` (a worker fills it and sends
``record.encode()``), ``StepRecords(table)`` (the rows that came back) and the functions below.

A row is trusted for what it says of its own worker only. Rows of one table that disagree about
generation, step, epoch or ledger show a defect of edl, or a worker whose script differs;
:func:`check_records` finds them before a gradient is applied.
"""

from __future__ import annotations

import functools
import zlib
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from edl.errors import MismatchedEnd, RingError
from edl.text import names

# ------------------------------------------------------------
# Write clauses of messages that say how much of an epoch was trained when the workers left it.


@dataclass(frozen=True)
class EpochLeft:
    """An epoch at the moment when all workers left it, by finishing it or before its end."""

    epoch: int  # from 0
    trained: int  # samples that the job has trained
    total: int  # its samples; 0 for a stream, whose length is not known
    is_over: bool  # all samples were trained

    @property
    def untrained(self) -> int:
        """The number of samples of the epoch that were not trained; always 0 for a stream."""
        return max(0, self.total - self.trained) if not self.is_over else 0

    @property
    def share(self) -> str:
        """How much was trained, in words: "752 of 960 samples", or "752 samples" of a stream."""
        return (
            f"{self.trained} of {self.total} samples" if self.total else f"{self.trained} samples"
        )

    def __str__(self) -> str:
        rest = f"; {self.untrained} were not" if self.total else ""
        return f"epoch {self.epoch} was left with {self.share} trained{rest}"


def ended_by_script(left: EpochLeft) -> str:
    """Return a clause: "; the script ended after epoch 3", or in it, with how much trained."""
    if left.is_over:
        return f"; the script ended after epoch {left.epoch}"
    return f"; the script ended in epoch {left.epoch}, with {left.share} of it trained"


def ended_by_count(left: EpochLeft) -> str:
    """Return a clause: "; 752 of 960 samples of epoch 3 are trained"; empty if all are."""
    return "" if left.is_over else f"; {left.share} of epoch {left.epoch} are trained"


def left_out(samples: int) -> str:
    """Return a clause that says how many samples of all epochs were not trained; empty if none."""
    if not samples:
        return ""
    return f"; {samples:,} samples of epochs that all workers left early are not trained"


# ------------------------------------------------------------
# Compute how many samples an update of the job has had lately, in global batches.
#
# The number is no constant of the job. A script that adds up gradients trains several global
# batches for an update, and may change how many; one with several optimizers may make several
# updates with the same batch.


STEPS = 32  # enough for a period of two optimizers, of which one makes few updates


class RecentSteps:
    """The samples of a job's last `STEPS` steps, as one worker knows them."""

    def __init__(self) -> None:
        self._steps: deque[tuple[int, int]] = deque(maxlen=STEPS)

    def add(self, samples: int, batch: int) -> None:
        """Add a complete step; `samples` is 0 if the step before it has trained the same batch."""
        self._steps.append((samples, batch))

    @property
    def batches(self) -> float | None:
        """How many global batches a step has on the average; None: no samples are known yet."""
        samples, batches = map(sum, zip(*self._steps, strict=True)) if self._steps else (0, 1)
        return samples / batches if samples else None


Table = npt.NDArray[np.int64]
Column = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SwitchTimes:
    """The durations of a worker's last switch or repair, in microseconds; 0: it did not occur."""

    detect_us: int = 0  # in the call that failed: an upper bound, with the usual waiting for others
    election_us: int = 0  # then until it knew of a new leader; of the last failure, as the next
    survivor_report_us: int = 0  # then until it knew of the generation of the survivors
    # In a switch, until the old members have met (a newcomer's is before the switch, and not in
    # stall). In a repair, from the first failure known until the last rebuild begins: election,
    # survivor report, closing the old ring, rebuilds that failed.
    wait_us: int = 0
    shutdown_us: int = 0  # leaving the old ring; 0 in a repair, which does so within wait
    init_us: int = 0  # building the new ring
    broadcast_us: int = 0  # exchange of the state
    stall_us: int = 0  # all of it, without detect
    first_step_us: int = 0  # from the end of the switch until the next step is complete
    median_step_us: int = 0  # this worker's usual step before the switch

    def seconds(self) -> dict[str, float]:
        """Return them in seconds, by the fields of `SwitchParts` in the event log."""
        return {f"{name.removesuffix('_us')}_s": getattr(self, name) / 1e6 for name in PARTS}


PARTS = tuple(field.name for field in fields(SwitchTimes))


def us(seconds: float) -> int:
    """Return `seconds` rounded to whole microseconds, the unit of times in a step record."""
    return round(seconds * 1e6)


def repair_times(waiting_since: float, known: float, led_since: float, heard: float) -> SwitchTimes:
    """Divide the time from a failure until a worker knew of the ring's repair into three parts."""
    # It may have heard before, if the call failed only because the generation had come. The term
    # may have begun long before the failure, or after the repair.
    heard = max(known, heard)
    elected = max(known, min(led_since, heard))
    return SwitchTimes(
        detect_us=us(known - waiting_since),
        election_us=us(elected - known),
        survivor_report_us=us(heard - elected),
    )


class Stop(IntEnum):
    """The state of a worker's training in its step record: it trains on, stops, or has ended."""

    NO = 0
    WANTED = 1  # its script wants to stop: all workers stop after this step
    LEFT = 2  # its script has left the loop with the batch of this step, and sends no gradients
    FINISHED = 3  # it has trained to its end, and is in no step
    ENDED = 4  # its script has ended, perhaps inside an epoch, and it is in no step
    SAVED = 5  # as ENDED; if it is the worker that saves, the last checkpoint is written
    UNSAVED = 6  # as SAVED, but the last checkpoint could not be written


@dataclass(frozen=True)
class StepRecord(SwitchTimes):
    """One worker's row in the table of a step. All fields are integers."""

    generation: int  # of the ring
    step: int  # the steps that the job has completed before it
    worker: int
    epoch: int
    samples: int  # that enter the step, from the front of its leases; 0 for a padding batch
    position: int  # in the epoch, of the first of them; -1: none, it trains a padding batch
    # samples that it needs in leases beyond those that it holds, so that its loader never waits; of
    # a stream that is not shared, shards
    wanted: int
    newest_generation: int  # that it knows to be prepared; its own at least
    ledger: int  # the digest of its ledger before this step
    batches: int = 1  # of its loader, padding too: one, unless it accumulates gradients
    late: int = 0  # 1: sent at the end of the step, with accumulated gradients; 0: at its start
    # the index of the step among those of its batch: 0, unless several optimizers update one after
    # the other by the same samples
    part: int = 0
    # the optimizers, as bits, for which these samples do not count: they have applied them, on
    # another worker that left in the middle of its batch
    counted: int = 0
    updated: int = 0  # the optimizers, as bits, that made updates in the step before this one
    taken: int = -1  # of a stream, positions that leave its leases, empty ones too; -1: as samples
    end: int = -1  # where it has found a shared stream to end; -1: it has not
    stop: int = Stop.NO
    # the digest of the part of the training state that is compared, equal on all workers after the
    # last step; 0: none is
    state: int = 0
    buffers: int = 0  # the digest of what the model sets from its batches; 0: not compared
    compute_us: int = 0  # of the last step, without waiting for the batch or for others
    data_us: int = 0  # waiting for its batch in the last step
    reduce_us: int = 0  # from its gradients to the mean of all, in the last step
    size_change: int = 0  # workers that its script wants to add (negative: remove)
    batch: int = 0  # the next global batch, in samples, if it leads and changes it
    # squared norms in the last step, of its gradient and the job's, as the bits of a float64; 0:
    # not measured
    own_square: int = 0
    mean_square: int = 0
    save: int = 0  # 1: rank 0 wants all to save their parts of a checkpoint after this step
    # what it calls between two steps, such as `edl.mean`, as a digest, and above its 33 bits the
    # size of the message, if all must send as much; 0: it is in a step, or exchanges nothing. Rows
    # of one table differ in it where workers are at different points of the script (`mismatch`).
    exchange: int = 0
    # the lines of the script that call it, as a digest; negative: two workers or more have not
    # called it at these lines together before
    site: int = 0
    payload_bytes: int = 0  # of its message to all, in the row itself up to `PAYLOAD_BYTES`
    joined: int = 0  # 1 plus the step after which the worker joined; 0: it was there from the start
    inside: int = 0  # 1 if it joined inside an epoch, and may do so again at the start of another

    def encode(self, payload: bytes = b"") -> Table:
        """Return an int64 array of shape `(1, WIDTH)`: `FIELDS`, then a short `payload`."""
        row = np.zeros((1, WIDTH), dtype=np.int64)
        row[0, : len(FIELDS)] = [getattr(self, name) for name in FIELDS]
        if len(payload) <= PAYLOAD_BYTES:
            row.view(np.uint8)[0, 8 * len(FIELDS) :][: len(payload)] = np.frombuffer(
                payload, np.uint8
            )
        return row


FIELDS = (*(f.name for f in fields(StepRecord) if f.name not in PARTS), *PARTS)
PAYLOAD_BYTES = 64  # of a message in a row: a mean of six numbers needs no collective of its own
WIDTH = len(FIELDS) + PAYLOAD_BYTES // 8

# Only workers with the same rows can share a ring: a newcomer of another edl is told so before it
# breaks the ring.
PROTOCOL = zlib.crc32(" ".join(FIELDS).encode())
IDLE = StepRecord(0, 0, 0, 0, 0, 0, 0, 0, 0)  # the row that workers send in a barrier


class StepRecords(Sequence[StepRecord]):
    """The records of all workers in one step, in rank order, kept as one table of int64."""

    def __init__(self, table: Table) -> None:
        if table.ndim != 2 or table.shape[1] != WIDTH:
            raise RingError(
                f"a step-record table has shape {table.shape}; expected (size, {WIDTH})"
            )
        self._table = table

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> StepRecords:
        """Return a new table with `records` (at least one) as its rows, in their order."""
        return cls(np.concatenate([record.encode() for record in records]))

    def column(self, name: str) -> Column:
        """Return the field `name` of all records, in rank order, as an array."""
        return self._table[:, _COLUMN[name]]

    def values(self, name: str) -> list[int]:
        """Return the field `name` of all records, in rank order, as Python integers."""
        found: list[int] = self.column(name).tolist()
        return found

    def differ_in(self, name: str) -> bool:
        """Return whether two records or more differ in the field `name`; False if all agree."""
        return bool(self._differing[_COLUMN[name]])

    @functools.cached_property
    def _differing(self) -> npt.NDArray[np.bool_]:
        found: npt.NDArray[np.bool_] = (self._table != self._table[0]).any(axis=0)
        return found

    def payloads(self) -> list[bytes] | None:
        """Return the messages of all workers, in rank order; None: one is too long for its row."""
        sizes = self.values("payload_bytes")
        if max(sizes) > PAYLOAD_BYTES:
            return None
        data = np.ascontiguousarray(self._table[:, len(FIELDS) :]).view(np.uint8)
        return [row[:size].tobytes() for row, size in zip(data, sizes, strict=True)]

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...
    @overload
    def __getitem__(self, at: slice) -> StepRecords: ...
    def __getitem__(self, at: int | slice) -> StepRecord | StepRecords:
        if isinstance(at, slice):
            return StepRecords(self._table[at])
        row = self._table[at, : len(FIELDS)].tolist()
        return StepRecord(**dict(zip(FIELDS, row, strict=True)))


_COLUMN = {name: at for at, name in enumerate(FIELDS)}


def check_records(records: StepRecords) -> None:
    """Check that all workers are in the same step, with the same ledger and updates before it."""
    _check_equal(records, "generation")
    _check_equal(records, "step")
    check_together(records)
    _check_same_updates(records)
    _check_equal(records, "ledger")
    if len({*records.values("worker")}) != len(records):
        raise RingError(f"a worker appears twice in the records of step {records[0].step}")


def _check_equal(records: StepRecords, name: str) -> None:
    if records.differ_in(name):
        values = zip(records.values("worker"), records.values(name), strict=True)
        text = ", ".join(f"w{worker}: {value}" for worker, value in sorted(values))
        raise RingError(
            f"workers disagree about the {name} of step {records[0].step} ({text}); every "
            "worker must run the same script on the same data and hand out the same batches"
        )


def _check_same_updates(records: StepRecords) -> None:
    """Check that the same optimizers made updates in the last step on all workers."""
    if records.differ_in("part") or records.differ_in("updated"):
        step = records[0].step
        text = ", ".join(f"w{each.worker}: {_where(each)}" for each in records)
        raise RingError(
            f"the workers' optimizers do not take turns alike before step {step} ({text}); "
            "which of them make an update, and in which order, must be equal on all workers"
        )


def _where(record: StepRecord) -> str:
    """Return which optimizers made updates: "1 and 2, then the next batch", counted from 1."""
    bits = range(record.updated.bit_length())
    turns = [str(number + 1) for number in bits if record.updated >> number & 1]
    then = "the same batch" if record.part else "the next batch"
    return f"{' and '.join(turns) or 'none'}, then {then}"


def check_together(records: StepRecords) -> None:
    """Check that no worker has left an epoch, or the training, in which others go on."""
    stops, epochs = records.column("stop"), records.column("epoch")
    left = stops >= Stop.FINISHED
    if not left.any():
        left = epochs == epochs.max()
    if not left.all():
        workers = records.column("worker")
        if (stops == Stop.ENDED).any():
            raise MismatchedEnd(_scripts_ended(records, left))
        behind = records[int(left.argmin())]
        raise MismatchedEnd(
            f"{_joined(workers[left])} left epoch {behind.epoch} before its end, after "
            f"{behind.step} steps of the job, and {_joined(workers[~left])} did not; leave "
            "a loop after the same step on all workers, or on none: a `break` must not depend on "
            "what one worker sees, or has counted itself (edl.step() is the job's)"
        )


EARLY_STOP = (
    "; early stopping decides by numbers of the job: let edl.mean give the value, and edl.track "
    "keep the best one and the count of bad epochs, which a newcomer lacks"
)


def _scripts_ended(records: StepRecords, left: npt.NDArray[np.bool_]) -> str:
    """Return the error message for workers whose scripts have ended while others train on."""
    workers = records.column("worker")
    ended = records[int(left.argmax())]
    others = int((~left).sum())
    their, train = ("its" if left.sum() == 1 else "their"), ("trains" if others == 1 else "train")
    inside = records[int(left.argmin())].epoch == ended.epoch
    where, early = ("inside", "") if inside else ("after", EARLY_STOP)
    return (
        f"{_joined(workers[left])} ended {their} script after step {ended.step}, {where} epoch "
        f"{ended.epoch}, and {_joined(workers[~left])} {train} on; all workers must end after the "
        "same step: count the steps of the job, not those of a worker, by `for batch in "
        f"loader.steps({ended.step})` or `while edl.step() < {ended.step}`{early}"
    )


def _joined(ids: Iterable[int]) -> str:
    return " and ".join(f"w{worker}" for worker in sorted(ids))


def counts(records: StepRecords) -> bool:
    """Return whether `records` may be used for the step: all were sent at its end, or none was."""
    # Early records announce fewer batches than their workers train: then all must send theirs
    # once more.
    return not records.differ_in("late")


def stopping(wanting: Sequence[int]) -> tuple[bool, str]:
    """Return (whether all workers stop training after this step, the reason as a clause)."""
    if not wanting:
        return False, "no worker wants to stop training"
    verb = "wants" if len(wanting) == 1 else "want"
    return True, f"{_joined(wanting)} {verb} to stop training"


def wanting_to_stop(records: StepRecords) -> list[int]:
    """Return the ids, in rank order, of the workers whose `stop` in `records` is `WANTED`."""
    found: list[int] = records.column("worker")[records.column("stop") == Stop.WANTED].tolist()
    return found


def requested_batch(records: StepRecords) -> int:
    """Return the global batch of the next steps in samples, as the leader says; 0: no change."""
    wished = {*records.values("batch")} - {0}
    return wished.pop() if len(wished) == 1 else 0  # two may believe that they lead


def saves_parts(records: StepRecords) -> bool:
    """Return whether each worker saves its part of a checkpoint after the step of `records`."""
    return bool(records.column("save")[0])  # rank 0 says so


def global_samples(records: StepRecords) -> int:
    """Return N, how many samples enter the step: the sum of all `samples` in `records`."""
    return int(records.column("samples").sum())


def samples_for(records: StepRecords, optimizer: int) -> Column:
    """Return how many samples of each worker count for the optimizer with the index `optimizer`."""
    theirs: Column = records.column("samples") * (~records.column("counted") >> optimizer & 1)
    return theirs


def moves(records: StepRecords) -> Column:
    """Return how many positions leave the front of each worker's leases with this step."""
    samples, taken = records.column("samples"), records.column("taken")
    # A batch leaves them with the first of its steps.
    return np.where(records.column("part") > 0, 0, np.where(taken < 0, samples, taken))


def agreed_generation(records: StepRecords) -> tuple[int | None, str]:
    """Return (the generation to switch to after this step, or None; the reason as a clause)."""
    current, known = int(records.column("generation")[0]), records.column("newest_generation")
    target = int(known.max())
    if target <= current:
        return None, f"no worker knows a generation after {current}"
    behind = records.column("worker")[known < target]
    if behind.size:  # all must switch after the same step
        return None, f"generation {target} is not yet known to {names(behind.tolist())}"
    return target, f"all {len(records)} workers know generation {target}"


# ------------------------------------------------------------
# Find the worker that the others wait for in every step, from the times in the step records.


OF_STEPS = 50  # newest steps that are looked at
EVERY = 10  # steps between two looks
MIN_FACTOR = 2.0  # the others wait for a worker that takes this many times as long as they do,
MIN_DIFFERENCE_S = 0.01  # and this much longer; a smaller difference is the noise of a busy host


@dataclass(frozen=True)
class SlowestWorker:
    """A worker that is slower than the others, with the median times of a step."""

    worker: int
    own_s: float  # its median time in a step to wait for its batch and compute, not for others
    others_s: float  # the median of the others' medians

    def __str__(self) -> str:
        own, others = 1000.0 * self.own_s, 1000.0 * self.others_s
        return f"w{self.worker} computes {own:.0f} ms in a step, the others {others:.0f} ms"


class Slowest:
    """A detector of slow workers that reads the step records of one ring."""

    def __init__(self) -> None:
        self.found: SlowestWorker | None = None  # at the last comparison, also if returned before
        self._rows: deque[npt.NDArray[np.int64]] = deque(maxlen=OF_STEPS)
        self._seen = 0
        self._named: set[int] = set()

    def restart(self) -> None:
        """Forget the steps and the slow workers of the old ring."""
        self.found = None
        self._rows.clear()
        self._seen = 0
        self._named.clear()

    def look(self, records: StepRecords) -> SlowestWorker | None:
        """Add the times of a step, and return a worker that is found slow for the first time."""
        self._rows.append(records.column("compute_us") + records.column("data_us"))
        self._seen += 1
        if len(records) == 1 or self._seen < OF_STEPS or self._seen % EVERY:
            return None
        self.found = slow(records.values("worker"), np.stack(self._rows))
        if self.found is None or self.found.worker in self._named:
            return None
        self._named.add(self.found.worker)
        return self.found


def slow(workers: Sequence[int], compute_us: npt.NDArray[np.int64]) -> SlowestWorker | None:
    """Return the worker with the longest median step, with its times, if it is slow; else None."""
    usual_s = np.median(compute_us, axis=0) / 1e6
    at = int(usual_s.argmax())
    others_s = float(np.median(np.delete(usual_s, at)))
    own_s = float(usual_s[at])
    if own_s < MIN_FACTOR * others_s or own_s - others_s < MIN_DIFFERENCE_S:
        return None
    return SlowestWorker(workers[at], own_s, others_s)


# ------------------------------------------------------------
# Divide a switch or repair, or a checkpoint, into spans for a tracing system (OpenTelemetry).


SWITCH, CHECKPOINT = "edl.switch", "edl.checkpoint"
_WAIT = "edl.switch.wait"


@dataclass(frozen=True)
class TimedSpan:
    """A part of a switch or of a checkpoint."""

    name: str  # such as "edl.switch.init"
    parent: str  # the span that it is a part of; empty for the whole
    start_ns: int  # since 1970
    end_ns: int


def switch_spans(times: SwitchTimes, end_s: float) -> tuple[TimedSpan, ...]:
    """Return the spans of one worker's switch or repair: the whole, then its parts in order."""
    durations = {
        "edl.switch.detect": times.detect_us,
        _WAIT: times.wait_us,
        "edl.switch.shutdown": times.shutdown_us,
        "edl.switch.init": times.init_us,
        "edl.switch.broadcast": times.broadcast_us,
    }
    within_wait = {
        "edl.switch.election": times.election_us,
        "edl.switch.survivor_report": times.survivor_report_us,
    }
    end_ns = round(end_s * 1e9)  # since 1970
    start_ns = end_ns - 1000 * sum(durations.values())
    found = [TimedSpan(SWITCH, "", start_ns, end_ns)]
    for name, duration_us in durations.items():
        found += _parts({name: duration_us}, SWITCH, start_ns)
        if name == _WAIT:
            found += _parts(within_wait, _WAIT, start_ns)
        start_ns += 1000 * duration_us
    return tuple(found)


def checkpoint_spans(capture_s: float, write_s: float, end_s: float) -> tuple[TimedSpan, ...]:
    """Return the spans of a checkpoint: the whole, the copy of the state, and the writing."""
    end_ns = round(end_s * 1e9)  # since 1970
    written_ns = end_ns - round(write_s * 1e9)
    start_ns = written_ns - round(capture_s * 1e9)
    return (
        TimedSpan(CHECKPOINT, "", start_ns, end_ns),
        TimedSpan("edl.checkpoint.capture", CHECKPOINT, start_ns, written_ns),
        TimedSpan("edl.checkpoint.write", CHECKPOINT, written_ns, end_ns),
    )


def _parts(durations: dict[str, int], parent: str, start_ns: int) -> list[TimedSpan]:
    """Return spans one after the other, from `start_ns`; of 0 us, none."""
    found = []
    for name, duration_us in durations.items():
        end_ns = start_ns + 1000 * duration_us
        if duration_us:
            found.append(TimedSpan(name, parent, start_ns, end_ns))
        start_ns = end_ns
    return found
