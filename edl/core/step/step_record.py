"""The step record: what the workers of a ring exchange once a step, and what follows.

Each worker contributes one row of int64 to a small allgather that starts when the batch is
handed out and is awaited before the update is applied. All workers then hold the same table of
shape ``(size, WIDTH)``, rows in rank order, and run the same functions on it, so they agree on
the weights of the step, on the ledger and on when to switch, with no further message. What each
step looks at is read by columns (:class:`StepRecords`): a job has a thousand rows, and a step some
milliseconds.

A row is trusted for what it says of its own worker only. Rows of one table that disagree about
generation, step, epoch or ledger are a bug of ours or a worker that took a wrong turn;
:func:`check` finds them before a gradient is applied.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from enum import IntEnum
from typing import overload

import numpy as np
import numpy.typing as npt

from edl.core.events import SwitchParts
from edl.core.plural import names
from edl.errors import RingError, UnevenEnd

Table = npt.NDArray[np.int64]
Column = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class SwitchTimes:
    """The parts of a worker's last switch, in microseconds of its own clock.

    Planned: the old members meet (``wait``), leave the old ring (``shutdown``), build the new one
    (``init``) and exchange the state (``broadcast``); ``stall`` is all of it. For a newcomer
    ``wait`` is before the switch and no part of ``stall``.

    A repair: the worker waits in a call that will fail (``detect``; a bound from above, for a part
    of it would have been waited in a whole ring too), then learns of a new leader, if the old one
    is gone (``election``), then of the generation of the survivors (``survivor_report``). When
    several failures followed each other, these three are of the last. ``wait`` is from the first
    failure known until the last rebuild begins: election, survivor report, closing the old ring
    beside them, and rebuilds that failed. ``stall`` does not include ``detect``.

    ``first_step`` is from the end of the switch until the next step is complete; ``median_step``
    is this worker's usual step before the switch.
    """

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
        """The parts as the event log has them."""
        seconds = {f"{name.removesuffix('_us')}_s": getattr(self, name) / 1e6 for name in PARTS}
        return SwitchParts(role, **seconds)


PARTS = tuple(field.name for field in fields(SwitchTimes))


def us(seconds: float) -> int:
    """Microseconds, for the step record."""
    return round(seconds * 1e6)


def repair_times(waiting_since: float, known: float, led_since: float, heard: float) -> SwitchTimes:
    """What went before a rebuild, from readings of one worker's clock, in seconds.

    Args:
        waiting_since: it began to wait in the call that failed.
        known: it knew that the ring is broken.
        led_since: it heard of the term of the present leader. That may have been long before the
            failure, or after the repair was decided in an earlier term.
        heard: it heard of the generation that repairs; before ``known`` when that made it fail.
    """
    heard = max(known, heard)
    elected = max(known, min(led_since, heard))
    return SwitchTimes(
        detect_us=us(known - waiting_since),
        election_us=us(elected - known),
        survivor_report_us=us(heard - elected),
    )


class Stop(IntEnum):
    """What a worker's row says about the end of the training."""

    NO = 0
    WANTED = 1  # its script wants to stop: all do, after this step
    LEFT = 2  # its script has left the loop with the batch of this step, and sends no gradients
    FINISHED = 3  # it has trained to its end, and is in no step
    ENDED = 4  # its script has ended, perhaps inside an epoch, and it is in no step
    SAVED = 5  # and if it is the one who saves, the last checkpoint is written
    UNSAVED = 6  # and could not be written


