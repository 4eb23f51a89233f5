"""Define the status of a job: one schema for `edl status`, its JSON, the client and other viewers.

:func:`job_status` makes a :class:`JobStatus`. `make docs` generates the table of
docs/reference/status-and-events.md from this module.
"""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Annotated

from edl.event_text import EXPLANATIONS, Severity
from edl.events import Event
from edl.job.snapshot import GONE, Snapshot
from edl.record import Record
from edl.records import JobProgress, JobState, Reclaim, Stage, TrainingStatus
from edl.text import aligned, counted, cropped, rounded, verb, workers


@dataclass(frozen=True)
class MemberStatus(Record):
    """The status of one worker process of a job, as `edl status` shows it."""

    id: Annotated[str, "as `w3`"]
    host: Annotated[str, "its host"]
    slot: Annotated[int, "its slot there"]
    device: Annotated[int | None, "its device there, as a number from 0; null: it was given none"]
    pid: Annotated[int, "its process there"]
    port: Annotated[int, "where it answers `/health`"]
    rank: Annotated[int | None, "null: it is no member of the generation"]
    stage: Annotated[Stage, "`preparing`, `ready`, `active`, `leaving` or `finished`"]


@dataclass(frozen=True, kw_only=True)
class JobStatus(TrainingStatus):
    """The status of a job as `edl status` shows it: progress, workers, hosts, desired number.

    :func:`job_status` returns it. It has the fields of a :class:`TrainingStatus` as well. Each
    field is explained in its annotation.
    """

    job: Annotated[str, "its name"]
    state: Annotated[
        JobState,
        "`running`, `paused` (fewer than `min_np` are left), `stopping`, `finished`, `stopped` or "
        "`failed`",
    ]
    exit_code: Annotated[
        int,
        "of a job that has failed, that a signal to `edl run` has stopped, that was preempted, or "
        "that has finished without its last checkpoint; else 0, also after `edl stop`, when `edl "
        "run` ends with 143",
    ]
    command: Annotated[tuple[str, ...], "of each worker"]
    np: Annotated[int, "workers that it began with"]
    min_np: Annotated[int, "fewer do not train"]
    max_np: Annotated[int | None, "more are not started; null: only horovodrun knows"]
    sizes: Annotated[str, "the numbers of workers that it may have, as a text"]
    term: Annotated[int, "of the newest leader"]
    leader: Annotated[str | None, "null when that worker is not in ZooKeeper"]
    generation: Annotated[int, "the newest that a leader has written"]
    world_size: Annotated[int, "workers in that generation; 0 when the job is over"]
    members: Annotated[tuple[MemberStatus, ...], "the workers that are in ZooKeeper, see below"]
    desired: Annotated[
        Mapping[str, int],
        "host -> workers wanted there; none under horovodrun without `edl-discover`",
    ]
    desired_by: Annotated[
        str, "who asked for that: `person`, `cluster`, `launcher`, `profile`, `policy` or `leader`"
    ]
    desired_reason: Annotated[str, "why"]
    borrowed: Annotated[
        Mapping[str, int], "host -> workers wanted there that are in slots borrowed by the job"
    ]
    reclaims: Annotated[
        tuple[Reclaim, ...],
        "what is to be given back: `host`, `slots`, `asked_s` and `by_s` in seconds since 1970, by "
        "the clock of the host where it was asked for",
    ]
    assigned: Annotated[
        Mapping[str, int],
        "host -> workers that its launcher keeps there: as desired, but under horovodrun as its "
        "driver says",
    ]
    devices: Annotated[
        Mapping[str, tuple[int, ...]],
        "host -> the numbers of the devices that it may use there; none: it is not limited to some",
    ]
    hosts: Annotated[Mapping[str, int], "host with an agent -> its slots; none under horovodrun"]
    evicted: Annotated[Mapping[str, str], "worker that was evicted -> why"]
    disabled_slots: Annotated[
        Mapping[str, str], "slot in which no worker is started any more, as `host:1` -> why"
    ]
    zookeeper: Annotated[str, "where this was read"]
    away: Annotated[str, "with `--watch`: why nothing newer can be read now; else empty"] = ""


