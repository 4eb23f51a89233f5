"""Write what is known of the jobs of a cluster as text for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import yaml

from edl.cluster.candidates import ThroughputPoint
from edl.cluster.lifecycle import ClusterEvent, LifeState
from edl.cluster.manifest import JobManifest
from edl.cluster.records import Goal
from edl.cluster.status import ClusterJobDetails, ClusterJobStatus
from edl.host.output import wrapped
from edl.text import by_host, rounded, workers

ENDED_SHOWN = 10  # jobs that have ended, the newest, if the user did not ask for a state
_GAP = "  "  # between two columns


def job_table(jobs: Sequence[ClusterJobStatus], now_s: float, width: int | None) -> list[str]:
    """Return lines with a row for each of `jobs`, under a row of titles."""
    rows: list[tuple[str, ...]] = [("JOB", "STATE", "SLOTS", "PRIORITY", "QUEUE", "AGE", "REASON")]
    rows += [(*_columns(job), rounded(now_s - job.submitted_s), job.reason) for job in jobs]
    if all(job.queue == "default" for job in jobs):
        rows = [(*row[:4], *row[5:]) for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [text.ljust(size) for text, size in zip(row[:-1], widths, strict=False)]
        head = "".join(f"{cell}{_GAP}" for cell in cells)
        line = f"{head}{row[-1]}"
        lines.append(line if width is None else wrapped(line, width, len(head)))
    return lines


def newest_ended(jobs: Sequence[ClusterJobStatus]) -> tuple[list[ClusterJobStatus], int]:
    """Return `jobs` without old ones that have ended, and how many those are."""
    ended = [job for job in jobs if job.state is LifeState.ENDED]
    by_end = sorted(ended, key=lambda job: job.ended_s)
    old = {job.name for job in by_end[: max(0, len(ended) - ENDED_SHOWN)]}
    return [job for job in jobs if job.name not in old], len(old)


def state_line(job: ClusterJobStatus) -> str:
    """Return the state of `job` and its reason as one line, as `edl submit --watch` shows it."""
    return f"{job.outcome}: {job.reason}"


def details_text(details: ClusterJobDetails, now_s: float, width: int | None) -> str:
    """Return all that is known of a job as text: its state, manifest and history."""
    rows = _rows(details, now_s)
    size = max(map(len, rows)) + len(_GAP)
    lines = [f"{title.ljust(size)}{text}" for title, text in rows.items()]
    lines = [line if width is None else wrapped(line, width, size) for line in lines]
    manifest = yaml.safe_dump(
        _given(details.manifest), sort_keys=False, default_flow_style=None, allow_unicode=True
    )
    lines += ["", "manifest", *(f"  {line}" for line in manifest.splitlines()), "", "history"]
    lines += [f"  {event_line(event, None, named=False)}" for event in details.history]
    return "\n".join(lines)


def event_line(event: ClusterEvent, width: int | None, named: bool = True) -> str:
    """Return an event of a cluster as text: local time, kind, reason, and who has written it."""
    clock = datetime.fromtimestamp(event.time_s).strftime("%m-%d %H:%M:%S")
    about = f"{event.job or event.host}: " if named and (event.job or event.host) else ""
    head = f"{clock}  {event.kind:<9}  "
    by = f" [{event.by}]" if event.by else ""
    line = f"{head}{about}{event.reason}{by}"
    return line if width is None else wrapped(line, width, len(head))


def _columns(job: ClusterJobStatus) -> tuple[str, str, str, str, str]:
    """Return the texts (name, state, slots, priority, queue) of `job` for its row in a table."""
    surplus = f" ({job.surplus} surplus)" if job.surplus else ""
    slots = f"{job.slots}/{_range(job.min, job.max)}{surplus}"
    return job.name, job.outcome, slots, str(job.priority), job.queue


def _range(least: int, most: int) -> str:
    return f"{least}-{most}" if least < most else str(most)


def _rows(details: ClusterJobDetails, now_s: float) -> dict[str, str]:
    """Return the lines about the state of a job as texts, by their titles, in the order to show."""
    job = details.job
    since = f", for {rounded(now_s - job.since_s)}" if job.since_s else ""
    rows = {
        "job": job.name,
        "state": f"{job.outcome}{since}: {job.reason}",
        "wanted": "" if job.wanted is Goal.RUN else _wanted(job),
        "slots": f"{job.slots} of {_range(job.min, job.max)}, {job.np} wanted{_where(details)}"
        + (f"; {job.surplus} beyond the quota of its queue" if job.surplus else ""),
        "priority": f"{job.priority}, queue {job.queue}",
        "submitted": f"{_moment(job.submitted_s)}, {rounded(now_s - job.submitted_s)} ago",
        "started": _moment(job.started_s) if job.started_s else "",
        "ended": f"{_moment(job.ended_s)}, exit code {job.exit_code}" if job.ended_s else "",
        "runs": f"{_runs(details)}; {details.slot_s:,.0f} slot-seconds",
        "next start": _next_start(details, now_s),
        "samples/s": throughput_text(details.throughput),
    }
    return {title: text for title, text in rows.items() if text}


def _wanted(job: ClusterJobStatus) -> str:
    return "that it halts" if job.wanted is Goal.HALT else "that it is gone"


def _where(details: ClusterJobDetails) -> str:
    """Return how many slots a job has on which hosts, in parentheses; "" if it has none."""
    if not details.devices:
        return ""
    has = by_host({host: len(devices) for host, devices in details.devices.items()})
    back = {host: len(devices) for host, devices in details.leaving.items()}
    return f" ({has}{f'; giving back {by_host(back)}' if back else ''})"


def _runs(details: ClusterJobDetails) -> str:
    """Return how many runs a job had, how many have failed, and the token of the last."""
    job = details.job
    failed = f", {job.failures} failed" if job.failures else ""
    token = f"; the last one is {details.run}" if details.run else ""
    return f"{job.runs}{failed}{token}"


def _next_start(details: ClusterJobDetails, now_s: float) -> str:
    """Return as text how long a queued job is not started; "" for any other job."""
    left_s = details.not_before_s - now_s
    waits = details.job.state is LifeState.QUEUED and left_s > 0
    return f"not in the next {rounded(left_s)}" if waits else ""


def throughput_text(curve: Sequence[ThroughputPoint]) -> str:
    """Return how fast a job trains with some numbers of workers, and how that is known."""
    known = [point for point in curve if point.samples_per_s is not None]
    if not known:
        return "not known; it is assumed to grow in proportion to the workers"
    return ", ".join(
        f"{point.samples_per_s:,.4g} with {workers(point.np)} ({point.source})" for point in known
    )


def _moment(time_s: float) -> str:
    """Return a time in seconds since 1970 as text: date and time in the local time zone."""
    return datetime.fromtimestamp(time_s).strftime("%Y-%m-%d %H:%M:%S")


def _given(manifest: JobManifest) -> Mapping[str, Any]:
    usual = JobManifest("", (), 0, 0).to_json()
    return _differing(manifest.to_json(), usual)


def _differing(values: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the items of `values` whose value differs from that in `usual`, by key."""
    found = {}
    for key, value in values.items():
        other = usual.get(key)
        if value != other:
            both = isinstance(value, Mapping) and isinstance(other, Mapping)
            found[key] = _differing(value, other) if both and other else value
    return found
