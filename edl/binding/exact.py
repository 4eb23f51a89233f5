"""Compare what two workers compute for the same logical workers, on request (``--exact-audit``).

:class:`ExactAudit` is told the digests of each pass, and compares them at the end of the step;
:mod:`edl.step.state_check` says what is trained twice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, NoReturn, Protocol

from edl.errors import UsageError
from edl.events import ExactAuditDetails, StateDiffersDetails
from edl.step.engine import Batch
from edl.step.record import StepRecords
from edl.step.source import AlignedSource, Source
from edl.step.state_check import AuditMismatch, AuditTable, Pass
from edl.text import counted
from edl.worker.mismatch import let_leave
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Add tensors up so that the sum has the same bits in any order, and on any number of workers.
#
# A sum of floating-point numbers depends on its order, because each addition is rounded. Here no
# addition is: each summand is first rounded to a multiple of one *grain*, a power of two so coarse
# that float64 represents all sums of such multiples exactly. So partial sums can be added up in any
# order, by any allreduce. The grain follows from the largest summand of a tensor, of which it is
# some 2**-50: float32 numbers above 2**-25 of the largest keep all their bits, smaller ones lose
# their last. (The idea is that of reproducible summation by pre-rounding: J. Demmel and H. D.
# Nguyen, "Fast Reproducible Floating-Point Summation", ARITH 2013.)
#
# A number is rounded to a multiple of the grain by adding a large constant and subtracting it
# again: the addition rounds it. `rounding_constant` returns the constant, `add_rounded` adds, and
# `divide_into` makes the mean of the sum.


DIGITS = 51  # bits of float64's 53 that hold a sum; the constant's sign and leading bit need two
CHUNK = 1 << 16  # elements that are rounded at once, so that they stay in the processor's cache


def rounding_constant(largest: float, summands: int) -> float:
    """Return the constant by which sums of so many numbers, none above `largest`, are exact."""
    if not math.isfinite(largest):
        return math.inf  # by which each sum becomes nan
    if largest == 0.0:
        return 0.0
    exponent = math.frexp(largest)[1] + (summands - 1).bit_length()
    # The sum is below 2**exponent. Next to the constant, float64 has steps of one grain.
    grain = exponent - DIGITS
    return math.ldexp(1.5, grain + 52) if grain + 52 < 1024 else math.inf


def add_rounded(
    total: Any, summands: Sequence[tuple[Any, float]], constant: float, scratch: Any
) -> None:
    """Set `total` to the sum of `summands`, each rounded by `constant`; see the module."""
    # All have one dimension, of NumPy or of PyTorch; `total` and `scratch` are float64.
    chunk = max(1, len(scratch))
    for begin in range(0, len(total), chunk):
        sums = total[begin : begin + chunk]
        if not summands:
            sums[:] = 0.0
        for number, (summand, weight) in enumerate(summands):
            rounded = scratch[: len(sums)] if number else sums
            rounded[:] = summand[begin : begin + chunk]
            if weight != 1.0:
                rounded *= weight
            rounded += constant
            rounded -= constant
            if number:
                sums += rounded


def divide_into(
    result: Any, total: Any, divisor: float, whole: bool = False, chunk: int = CHUNK
) -> None:
    """Set `result` to `total` divided by `divisor`; `total` is changed, too."""
    for begin in range(0, len(total), chunk):
        part = total[begin : begin + chunk]
        part /= divisor
        result[begin : begin + chunk] = part.round() if whole else part


# ------------------------------------------------------------
# Compute means over all logical workers with the same bits, on any number of workers.
#
# `exact_means` does it for the gradients and buffers of a step, with the arrays of any framework
# (`ArrayKind`); `exact_sum` is how the sums are exact.


class Summands(NamedTuple):
    """The summands of one mean that come from the logical workers of this worker."""

    target: Any  # an array, variable or description with the shape and type of the mean
    own: list[tuple[Any, float]]  # values, weight; the mean may take the memory of the first
    divisor: float  # of the sum over all workers
    counts: bool = True  # a mean that counts on no worker is not computed
    base: Any = None  # values, equal on all workers, that are summands on some of them


class ArrayKind(Protocol):
    """The arrays of one framework, of which exact means are computed; a complex number is two."""

    def largest(self, values: Sequence[Any]) -> list[float]:
        """Return for each array the largest absolute value in it that is finite, or 0.0."""

    def add_up(self, rows: Sequence[Summands], constants: Sequence[float]) -> Any:
        """Return this worker's sums, those of all rows in one float64 array, in order."""

    def means(self, rows: Sequence[Summands], sums: Any) -> list[Any]:
        """Return each row's part of `sums`, which may be overwritten, by its divisor."""