def job_status(snapshot: Snapshot, zookeeper: str) -> JobStatus:
    """Return the status of the job in `snapshot`, read from the ZooKeeper at this address."""
    job, generation, leader = snapshot.job, snapshot.generation, snapshot.leader
    alive = {member.id for member in snapshot.members}
    leads = leader is not None and leader.worker in alive
    training = {**vars(snapshot.current_status), "reason": _reason(snapshot)}
    return JobStatus(
        **training,
        job=job.name,
        state=JobState.PAUSED if snapshot.paused else job.state,
        exit_code=job.exit_code,
        command=job.spec.command,
        np=job.spec.np,
        min_np=job.sizes.min_np,
        max_np=job.sizes.max_np,
        sizes=str(job.sizes),
        term=leader.term if leader else 0,
        leader=f"w{leader.worker}" if leader and leads else None,
        generation=generation.number if generation else 0,
        world_size=len(generation.members) if generation and not job.state.over else 0,
        members=tuple(
            MemberStatus(
                id=member.name,
                host=member.host,
                slot=member.slot,
                device=member.device,
                pid=member.pid,
                port=member.port,
                rank=generation.rank_of(member.id) if generation else None,
                stage=member.stage,
            )
            for member in snapshot.members
        ),
        desired=dict(snapshot.desired.hosts),
        desired_by=str(snapshot.desired.by),
        desired_reason=snapshot.desired.reason,
        borrowed=dict(snapshot.desired.borrowed),
        reclaims=snapshot.desired.reclaims,
        assigned=dict(snapshot.assigned.hosts),
        devices={}
        if job.state.over
        else {h: tuple(own) for h, own in sorted(snapshot.assigned.devices.items()) if own},
        hosts={host.name: host.slots for host in snapshot.hosts},
        evicted={
            f"w{worker}": reason
            for worker, reason in snapshot.evicted.items()
            if not reason.startswith(GONE)  # it has ended, whoever ended it
        },
        disabled_slots={
            **{f"{h.name}:{n}": why for h in snapshot.hosts for n, why in h.disabled.items()},
            **{f"{s.host}:{s.slot}": s.disabled for s in snapshot.slots if s.disabled},
        },
        zookeeper=zookeeper,
    )


def _reason(snapshot: Snapshot) -> str:
    job = snapshot.job
    if job.state.over or job.reason:
        return job.reason
    if not snapshot.members and job.driver:
        return f"none of its workers is alive now; the driver of horovodrun is at {job.driver}"
    if not snapshot.hosts and not snapshot.members:
        none = "it starts" if snapshot.generation is None else "none of its processes is alive"
        return f"{none}; `edl stop {job.name}` ends it"
    return snapshot.status.reason


# ------------------------------------------------------------
# Estimate what part of a job is trained and how long the rest takes, and draw a progress bar.

FILLED, EMPTY = "━", "─"  # two characters, so that a bar can be read without colours


def estimated_remaining_s(status: TrainingStatus) -> float | None:
    """Return how long the job takes at its present speed; None if nobody knows."""
    if status.left is None or status.samples_per_s <= 0:
        return None
    return status.left / status.samples_per_s


def trained_fraction(progress: JobProgress, finished: bool = False) -> float | None:
    """Return the part of the job, or else of its epoch, that is trained; None if nobody knows."""
    if finished:
        return 1.0
    total, done = progress.epoch_total, progress.epoch_done
    if not total:
        return None
    if progress.left is None:
        return min(1.0, done / total)
    trained = progress.epoch * total + done
    whole = trained + progress.left
    return trained / whole if whole else 1.0


def bar(fraction: float, width: int) -> tuple[str, str]:
    filled = min(width, int(width * max(0.0, fraction)))
    return FILLED * filled, EMPTY * (width - filled)


# ------------------------------------------------------------
# Summarize a job in one record, of which `edl list` and `edl top` show a row. `make docs` generates
# the table of docs/reference/status-and-events.md from this module.

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
    return f"{counted(count, 'more job')} {verb(count, 'has', 'have')} ended: `{command}`"


def unreadable_jobs_notes(unreadable: Mapping[str, str]) -> list[str]:
    notes = [f"job {name} cannot be read: {why}" for name, why in sorted(unreadable.items())]
    more = len(notes) - UNREADABLE_SHOWN
    if more > 0:
        return [*notes[:UNREADABLE_SHOWN], f"{counted(more, 'more job')} cannot be read"]
    return notes


def summary_lines(
    jobs: Sequence[JobSummary], now_s: float, width: int | None, reasons: bool = True
) -> list[str]:
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
    used = 0
    for number, size in enumerate(widths):
        used += size + (len(_GAP) if number else 0)
        if used > width:
            return max(1, number)
    return len(widths)


# ------------------------------------------------------------
# Write the status line of a job for the foot of a terminal of any width.

Part = tuple[str, str]
"""A text, and the name of its style for rich; empty for none."""

_BARS = (24, 16, 8, 0)  # characters; the first that fits


