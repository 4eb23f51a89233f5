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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from edl.core.plural import names
from edl.core.switch_parts import SwitchParts
from edl.errors import RingError, UnevenEnd

Table = npt.NDArray[np.int64]
Column = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SwitchTimes:
    """The durations of a worker's last switch or repair, in microseconds of its own clock."""

    detect_us: int = 0
    election_us: int = 0
    survivor_report_us: int = 0
    wait_us: int = 0
    shutdown_us: int = 0
    init_us: int = 0
    broadcast_us: int = 0
    stall_us: int = 0
    first_step_us: int = 0
    median_step_us: int = 0

    def parts(self, role: str) -> SwitchParts:
        """The durations in seconds, all ten of them, as the record that the event log takes"""
        seconds = {f"{name.removesuffix('_us')}_s": getattr(self, name) / 1e6 for name in PARTS}
        return SwitchParts(role, **seconds)


PARTS = tuple(field.name for field in fields(SwitchTimes))


def us(seconds: float) -> int:
    """Return `seconds` rounded to whole microseconds, the unit of times in a step record."""
    return round(seconds * 1e6)


def repair_times(waiting_since: float, known: float, led_since: float, heard: float) -> SwitchTimes:
    """Divide the time from a failure until a worker knew of the ring's repair into three parts."""
    # The result has the parts `detect_us` (`waiting_since` to `known`), `election_us` (`known` to
    # `led_since`) and `survivor_report_us` (from then to `heard`); the last two are never negative.
    # `heard`: when it heard of the generation that repairs the ring; before `known` if the call
    # failed only because that generation had come.
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

    generation: int  # the generation of the ring
    step: int  # the number of the step: how many steps the job has completed before it
    worker: int  # the worker's id
    epoch: int  # the number of the epoch
    # how many samples of this worker enter the step, from the front of its leases; 0 for a padding
    # batch
    samples: int
    # the position in the epoch of the first of these samples; -1 without any: the worker had no
    # data and trains a padding batch
    position: int
    # how many samples the worker needs in leases beyond those that it holds, so that its loader
    # never waits; for a stream that is not shared, how many shards. 0: none.
    wanted: int
    # the newest generation that the worker knows to be prepared; its own at least
    newest_generation: int
    ledger: int  # the digest of the worker's ledger before this step
    # how many batches of its loader the samples are from, padding included: one, unless it
    # accumulates gradients
    batches: int = 1
    # 1 if the row is sent at the end of the step, because gradients are accumulated; 0: when the
    # first batch is handed out
    late: int = 0
    # the index of the step among the steps of its batch: 0, unless several optimizers make their
    # updates one after the other on the same samples
    part: int = 0
    # the optimizers, as bits, that have applied these samples already, because another worker
    # trained them and left in the middle of its batch; for these optimizers the samples do not
    # count
    counted: int = 0
    updated: int = 0  # the optimizers, as bits, that made their updates in the step before this one
    # for a stream (`stream`), how many positions leave the front of the worker's leases, empty ones
    # included; -1: as many as samples
    taken: int = -1
    end: int = -1  # the position at which the worker has found a shared stream to end; -1: none
    stop: int = Stop.NO
    # the digest of the part of the training state that is compared with this row; it must be equal
    # on all workers after the last step. 0: this row compares nothing.
    state: int = 0
    # the digest of the values that the model sets from its batches; 0: not compared
    buffers: int = 0
    # the time of the last step that was neither waiting for the batch nor for others
    compute_us: int = 0
    data_us: int = 0  # how long the worker waited for its batch in the last step
    reduce_us: int = 0  # the time from the worker's gradients to the mean of all, in the last step
    # how many workers the worker's script wants to add (negative: remove); 0: none
    size_change: int = 0
    # the next global batch, in samples, that the worker sets because it leads; 0: the global batch
    # stays, or the worker does not lead
    batch: int = 0
    # the squared norm of the worker's gradient in the last step, as the bits of a float64; 0: not
    # measured (`noise_scale`)
    own_square: int = 0
    # the squared norm of the job's gradient in the last step, as the bits of a float64; 0: not
    # measured
    mean_square: int = 0
    # 1 if the worker, as rank 0, wants all workers to save their parts of a checkpoint after this
    # step; else 0
    save: int = 0
    # what the worker calls between two steps, such as `edl.mean`, as a digest, and above its 33
    # bits the size of the message, if all must send as much; 0: it is in a step, or exchanges
    # nothing. Rows of one table that differ in it are of workers at different points of the script
    # (`mismatch`).
    exchange: int = 0
    # the lines of the script that call it, as a digest; negative: two workers or more have not
    # called it at these lines together before
    site: int = 0
    # the length of the message that it sends to all, which is in the row itself if it has at most
    # `PAYLOAD_BYTES`
    payload_bytes: int = 0
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
    # The fields `generation`, `step`, `epoch`, `part`, `updated` and `ledger` must be equal in all
    # records, and each worker must have one record only.
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
    """Return in words which optimizers of one worker made updates before the step of `record`."""
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
            raise UnevenEnd(_scripts_ended(records, left))
        behind = records[int(left.argmin())]
        raise UnevenEnd(
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
    """Return the error message for workers whose scripts have ended while other workers train on"""
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
    # The result is False if both kinds are in the table: then the early records announce fewer
    # batches than their workers train, and all workers must send their records once more.
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
    """The global batch of the next steps in samples, as the leader's row says; 0: no change"""
    wished = {*records.values("batch")} - {0}
    return wished.pop() if len(wished) == 1 else 0


def saves_parts(records: StepRecords) -> bool:
    """Return whether each worker saves its part of a checkpoint after the step of `records`."""
    return bool(records.column("save")[0])


def global_samples(records: StepRecords) -> int:
    """Return N, how many samples enter the step: the sum of all `samples` in `records`."""
    return int(records.column("samples").sum())


def samples_for(records: StepRecords, optimizer: int) -> Column:
    """Return how many samples of each worker count for the optimizer with the index `optimizer`."""
    theirs: Column = records.column("samples") * (~records.column("counted") >> optimizer & 1)
    return theirs


def moves(records: StepRecords) -> Column:
    """How many positions leave the front of each worker's leases when this step is complete"""
    samples, taken = records.column("samples"), records.column("taken")
    return np.where(records.column("part") > 0, 0, np.where(taken < 0, samples, taken))


def agreed_generation(records: StepRecords) -> tuple[int | None, str]:
    """Return (the generation to switch to after this step, or None; the reason as a clause)."""
    current, known = int(records.column("generation")[0]), records.column("newest_generation")
    target = int(known.max())
    if target <= current:
        return None, f"no worker knows a generation after {current}"
    behind = records.column("worker")[known < target]
    if behind.size:
        return None, f"generation {target} is not yet known to {names(behind.tolist())}"
    return target, f"all {len(records)} workers know generation {target}"


def switch_parts(records: StepRecords, joined: Sequence[int]) -> dict[str, SwitchParts]:
    """Return each worker's durations of the last switch, by the name of the worker ("w3")."""
    return {
        f"w{record.worker}": record.parts("new" if record.worker in joined else "old")
        for record in records
    }