@dataclass(frozen=True)
class StepRecord(SwitchTimes):
    """One worker's row. All fields are integers; times in microseconds.

    ``samples`` is how many samples of this worker enter the step, taken from the front of its
    leases; ``position`` is the epoch position of the first of them (-1 without any: the worker
    had no data and repeats a batch that counts for nothing).
    ``taken``: of a stream (:mod:`edl.core.step.stream`), how many positions leave the front of its
    leases, nothing included; -1: as many as samples. ``end``: the position at which it has found a
    shared stream to end, or -1.
    ``wanted`` is how many more samples it needs leases for, so that its loader never waits; of a
    stream, shards.
    ``batches`` is how many batches of its loader the samples are from, padding included: one,
    unless it accumulates gradients. ``late``: the row is sent at the end of the step then; 0: when
    the first batch is handed out.
    ``part``: 0 in the first step of a batch. With several optimizers it may have more, on the same
    samples. ``counted``: the optimizers, as bits, for which these samples count for nothing, since
    they have counted them with a worker that went then. ``updated``: the optimizers, as bits, that
    have made their updates in the step before.
    ``ledger`` is the digest of its ledger before this step.
    ``newest_generation`` is the newest one that it knows to be prepared, its own at least.
    ``stop`` is a :class:`Stop`.
    ``state`` is the digest of what all workers hold alike, after the last step; 0: not due.
    ``wish``: so many workers more, or fewer, its script wants; 0 also if it has no wishes.
    ``batch``: the global batch that is to be, of the worker that leads; 0: as it is.
    ``own_square`` and ``mean_square``: of the last step, the squared norms of its own gradient and
    of the job's, as the bits of a float64; 0: not measured (:mod:`edl.core.step.noise_scale`).
    ``data_us``, ``compute_us`` and ``reduce_us`` describe its last step: how long it waited for its
    batch; all between that was its own; and from its gradients to the mean of all. The
    other ``*_us`` fields are of its last switch; all rows of a table together report that one.
    """

    generation: int
    step: int
    worker: int
    epoch: int
    samples: int
    position: int
    wanted: int
    newest_generation: int
    ledger: int
    batches: int = 1
    late: int = 0
    part: int = 0
    counted: int = 0
    updated: int = 0
    taken: int = -1
    end: int = -1
    stop: int = Stop.NO
    state: int = 0
    compute_us: int = 0
    data_us: int = 0
    reduce_us: int = 0
    size_change: int = 0
    batch: int = 0
    own_square: int = 0
    mean_square: int = 0

    def encode(self) -> Table:
        """The row, shape ``(1, WIDTH)``."""
        return np.array([[getattr(self, name) for name in FIELDS]], dtype=np.int64)


FIELDS = (*(f.name for f in fields(StepRecord) if f.name not in PARTS), *PARTS)
WIDTH = len(FIELDS)


class StepRecords(Sequence[StepRecord]):
    """The records of all workers in one step, in rank order.

    ``records.column("step")`` has shape ``(size,)``; ``records[rank]`` and a loop make objects.
    """

    def __init__(self, table: Table) -> None:
        """Args:
            table: of shape ``(size, WIDTH)``; it is not copied.

        Raises:
            RingError: it has another shape.
        """
        if table.ndim != 2 or table.shape[1] != WIDTH:
            raise RingError(
                f"a step-record table has shape {table.shape}; expected (size, {WIDTH})"
            )
        self._table = table

    @classmethod
    def of(cls, records: Sequence[StepRecord]) -> StepRecords:
        """Those of ``records``, in this order."""
        return cls(np.concatenate([record.encode() for record in records]))

    def column(self, name: str) -> Column:
        """A field of all records."""
        return self._table[:, _COLUMN[name]]

    def values(self, name: str) -> list[int]:
        """The same as Python's integers, which loops are faster with."""
        found: list[int] = self.column(name).tolist()
        return found

    def differ_in(self, name: str) -> bool:
        """Whether not all have the same value."""
        column = self.column(name)
        return bool((column != column[0]).any())

    def __len__(self) -> int:
        return len(self._table)

    @overload
    def __getitem__(self, at: int) -> StepRecord: ...
    @overload
    def __getitem__(self, at: slice) -> StepRecords: ...
    def __getitem__(self, at: int | slice) -> StepRecord | StepRecords:
        if isinstance(at, slice):
            return StepRecords(self._table[at])
        return StepRecord(**dict(zip(FIELDS, self._table[at].tolist(), strict=True)))


_COLUMN = {name: at for at, name in enumerate(FIELDS)}


def check(records: StepRecords) -> None:
    """Make sure that all workers are in the same step with the same ledger.

    Raises:
        RingError: naming the workers that disagree, the field and the values.
    """
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
    """Make sure that the same optimizers have made updates on all workers, in the same order."""
    if records.differ_in("part") or records.differ_in("updated"):
        step = records[0].step
        text = ", ".join(f"w{each.worker}: {_where(each)}" for each in records)
        raise RingError(
            f"the workers' optimizers do not take turns alike before step {step} ({text}); "
            "which of them make an update, and in which order, must be equal on all workers"
        )