Together = Callable[[Any, str], Any]  # (array or floats, "sum" or "max"): that of all workers


def logical_workers_of_step(source: Source, records: StepRecords | None, total: int) -> int:
    """Return how many logical workers train in the open step, on all workers."""
    unit = source.batching.micro_batch  # in a warm-up, which has no records
    if records is not None and isinstance(source, AlignedSource):
        positions = records.column("position")
        unit = source.units.at(int(positions[positions >= 0].min()))
    return -(-total // unit)


def exact_means(
    rows: Sequence[Summands],
    pieces: int,  # logical workers that train in the step, on all workers
    alike: Sequence[tuple[int, str]],  # numbers below 2**53, and the error if they differ
    arrays: ArrayKind,
    together: Together,
) -> list[Any]:
    """Return the mean of each row over all logical workers; None where no worker's row counts."""
    bounds = together(_bounds(rows, arrays) + _doubled(alike), "max")
    _refuse_unlike(alike, bounds[len(rows) :])
    counting = [index for index in range(len(rows)) if bounds[index] >= 0.0]
    found = [rows[index] for index in counting]
    largest = _with_bases(found, [bounds[index] for index in counting], arrays)
    constants = [rounding_constant(bound, pieces) for bound in largest]
    sums = together(arrays.add_up(found, constants), "sum")
    means: list[Any] = [None] * len(rows)
    for index, mean in zip(counting, arrays.means(found, sums), strict=True):
        means[index] = mean
    return means


def check_alike(alike: Sequence[tuple[int, str]], together: Together) -> None:
    """Raise UsageError if a number differs between workers; see `exact_means`."""
    _refuse_unlike(alike, together(_doubled(alike), "max"))


def _doubled(alike: Sequence[tuple[int, str]]) -> list[float]:
    return [signed for number, _ in alike for signed in (float(number), -float(number))]


def _refuse_unlike(alike: Sequence[tuple[int, str]], largest: Sequence[float]) -> None:
    """Raise UsageError for a number whose largest value is not its smallest; see `_doubled`."""
    for index, (_, refusal) in enumerate(alike):
        if largest[2 * index] != -largest[2 * index + 1]:
            raise UsageError(refusal)


def _bounds(rows: Sequence[Summands], arrays: ArrayKind) -> list[float]:
    """Return for each row that counts the largest finite absolute value times weight, or -1.0."""
    own = [row.own if row.counts else [] for row in rows]
    largest = iter(arrays.largest([values for some in own for values, _ in some]))
    return [max((next(largest) * weight for _, weight in some), default=-1.0) for some in own]


def _with_bases(
    rows: Sequence[Summands], bounds: Sequence[float], arrays: ArrayKind
) -> list[float]:
    based = [index for index, row in enumerate(rows) if row.base is not None]
    found = [*bounds]
    largest = arrays.largest([rows[index].base for index in based])
    for index, one in zip(based, largest, strict=True):
        found[index] = max(found[index], one)
    return found


DIFFERS = (
    "exact audit of step {step}, logical worker {logical}: {workers} computed different values of "
    "{name} from the same weights, samples and seeds. Something else enters the result: the "
    "section Audit of docs/guides/exact.md says what to look for"
)


class ExactAudit:
    """The comparison of the passes of audited steps, in one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._step = -1  # that the passes are of
        self._passes: dict[Pass, Mapping[str, int]] = {}
        self._steps = self._compared = self._apart = 0  # since the last event
        self._has_said = False  # that this audit goes well so far
        self._newest: Batch | None = None

    @property
    def is_on(self) -> bool:
        """Whether the open step is audited; the same on all workers."""
        return self._worker.loader.sampler.audit.left > 0 and not self._worker.warming_up

    def begin_pass(self, step: int) -> None:
        """Note the batch that the script gets now, in the open step with the number `step`."""
        if step != self._step:
            self._step, self._passes = step, {}
        self._newest = self._worker.loader.engine.batches.newest

    def end_pass(self, digests: Callable[[], Mapping[str, int]]) -> None:
        """Note the results of the pass that has ended, if its step is audited."""
        batch, loader = self._newest, self._worker.loader
        if batch is None or not self.is_on or not (batch.repeats or loader.batch_weight):
            return  # a padding batch has no results
        source = loader.progress.source
        logical = batch.position % source.batch_size // source.units.at(batch.position)
        self._passes[Pass(logical, batch.repeats)] = digests()

    def compare(
        self,
        names: Sequence[str],
        logical: int,
        alike: Sequence[tuple[int, str]],
        together: Together,
    ) -> None:
        """Compare the passes of all workers in an audited step, before gradients are added up."""
        if not self.is_on:
            return
        check_alike(alike, together)  # first, because a difference here explains others
        table = AuditTable(logical, names)
        found = table.compare(together(table.filled(self._worker.id, self._passes), "sum"))
        if found.difference is not None:
            self._end(found.difference)
        self._steps, self._compared = self._steps + 1, self._compared + found.compared
        self._apart += found.on_two_workers
        left = self._worker.loader.sampler.audit.left - 1
        if left == 0 or not self._has_said or self._is_last_of_epoch():
            self._log(left)
            self._has_said = left > 0

    def _end(self, found: AuditMismatch) -> NoReturn:
        """End a newcomer whose result differs, or the job; see `compare`."""
        worker, loader = self._worker, self._worker.loader
        first, second = f"w{found.worker}", f"w{found.repeated_by}"
        by = f"{first} has twice" if first == second else f"{first} and {second} have"
        text = DIFFERS.format(
            step=worker.step + 1, name=found.name, logical=found.logical, workers=by
        )
        newcomer = found.differing_newcomer(loader.sampler.audit.newcomers)
        if newcomer is not None:
            worker.log_event(StateDiffersDetails((f"w{newcomer}",)), text)
            let_leave(worker.ring, loader.progress.members, [newcomer], text)
        worker.checkpointing.fail_together(text, worker.rank)  # rank 0 saves the state before

    def _is_last_of_epoch(self) -> bool:
        """Return whether no global batch of the epoch is left after the open step."""
        source, batches = self._worker.loader.progress.source, self._worker.loader.engine.batches
        assert isinstance(source, AlignedSource)
        positions = [batch.position for batch in batches.untrained]
        return (
            bool(positions)
            and max(positions) // source.batch_size == -(-source.total // source.batch_size) - 1
        )

    def _log(self, left: int) -> None:
        """Add an event about the audited steps since the last one; `left` more are to come."""
        steps, compared, apart = self._steps, self._compared, self._apart
        self._steps = self._compared = self._apart = 0
        if not compared:
            return
        by = "another worker" if apart else "the only worker"
        twice = f"{by} has trained {counted(apart or compared, 'logical worker')} a second time"
        reason = f"in {counted(steps, 'step')} {twice}, with the same bits"
        more = f"; {counted(left, 'audited step')} to come" if left else ""
        self._worker.log_event(ExactAuditDetails(steps, compared, apart), reason + more)
