"""Read jobs from a CSV file: one job a row, with columns by name, in any order.

:func:`read_trace` reads it.

==================  ============================================================================
name                the name of the job; no two jobs have the same
time_s              the time of submission, in seconds, 0 or more
slots               the number of slots that its user requests
min_slots           the fewest slots that an elastic policy may give; default: slots
max_slots           the most slots that an elastic policy may give; default: slots
duration_s          the seconds that the job takes with ``slots``
parallel_fraction   the fraction of its work that more slots share (Amdahl), 0 to 1; default: 1
application         a measured application of Pollux, in place of duration_s: bert, cifar10, ...
batch_size          the samples of a step, of all slots together; with application only
weight              the weight in policies that share slots by weight, above 0; default: 1
==================  ============================================================================

A job has either a duration or an application and a batch; if it has both, its duration is ignored.
An empty cell counts as a missing column.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from edl.errors import UsageError
from edl.simulator.published.workloads.application import interpolator
from edl.simulator.published.workloads.pollux_measurements import measured_applications
from edl.simulator.published.workloads.pollux_workload import MOST_SLOTS, application_job
from edl.simulator.workload import SubmittedJob, TimedWork

REQUIRED = ("name", "time_s", "slots")
OPTIONAL = ("min_slots", "max_slots", "duration_s", "parallel_fraction", "application", "weight")
COLUMNS = (*REQUIRED, *OPTIONAL, "batch_size")


def read_trace(path: Path, cluster_slots: int) -> list[SubmittedJob]:
    """Return the jobs of the CSV file at `path`, in the order of its rows."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            return parse_trace(file, str(path), cluster_slots)
    except OSError as error:
        raise UsageError(f"the trace {path} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"the trace {path} is no CSV file: {error}") from None


def parse_trace(lines: Iterable[str], where: str, cluster_slots: int) -> list[SubmittedJob]:
    """Return the jobs of the lines of a CSV file, in the order of its rows."""
    reader = csv.DictReader(lines)
    header = reader.fieldnames or ()
    missing = [column for column in REQUIRED if column not in header]
    if not {"duration_s", "application"} & set(header):
        missing.append("duration_s")
    if missing:
        raise UsageError(f"{where}, line 1: there is no column {missing[0]}; {_columns()}")
    unknown = [column for column in header if column not in COLUMNS]
    if unknown:
        raise UsageError(
            f"{where}, line 1: there is no use for column {unknown[0]!r}; {_columns()}"
        )
    jobs: list[SubmittedJob] = []
    first: dict[str, int] = {}
    for row in reader:
        line = reader.line_num
        job = _TraceLine(row, f"{where}, line {line}").job(cluster_slots)
        if job.name in first:
            raise UsageError(
                f"{where}, line {line}: job {job.name} is on line {first[job.name]}, too; "
                "names must differ"
            )
        first[job.name] = line
        jobs.append(job)
    if not jobs:
        raise UsageError(f"{where} has no jobs: a line with the columns' names, then one a job")
    return jobs


def _columns() -> str:
    return f"columns are {', '.join(COLUMNS)}"


@dataclass(frozen=True)
class _TraceLine:
    """One row of a trace; `job` makes the job that it describes."""

    # the text of each cell, by the name of its column; under the key None the list of the cells
    # beyond the last column, if the row has such cells
    cells: Mapping[str | None, str | list[str] | None]
    where: str  # the file and the line, for messages

    def job(self, cluster_slots: int) -> SubmittedJob:
        """Return the job that the row describes."""
        if None in self.cells:
            raise UsageError(f"{self.where}: it has more cells than there are columns")
        name = self._text("name")
        if not name:
            raise UsageError(f"{self.where}: the job has no name")
        arrival_s = self._number("time_s")
        slots = self._whole("slots")
        if slots > cluster_slots:
            raise UsageError(
                f"{self.where}: job {name} requests {slots} slots, and the cluster has "
                f"{cluster_slots}; give it fewer, or the cluster more with --nodes"
            )
        weight = self._number("weight", 1.0)
        if weight == 0:
            raise UsageError(f"{self.where}: weight is 0; it must be more")
        work = self._measured if self._text("application") else self._timed
        return replace(work(name, arrival_s, slots), weight=weight)

    def _timed(self, name: str, arrival_s: float, slots: int) -> SubmittedJob:
        """Return the job of a row with a duration; its speed follows Amdahl's law."""
        duration_s = self._number("duration_s")
        fraction = self._number("parallel_fraction", 1.0)
        if duration_s == 0:
            raise UsageError(f"{self.where}: duration_s is 0; a job takes some time")
        if fraction > 1:
            raise UsageError(f"{self.where}: parallel_fraction is {fraction:g}; it must be 0 to 1")
        least, most = self._limits(slots)
        work = TimedWork(duration_s, slots, fraction)
        return SubmittedJob(name, arrival_s, work, slots, least, most)

    def _measured(self, name: str, arrival_s: float, slots: int) -> SubmittedJob:
        """Return the job of a row with an application that Pollux measured, and the row's batch."""
        known, wanted = measured_applications(), self._text("application")
        if wanted not in known:
            raise UsageError(
                f"{self.where}: there is no application {wanted!r}; measured are {', '.join(known)}"
            )
        interpolator()
        application, batch = known[wanted], self._whole("batch_size")
        smallest, largest = application.batches
        if not smallest <= batch <= largest:
            raise UsageError(
                f"{self.where}: {wanted} was measured with batches of {smallest} to {largest}, "
                f"not of {batch}"
            )
        fit = min(batch // application.min_local_batch, MOST_SLOTS)
        if slots > fit:
            raise UsageError(
                f"{self.where}: {wanted} with a batch of {batch} was measured on at most {fit} "
                f"slots, not on {slots}"
            )
        least, most = self._limits(slots)
        job = application_job(name, arrival_s, application, slots, batch)
        # also limited by what was measured
        widest = min(job.batches[1] // application.min_local_batch, MOST_SLOTS)
        return replace(job, min_slots=least, max_slots=min(most, widest))

    def _limits(self, slots: int) -> tuple[int, int]:
        """Return the fewest and the most slots that a policy may give the job."""
        least = self._whole("min_slots", slots)
        most = self._whole("max_slots", slots)
        if not least <= slots <= most:
            raise UsageError(
                f"{self.where}: slots is {slots}; it must lie between min_slots, {least}, and "
                f"max_slots, {most}"
            )
        return least, most

    def _text(self, column: str) -> str:
        cell = self.cells.get(column)
        return cell.strip() if isinstance(cell, str) else ""

    def _number(self, column: str, default: float | None = None) -> float:
        """Return the number, 0 or more, in the column named `column`."""
        text = self._text(column)
        if not text and default is not None:
            return default
        try:
            number = float(text)
        except ValueError:
            raise UsageError(f"{self.where}: {column} is {text!r}; write a number") from None
        if not 0 <= number < math.inf:
            raise UsageError(f"{self.where}: {column} is {text}; it must be 0 or more")
        return number

    def _whole(self, column: str, default: int | None = None) -> int:
        """Return the whole number, 1 or more, in the column named `column`."""
        number = self._number(column, default)
        if number != int(number) or number < 1:
            raise UsageError(
                f"{self.where}: {column} is {number:g}; write a whole number, 1 or more"
            )
        return int(number)