def _where(record: StepRecord) -> str:
    """Which optimizers have made an update, counted from 1, and what follows."""
    bits = range(record.updated.bit_length())
    turns = [str(number + 1) for number in bits if record.updated >> number & 1]
    then = "the same batch" if record.part else "the next batch"
    return f"{' and '.join(turns) or 'none'}, then {then}"


def check_together(records: StepRecords) -> None:
    """Make sure that nobody has left an epoch, or the training, in which others go on.

    Raises:
        UnevenEnd: naming those that have left and those that go on.
    """
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


def _scripts_ended(records: StepRecords, left: npt.NDArray[np.bool_]) -> str:
    """The sentence for an end of scripts while the workers that are not ``left`` train on."""
    workers = records.column("worker")
    ended = records[int(left.argmax())]
    others = int((~left).sum())
    their, train = ("its" if left.sum() == 1 else "their"), ("trains" if others == 1 else "train")
    where = "inside" if records[int(left.argmin())].epoch == ended.epoch else "after"
    return (
        f"{_joined(workers[left])} ended {their} script after step {ended.step}, {where} epoch "
        f"{ended.epoch}, and {_joined(workers[~left])} {train} on; all workers must end after the "
        "same step: count the steps of the job, not those of a worker, by `for batch in "
        f"loader.steps({ended.step})` or `while edl.step() < {ended.step}`"
    )


def _joined(ids: Iterable[int]) -> str:
    return " and ".join(f"w{worker}" for worker in sorted(ids))


def counts(records: StepRecords) -> bool:
    """Whether these are the records of a step: all were sent at its end, or none.

    Else some do not know yet that gradients are accumulated, and have said less than they bring.
    All send once more.
    """
    return not records.differ_in("late")


def stopping(wanting: Sequence[int]) -> tuple[bool, str]:
    """Whether all stop training now, and why, given the ids of the workers that want to."""
    if not wanting:
        return False, "no worker wants to stop training"
    verb = "wants" if len(wanting) == 1 else "want"
    return True, f"{_joined(wanting)} {verb} to stop training"


def wanting_to_stop(records: StepRecords) -> list[int]:
    """The workers whose scripts want to stop after this step."""
    found: list[int] = records.column("worker")[records.column("stop") == Stop.WANTED].tolist()
    return found


def requested_batch(records: StepRecords) -> int:
    """The global batch that is to be, as the leader's row says; 0: as it is.

    So it is, too, while two believe to lead and wish different ones.
    """
    wished = {*records.values("batch")} - {0}
    return wished.pop() if len(wished) == 1 else 0


def global_samples(records: StepRecords) -> int:
    """N: how many samples enter the step, over all workers."""
    return int(records.column("samples").sum())


def samples_for(records: StepRecords, optimizer: int) -> Column:
    """How many samples of each worker count for one of the optimizers."""
    theirs: Column = records.column("samples") * (~records.column("counted") >> optimizer & 1)
    return theirs


def moves(records: StepRecords) -> Column:
    """How many positions leave the leases of each worker: with the first part of a batch."""
    samples, taken = records.column("samples"), records.column("taken")
    return np.where(records.column("part") > 0, 0, np.where(taken < 0, samples, taken))


def agreed_generation(records: StepRecords) -> tuple[int | None, str]:
    """The generation to switch to after this step, or None; and why.

    All rows must know the same newer generation: then each worker knows that every other one
    switches after the same step. A switch needs no guess about how long a message takes.
    """
    current, known = int(records.column("generation")[0]), records.column("newest_generation")
    target = int(known.max())
    if target <= current:
        return None, f"no worker knows a generation after {current}"
    behind = records.column("worker")[known < target]
    if behind.size:
        return None, f"generation {target} is not yet known to {names(behind.tolist())}"
    return target, f"all {len(records)} workers know generation {target}"


def switch_parts(records: StepRecords, joined: Sequence[int]) -> dict[str, SwitchParts]:
    """The parts of the last switch for each worker by name; ``joined`` were new in it."""
    return {
        f"w{record.worker}": record.parts("new" if record.worker in joined else "old")
        for record in records
    }
