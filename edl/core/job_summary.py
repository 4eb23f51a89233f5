"""Summarize a job in one record, of which `edl list` and `edl top` show a row.

:func:`job_summary` makes a :class:`JobSummary`; :func:`summary_lines` lays out several of them as
text. `make docs` generates the table of docs/reference/status-and-events.md from this module.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

from edl.core.duration import rounded
from edl.core.excerpt import cropped
from edl.core.plural import counted, verb
from edl.core.record import Record
from edl.core.records import JobState
from edl.core.remaining import estimated_remaining_s, trained_fraction
from edl.core.snapshot import Snapshot
from edl.core.status import job_status

WIDE = 110  # columns from which on the reason stands in a column of its own
_GAP = "  "  # between two columns
_INDENT = "    "  # of a reason in a line of its own
_ENDED_SHOWN = 10  # jobs
UNREADABLE_SHOWN = 3  # jobs
# The columns of a narrow terminal, the most important first.
_ORDER = ("JOB", "STATE", "WORKERS", "DONE", "LEFT", "SAMPLES/S", "STEP", "AGE")


@dataclass(frozen=True)
class JobSummary(Record):
    """The summary of one job: its state, size, progress and speed. Each field is annotated."""

    name: Annotated[str, "name of the job"]
    state: Annotated[JobState, "its state, as in `edl status --json`"]
    reason: Annotated[str, "why, or what the leader does or waits for"]
    np: Annotated[int, "workers that train; 0 when the job is over or no worker is alive"]
    wanted_np: Annotated[int, "workers that are wanted"]
    hosts: Annotated[int, "hosts with an agent; 0 under horovodrun"]
    step: Annotated[int, "complete steps"]
    epoch: Annotated[int, "counted from 0"]
    fraction: Annotated[
        float | None,
        "part of the job that is trained, from 0 to 1, or of the epoch if nobody knows how many "
        "epochs there are; 1 when it has finished; null: nobody knows",
    ]
    samples_per_s: Annotated[float, "of all workers together, over the last 3 s"]
    remaining_s: Annotated[
        float | None, "seconds until its end at this speed; null: nobody knows, or it is over"
    ]
    created_s: Annotated[float, "when it was started, in seconds since 1970"]
    ended_s: Annotated[float, "when it ended, in seconds since 1970; 0: it has not"]


def job_summary(snapshot: Snapshot) -> JobSummary:
    """Return the summary of the job whose records in ZooKeeper are `snapshot`."""
    now = job_status(snapshot, "")
    over = now.state.over
    return JobSummary(
        name=now.job,
        state=now.state,
        reason=now.reason,
        np=now.world_size if now.members else 0,
        wanted_np=sum((now.desired or now.assigned).values()),
        hosts=len(now.hosts),
        step=now.step,
        epoch=now.epoch,
        fraction=trained_fraction(now, now.state is JobState.FINISHED),
        samples_per_s=0.0 if over else now.samples_per_s,
        remaining_s=None if over else estimated_remaining_s(now),
        created_s=snapshot.job.created,
        ended_s=snapshot.job.ended,
    )


def sorted_jobs(jobs: Sequence[JobSummary]) -> list[JobSummary]:
    """Return `jobs` in the order to show: those that run first, then the newest first."""
    return sorted(jobs, key=lambda job: (job.state.over, -job.created_s, job.name))


def newest_jobs(jobs: Sequence[JobSummary]) -> tuple[list[JobSummary], int]:
    """Return the jobs that run and the 10 newest that have ended, and the number of the others."""
    running = [job for job in jobs if not job.state.over]
    ended = [job for job in jobs if job.state.over]
    return running + ended[:_ENDED_SHOWN], len(ended[_ENDED_SHOWN:])


def hidden_jobs_note(count: int, command: str) -> str:
    """Return the sentence that says that `count` jobs that have ended are not shown."""
    return f"{counted(count, 'more job')} {verb(count, 'has', 'have')} ended: `{command}`"


def unreadable_jobs_notes(unreadable: Mapping[str, str]) -> list[str]:
    """Return sentences for people about jobs whose records cannot be read."""
    notes = [f"job {name} cannot be read: {why}" for name, why in sorted(unreadable.items())]
    more = len(notes) - UNREADABLE_SHOWN
    if more > 0:
        return [*notes[:UNREADABLE_SHOWN], f"{counted(more, 'more job')} cannot be read"]
    return notes


def summary_lines(
    jobs: Sequence[JobSummary], now_s: float, width: int | None, reasons: bool = True
) -> list[str]:
    """Return lines of text with a row for each of `jobs`; `width` None: with all columns."""
    titles = list(_ORDER)
    rows = [_cells(job, now_s) for job in jobs]
    if width is not None:
        most = max(12, width // 3)  # characters of a name
        rows = [[cropped(row[0], most), *row[1:]] for row in rows]
    widths = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    fit = len(titles) if width is None else _fitting(widths, width)
    lines = []
    for number, row in enumerate([titles, *rows]):
        head = _GAP.join(
            cell.ljust(size) for cell, size in zip(row[:fit], widths[:fit], strict=True)
        )
        reason = ("REASON" if number == 0 else jobs[number - 1].reason) if reasons else ""
        lines += _with_reason(head, reason, width, number == 0)
    return lines


def _with_reason(head: str, reason: str, width: int | None, is_title: bool) -> list[str]:
    """Return the lines of one row: its cells as text, and its reason behind or below them."""
    if width is None or not reason:
        return [f"{head}{_GAP}{reason}".rstrip()]
    if width >= WIDE:
        indent = " " * (len(head) + len(_GAP))
        return textwrap.wrap(
            f"{head}{_GAP}{reason}",
            max(width, len(indent) + 20),
            subsequent_indent=indent,
            drop_whitespace=True,
            break_on_hyphens=False,
        )
    if is_title:
        return [head.rstrip()]
    below = textwrap.wrap(
        reason, width, initial_indent=_INDENT, subsequent_indent=_INDENT, break_on_hyphens=False
    )
    return [head.rstrip(), *below]


def _cells(job: JobSummary, now_s: float) -> list[str]:
    """Return the texts of the row of `job`, in the order of the columns, without its reason."""
    size = f"{job.np}" if job.np == job.wanted_np else f"{job.np}/{job.wanted_np}"
    return [
        job.name,
        str(job.state),
        "-" if job.state.over else size,
        "-" if job.fraction is None else f"{int(100 * job.fraction)}%",
        "-" if job.remaining_s is None else rounded(job.remaining_s),
        "-" if job.state.over else f"{job.samples_per_s:,.0f}",
        f"{job.step:,}",
        rounded((job.ended_s or now_s) - job.created_s) if job.created_s else "-",
    ]


def _fitting(widths: Sequence[int], width: int) -> int:
    """Return how many of the columns with these `widths` fit side by side into `width`."""
    used = 0
    for number, size in enumerate(widths):
        used += size + (len(_GAP) if number else 0)
        if used > width:
            return max(1, number)
    return len(widths)
