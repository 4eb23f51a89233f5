"""Lay out one job, or all jobs, as lines for a screen of any size, as `edl top` shows them.

:func:`job_screen` returns the lines of one job, and :func:`jobs_screen` those of all jobs; a job of
a thousand workers is shown by host, not by worker. :func:`pause_s` limits how often jobs are read.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from edl.core.duration import rounded
from edl.core.event_explanations import EXPLANATIONS, Severity
from edl.core.events import Event
from edl.core.job_summary import (
    JobSummary,
    hidden_jobs_note,
    newest_jobs,
    summary_lines,
    unreadable_jobs_notes,
)
from edl.core.plural import counted, workers
from edl.core.records import JobState, Stage
from edl.core.remaining import bar, estimated_remaining_s, trained_fraction
from edl.core.status import JobStatus, MemberStatus

LEAST_PAUSE_S = 1.0
READS_PER_S = 200.0  # from ZooKeeper, at most
MOST_EVENTS = 8  # that are shown
_BAR = 60  # characters
_HEAD = 7  # lines above the workers, about
_STYLES = {Severity.NORMAL: "", Severity.WARNING: "yellow", Severity.ERROR: "red"}


@dataclass(frozen=True)
class TextLine:
    """One line of a screen."""

    text: str  # may be longer than the screen is wide
    style: str = ""  # for rich, such as "bold"


def pause_s(reads: int) -> float:
    """Return how long to wait before `reads` nodes are read again from ZooKeeper."""
    return max(LEAST_PAUSE_S, reads / READS_PER_S)


def job_screen(
    status: JobStatus, events: Sequence[tuple[str, Event]], age_s: float, width: int, height: int
) -> list[TextLine]:
    """Return the lines that show one job: its progress, its workers and its newest events."""
    lines = _head(status, age_s, width)
    room = max(3, height - len(lines) - min(len(events), MOST_EVENTS) - 4)
    lines += [TextLine(""), *_worker_lines(status, room)]
    left = height - len(lines) - 2
    newest = list(events)[-max(1, min(left, MOST_EVENTS)) :] if events else []
    if newest:
        lines.append(TextLine(""))
    worst = ""
    for clock, event in newest:
        severity = EXPLANATIONS[event.kind].severity
        worst = event.kind if severity is Severity.ERROR else worst
        lines.append(TextLine(f"{clock} {event.kind}: {event.reason}", _STYLES[severity]))
    if worst:
        lines.append(TextLine(f"`edl explain {worst}`: what to do", "dim"))
    return lines


def jobs_screen(
    jobs: Sequence[JobSummary],
    locked: int,
    now_s: float,
    width: int,
    height: int,
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> list[TextLine]:
    """Return the lines that show all jobs: a row of each, and its reason if all fit so."""
    shown, ended = newest_jobs(jobs)
    notes = [hidden_jobs_note(ended, "edl list --json")] if ended else []
    if locked:
        notes.append(f"{counted(locked, 'job')} not shown: the secret is not known here")
    notes += unreadable_jobs_notes(unreadable)
    rows = [] if unreadable else ["no job of this user is known here; start one with `edl run`"]
    room = max(2, height - len(notes))
    if shown:
        rows = summary_lines(shown, now_s, width)
        if len(rows) > room:
            rows = summary_lines(shown, now_s, width, reasons=False)
    if hidden := max(0, len(rows) - room):
        rows = rows[: room - 1]
        notes.insert(0, f"… {counted(hidden + 1, 'more job')}")
    titled = bool(shown)
    lines = [
        TextLine(row, "" if number or not titled else "dim") for number, row in enumerate(rows)
    ]
    return [*lines, *(TextLine(note, "dim") for note in notes)]


def _head(status: JobStatus, age_s: float, width: int) -> list[TextLine]:
    """Return the lines about the job as a whole; only the reason is broken to `width` columns."""
    wanted = sum((status.desired or status.assigned).values())
    size = status.world_size if status.members else 0  # the ring of workers that all died stays
    lines = [TextLine(f"{status.job}  {status.state}  {rounded(age_s)}", "bold")]
    fraction = trained_fraction(status, status.state is JobState.FINISHED)
    if fraction is not None:
        left_s = None if status.state.over else estimated_remaining_s(status)
        left = "" if left_s is None else f"  {rounded(left_s)} left"
        behind = f" {int(100 * fraction)}%{left}"
        trained, rest = bar(fraction, max(8, min(_BAR, width - len(behind))))
        lines.append(TextLine(f"{trained}{rest}{behind}", "green"))
    epoch = f"epoch {status.epoch}, " if status.epoch_total or status.epoch_done else ""
    speed = f"{status.samples_per_s:,.0f} samples/s"
    lines.append(TextLine(f"{epoch}step {status.step:,}, {speed}"))
    leads = f"{status.leader or 'nobody'} leads"
    lines.append(TextLine(f"{workers(size)} of {wanted}, generation {status.generation}, {leads}"))
    if status.slowest is not None:
        slow = f"{status.slowest} is slow: {status.slowest_s:.3g} s a step, others"
        lines.append(TextLine(f"{slow} {status.others_s:.3g} s", "yellow"))
    style = _reason_style(status, wanted)
    lines += [TextLine(text, style) for text in textwrap.wrap(status.reason, width)[:3]]
    return lines


def _reason_style(status: JobStatus, wanted: int) -> str:
    """Return the style of a job's reason: plain if it trains with all of the `wanted` workers."""
    if status.state.over:
        return "red" if status.exit_code else ""
    return "" if status.world_size == wanted and status.samples_per_s > 0 else "yellow"


def _worker_lines(status: JobStatus, room: int) -> list[TextLine]:
    """Return a table of the workers in `room` lines: by worker if they fit, else by host."""
    members = sorted(status.members, key=lambda m: (m.rank is None, m.rank or 0, m.id))
    if not members:
        return [TextLine("no workers", "dim")]
    if len(members) + 1 <= room:
        return _table(
            [
                ("RANK", "WORKER", "STAGE", "HOST"),
                *(
                    ("-" if m.rank is None else str(m.rank), m.id, str(m.stage), m.host)
                    for m in members
                ),
            ]
        )
    return _host_lines(members, room)


def _host_lines(members: Sequence[MemberStatus], room: int) -> list[TextLine]:
    """Return a table of the number of workers in each stage by host, in at most `room` lines."""
    by_host: dict[str, Counter[Stage]] = {}
    for member in members:
        by_host.setdefault(member.host, Counter())[member.stage] += 1
    stages = [stage for stage in Stage if any(counts[stage] for counts in by_host.values())]
    names = sorted(by_host, key=lambda host: (set(by_host[host]) == {Stage.ACTIVE}, host))
    shown = names if len(names) + 2 <= room else names[: max(1, room - 3)]
    total = sum(by_host.values(), Counter())
    rows = [("HOST", *(str(stage).upper() for stage in stages))]
    rows += [(host, *(str(by_host[host][stage] or "-") for stage in stages)) for host in shown]
    rows.append((counted(len(names), "host"), *(str(total[stage]) for stage in stages)))
    lines = _table(rows)
    if more := len(names) - len(shown):
        lines.insert(-1, TextLine(f"… {counted(more, 'more host')}", "dim"))
    return lines


def _table(rows: Sequence[Sequence[str]]) -> list[TextLine]:
    """Return `rows` as lines with aligned columns; the first row, the titles, is dim."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    texts = [
        "  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return [TextLine(text, "" if number else "dim") for number, text in enumerate(texts)]