def job_line(job: str, snapshot: Snapshot | None, width: int | None = None) -> list[Part]:
    if snapshot is None or snapshot.generation is None:
        ready = sum(m.stage != "preparing" for m in snapshot.members) if snapshot else 0
        return _cropped([(f"{job}{_GAP}starting, {workers(ready)} ready", "dim")], width)
    facts = _facts(snapshot)
    for size in _BARS if width is not None else _BARS[:1]:
        parts = [(job, "bold"), *_progress(snapshot, size)]
        if width is None or _length(parts) <= width:
            break
    for fact in facts:
        if width is not None and _length(parts) + len(_GAP) + len(fact) > width:
            break
        parts.append((f"{_GAP}{fact}", ""))
    return _cropped(parts, width)


def _progress(snapshot: Snapshot, size: int) -> list[Part]:
    status = snapshot.current_status
    fraction = trained_fraction(status)
    if fraction is None:
        return []
    trained, rest = bar(fraction, size)
    left_s = estimated_remaining_s(status)
    left = "" if left_s is None else f"{_GAP}{rounded(left_s)} left"
    of = "" if status.left is not None else f" of epoch {status.epoch}"
    text = f"{' ' * bool(size)}{int(100 * fraction)}%{of}{left}"
    return [(_GAP, ""), (trained, "green"), (rest, "bright_black"), (text, "")]


def _facts(snapshot: Snapshot) -> list[str]:
    assert snapshot.generation is not None
    status = snapshot.current_status
    size = len(snapshot.generation.members) if snapshot.members else 0
    wanted = "" if size == snapshot.assigned.np else f"{size} of "
    facts = [
        f"{wanted}{workers(snapshot.assigned.np)}",
        f"{status.samples_per_s:,.0f} samples/s",
    ]
    if status.epoch_total:
        facts.append(f"epoch {status.epoch} {status.epoch_done}/{status.epoch_total}")
    elif status.epoch_done:
        facts.append(f"epoch {status.epoch} {status.epoch_done} samples")  # of a stream
    return [*facts, f"step {status.step}", f"generation {snapshot.generation.number}"]


def _cropped(parts: list[Part], width: int | None) -> list[Part]:
    if width is None or _length(parts) <= width:
        return parts
    return [(cropped("".join(text for text, _ in parts), width), "")]


def _length(parts: list[Part]) -> int:
    return sum(len(text) for text, _ in parts)


# ------------------------------------------------------------
# Lay out one job, or all jobs, as lines for a screen of any size, as `edl top` shows them. A job of
# a thousand workers is shown by host, not by worker.

MIN_PAUSE_S = 1.0
READS_PER_S = 200.0  # from ZooKeeper, at most
MAX_EVENTS = 8  # that are shown
_BAR = 60  # characters
_STYLES = {Severity.NORMAL: "", Severity.WARNING: "yellow", Severity.ERROR: "red"}


@dataclass(frozen=True)
class TextLine:
    text: str  # may be longer than the screen is wide
    style: str = ""  # for rich, such as "bold"


def pause_s(reads: int) -> float:
    """Return how long to wait before `reads` nodes are read again from ZooKeeper."""
    return max(MIN_PAUSE_S, reads / READS_PER_S)


def job_screen(
    status: JobStatus, events: Sequence[tuple[str, Event]], age_s: float, width: int, height: int
) -> list[TextLine]:
    lines = _head(status, age_s, width)
    room = max(3, height - len(lines) - min(len(events), MAX_EVENTS) - 4)
    lines += [TextLine(""), *_worker_lines(status, room)]
    left = height - len(lines) - 2
    newest = list(events)[-max(1, min(left, MAX_EVENTS)) :] if events else []
    if newest:
        lines.append(TextLine(""))
    worst = ""
    for clock, event in newest:
        severity = EXPLANATIONS[event.kind].severity
        worst = event.kind if severity is Severity.ERROR else worst
        lines.append(TextLine(f"{clock} {event.kind}: {event.reason}", _STYLES[severity]))
    if worst:
        lines.append(TextLine(f"`edl events --explain {worst}`: what to do", "dim"))
    return lines


def jobs_screen(
    jobs: Sequence[JobSummary],
    locked: int,
    now_s: float,
    width: int,
    height: int,
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> list[TextLine]:
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
    trains = status.world_size == wanted and status.samples_per_s > 0
    style = "" if trains else "yellow"
    if status.state.over:
        style = "red" if status.exit_code else ""
    lines += [TextLine(text, style) for text in textwrap.wrap(status.reason, width)[:3]]
    return lines


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
    return [TextLine(text, "" if n else "dim") for n, text in enumerate(aligned(rows))]
