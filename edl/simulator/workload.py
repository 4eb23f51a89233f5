"""Define the jobs of a simulation, and read them from a CSV file: :func:`read_trace`.

:class:`SubmittedJob` is a job, :class:`JobWork` the interface of its work, which the simulator
knows and a policy does not. A job of a file has a known duration (:class:`TimedWork`). Such a file
has one job a row, with columns by name, in any order; an empty cell counts as a missing column:

==================  ============================================================================
name                the name of the job; no two jobs have the same
time_s              the time of submission, in seconds, 0 or more
slots               the number of slots that its user requests
min_slots           the fewest slots that an elastic policy may give; default: slots
max_slots           the most slots that an elastic policy may give; default: slots
duration_s          the seconds that the job takes with ``slots``
parallel_fraction   the fraction of its work that more slots share (Amdahl), 0 to 1; default: 1
weight              the weight in policies that share slots by weight, above 0; default: 1
==================  ============================================================================
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edl.cluster.state import EXACT, StepTimeError, TrainingModel
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample

# A step that a job has made, and the noise scale of its gradients in samples; None: not known.
Observation = tuple[StepTimeSample, float | None]


class JobWork(Protocol):
    """The interface of the work that a job has to do, with its true speed by slots and batch."""

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, at least 1."""

    def end_of(self, epoch: int) -> float:
        """Return the progress at which epoch number `epoch`, counted from 0, ends."""

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress per second, without interference, on nodes of relative speed 1."""

    def model(self, epoch: int, progress: float) -> TrainingModel:
        """Return the model by which policies predict the job's step time and remaining steps."""

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time and the gradient noise scale that the job itself would measure."""


@dataclass(frozen=True)
class SubmittedJob:
    """A job as its user submits it, with the work that it really takes."""

    name: str  # the name of the job, unique in a run
    arrival_s: float  # the time of submission, in seconds
    work: JobWork  # the work that the job has to do; policies do not see it
    requested_slots: int  # by its user, between the two limits
    min_slots: int  # the fewest and the most slots that a policy may give it
    max_slots: int
    batch: int = 1  # the global batch that its user requests, in samples
    batches: tuple[int, int] = (1, 1)  # the limits of the global batch that a policy may choose
    preemptible: bool = True  # else it keeps the slots that it was first given until it ends
    # the fewest samples of a step that one slot can train, and the most that it can train at once
    # (a larger share is accumulated); None: there is no limit
    local_batches: tuple[int, int] | None = None
    kind: str = ""  # the kind of job (like the name of its application), for tables; may be empty
    weight: float = 1.0  # its weight in policies that share slots by weight; above 0


@dataclass(frozen=True)
class TimedWork:
    """The work of a job that takes a known time with a certain number of slots."""

    duration_s: float  # the seconds that the work takes with `slots` slots, above 0
    slots: int  # the number of slots for which the duration is known, at least 1
    parallel_fraction: float = 1.0  # of the work that is divided among the slots, 0 to 1

    @property
    def epochs(self) -> int:
        return 1

    def end_of(self, epoch: int) -> float:
        return 1.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress per second, a fraction of the whole work, by Amdahl's law."""
        return 1 / self.whole_s(sum(slots))

    def model(self, epoch: int, progress: float) -> TimedModel:
        return TimedModel(self, 1 - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        whole_s = self.whole_s(sum(slots))
        return StepTimeSample(sum(slots), len(slots), batch / sum(slots), whole_s, whole_s), None

    def whole_s(self, slots: int) -> float:
        return self.duration_s * self._time(slots) / self._time(self.slots)

    def _time(self, slots: int) -> float:
        return 1 - self.parallel_fraction + self.parallel_fraction / slots


@dataclass(frozen=True)
class TimedModel:
    """The model that policies get of a `TimedWork`: its true speed, all work being one step."""

    work: TimedWork  # the work of the job
    left: float  # the fraction of the work that is yet to be done, 0 to 1

    @property
    def error(self) -> StepTimeError:
        return EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of the single step, which is the whole work, done or not."""
        return self.work.whole_s(sum(slots))

    def efficiency(self, batch: int) -> float:
        """Return 1, the statistical efficiency: a sample is worth the same in any `batch`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        return self.left


REQUIRED = ("name", "time_s", "slots", "duration_s")
COLUMNS = (*REQUIRED, "min_slots", "max_slots", "parallel_fraction", "weight")
Cells = Mapping[str | None, str | list[str] | None]  # None: the cells beyond the last column


def read_trace(path: Path, cluster_slots: int) -> list[SubmittedJob]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_trace(file, str(path), cluster_slots)
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the trace {path} is no CSV file: {error}") from None


def parse_trace(lines: Iterable[str], where: str, cluster_slots: int) -> list[SubmittedJob]:
    reader = csv.DictReader(lines)
    header = reader.fieldnames or ()
    columns = f"columns are {', '.join(COLUMNS)}"
    for column in REQUIRED:
        if column not in header:
            raise UsageError(f"{where}, line 1: there is no column {column}; {columns}")
    for column in header:
        if column not in COLUMNS:
            raise UsageError(f"{where}, line 1: there is no use for column {column!r}; {columns}")
    jobs: list[SubmittedJob] = []
    first: dict[str, int] = {}
    for row in reader:
        line = reader.line_num
        try:
            job = _job(row, cluster_slots)
            if job.name in first:
                raise UsageError(
                    f"job {job.name} is on line {first[job.name]}, too; names must differ"
                )
        except UsageError as error:
            raise UsageError(f"{where}, line {line}: {error}") from None
        first[job.name] = line
        jobs.append(job)
    if not jobs:
        raise UsageError(f"{where} has no jobs: a line with the columns' names, then one a job")
    return jobs


def _job(cells: Cells, cluster_slots: int) -> SubmittedJob:
    if None in cells:
        raise UsageError("it has more cells than there are columns")
    name = _text(cells, "name")
    if not name:
        raise UsageError("the job has no name")
    arrival_s = _number(cells, "time_s")
    slots = _whole(cells, "slots")
    if slots > cluster_slots:
        raise UsageError(
            f"job {name} requests {slots} slots, and the cluster has {cluster_slots}; give it "
            "fewer, or the cluster more with --nodes"
        )
    weight = _number(cells, "weight", 1.0)
    if weight == 0:
        raise UsageError("weight is 0; it must be more")
    duration_s = _number(cells, "duration_s")
    if duration_s == 0:
        raise UsageError("duration_s is 0; a job takes some time")
    fraction = _number(cells, "parallel_fraction", 1.0)
    if fraction > 1:
        raise UsageError(f"parallel_fraction is {fraction:g}; it must be 0 to 1")
    least, most = _whole(cells, "min_slots", slots), _whole(cells, "max_slots", slots)
    if not least <= slots <= most:
        raise UsageError(
            f"slots is {slots}; it must lie between min_slots, {least}, and max_slots, {most}"
        )
    work = TimedWork(duration_s, slots, fraction)
    return SubmittedJob(name, arrival_s, work, slots, least, most, weight=weight)


def _text(cells: Cells, column: str) -> str:
    cell = cells.get(column)
    return cell.strip() if isinstance(cell, str) else ""


def _number(cells: Cells, column: str, default: float | None = None) -> float:
    text = _text(cells, column)
    if not text and default is not None:
        return default
    try:
        number = float(text)
    except ValueError:
        raise UsageError(f"{column} is {text!r}; write a number") from None
    if not 0 <= number < math.inf:
        raise UsageError(f"{column} is {text}; it must be 0 or more")
    return number


def _whole(cells: Cells, column: str, default: int | None = None) -> int:
    number = _number(cells, column, default)
    if number != int(number) or number < 1:
        raise UsageError(f"{column} is {number:g}; write a whole number, 1 or more")
    return int(number)
