"""Divide a latency into its parts: from a job's events, its step logs and the ends of processes.

All times are in seconds of the monotonic clock, which is one for all processes of a machine. Events
have the time of day: :func:`clock_offset_s` is what to subtract from it.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.jobs import BenchmarkError, Steps

Event = Mapping[str, Any]
# Two clocks, and events whose time is taken just after what they tell of, agree to this.
TOLERANCE_S = 0.02
SWITCH = ("wait", "shutdown", "init", "broadcast", "first_step")


@dataclass(frozen=True)
class Latency:
    """How long something took.

    Attributes:
        total_s: the whole, in seconds.
        parts_s: its parts by name, in their order, in seconds; their sum is the whole.
    """

    total_s: float
    parts_s: Mapping[str, float]


@dataclass(frozen=True)
class Save:
    """A checkpoint that was written while the job trained.

    Attributes:
        size: of its file, in bytes.
        copy_s: how long training paused, in seconds.
        write_s: how long the writing took beside the training, in seconds.
    """

    size: int
    copy_s: float
    write_s: float


@dataclass(frozen=True)
class Migration:
    """All workers of a job moved to another host.

    Attributes:
        latency: from the call of `edl migrate` until it has returned and the old workers are gone.
        stall_s: by how much the longest gaps between the ends of two steps, one for each switch,
            were longer than the median step before, added up, in seconds: for so long nobody
            trained.
        switches_s: the parts of the switches, added up, of the old worker that each of them held up
            longest, in seconds.
        switches: how many there were.
    """

    latency: Latency
    stall_s: float
    switches_s: Mapping[str, float]
    switches: int


def between(began_s: float, marks: Iterable[tuple[str, float]]) -> Latency:
    """Return the latency whose parts end at ``marks``.

    Args:
        began_s: when it began.
        marks: the name of each part, in order, and when it ended.

    Raises:
        BenchmarkError: a part would have ended before it began.
    """
    parts, now_s = dict[str, float](), began_s
    for name, end_s in marks:
        if end_s < now_s - TOLERANCE_S:
            raise BenchmarkError(f"part {name} ended {now_s - end_s:.3f} s before it began")
        parts[name] = max(0.0, end_s - now_s)
        now_s = max(now_s, end_s)
    return Latency(now_s - began_s, parts)


def clock_offset_s() -> float:
    """Return by how many seconds the time of day is ahead of the monotonic clock."""
    return time.time() - time.monotonic()


def process_start_s() -> float:
    """Return when this process was started or forked, as Linux has it, to 10 ms."""
    ticks = Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19]
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - int(ticks) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - age_s


def time_s(event: Event, offset_s: float) -> float:
    """Return when an event was logged; ``offset_s`` is :func:`clock_offset_s`."""
    return datetime.fromisoformat(event["time"]).timestamp() - offset_s


def only(events: Iterable[Event], kind: str, after_s: float, offset_s: float) -> list[Event]:
    """Return the events of a kind that were logged after ``after_s``, in their order."""
    return [one for one in events if one["kind"] == kind and time_s(one, offset_s) >= after_s]


def saves(events: Iterable[Event]) -> list[Save]:
    """Return the checkpoints that the events tell of, without that of the state before a step."""
    return [
        Save(one["bytes"], one["capture_s"], one["write_s"])
        for one in events
        if one["kind"] == "checkpoint" and one["step"] > 0
    ]


def read_marks(directory: Path) -> dict[int, dict[str, float]]:
    """Return what workers have marked of their start, by process id and name."""
    found = {}
    for path in directory.glob("*.marks"):
        text = path.read_text()
        rows = [line.rsplit(" ", 1) for line in text[: text.rfind("\n") + 1].splitlines()]
        found[int(path.stem)] = {name: int(at_ns) / 1e9 for name, at_ns in rows}
    return found


def preempted(
    asked_s: float,
    events: Sequence[Event],
    offset_s: float,
    steps: Iterable[Steps],
    ends_s: Mapping[int, float],
) -> Latency:
    """Return how long a job took from `edl preempt` to the end of all its processes.

    Args:
        asked_s: when the command was called.
        events: those of the job.
        offset_s: :func:`clock_offset_s`.
        steps: those of all its workers.
        ends_s: when each process ended, by process id: each worker, `edl run` and what else it has
            started, and the command.

    Raises:
        BenchmarkError: the job has not saved its last step, or was not preempted.
    """
    workers = {one.worker: float(one.time_s[-1]) for one in steps}
    told = [one for one in only(events, "generation", asked_s, offset_s) if not one["members"]]
    written = only(events, "checkpoint", asked_s, offset_s)
    if not told or len(written) != 1:
        raise BenchmarkError(f"{len(told)} ends and {len(written)} saves after edl preempt")
    (save,) = written
    saved_s = time_s(save, offset_s)
    begun_s = saved_s - save["write_s"]
    return between(
        asked_s,
        [
            ("request", time_s(told[0], offset_s)),
            ("step", max(workers.values())),
            ("close", begun_s - save["capture_s"]),
            ("copy", begun_s),
            ("write", saved_s),
            ("workers", max(ends_s[worker] for worker in workers)),
            ("others", max(ends_s.values())),
        ],
    )


def started(
    began_s: float,
    events: Sequence[Event],
    offset_s: float,
    marks: Mapping[int, Mapping[str, float]],
    steps: Iterable[Steps],
) -> Latency:
    """Return how long `edl run` took to the first step.

    A part is over when the last worker has reached its end. In a job that resumes, rank 0 reads the
    checkpoint as soon as its own model is there: ``model`` ends then, ``read`` when it has read it,
    and ``others`` when all other workers have their models, too.

    Args:
        began_s: when the command was called.
        events: those of the job.
        offset_s: :func:`clock_offset_s`.
        marks: of the workers, see :func:`read_marks`.
        steps: those of all workers.
    """

    def last(name: str) -> float:
        return max(one[name] for one in marks.values())

    ends = [(name, last(name)) for name in ("process", "imports", "ring")]
    resumed = only(events, "resumed", began_s, offset_s)
    if resumed:
        read_s = time_s(resumed[0], offset_s)
        (reader_s,) = (one["rank 0"] for one in marks.values() if "rank 0" in one)
        ends += [("model", reader_s), ("read", read_s), ("others", max(read_s, last("model")))]
    else:
        ends.append(("model", last("model")))
    ends.append(("state", last("state")))
    ends.append(("step", max(float(one.time_s[0]) for one in steps)))
    return between(began_s, ends)


def migrated(
    asked_s: float,
    returned_s: float,
    events: Sequence[Event],
    offset_s: float,
    steps: Mapping[int, Steps],
    ends_s: Mapping[int, float],
) -> Migration:
    """Return how long a migration of all workers took, and for how long nobody trained.

    Args:
        asked_s: when `edl migrate` was called.
        returned_s: when it returned.
        events: those of the job.
        offset_s: :func:`clock_offset_s`.
        steps: those of all workers that have completed one since the job began, by process id.
        ends_s: when each old worker ended, by process id.

    Raises:
        BenchmarkError: no worker has joined, or the new ones have completed no step alone.
    """
    wanted = only(events, "desired", asked_s, offset_s)
    rings = only(events, "generation", asked_s, offset_s)
    if not wanted or not any(one["joined"] for one in rings):
        raise BenchmarkError("no worker has joined after edl migrate")
    joined = next(one for one in rings if one["joined"])
    last_old = max(float(steps[worker].time_s[-1]) for worker in ends_s)
    new = [one for worker, one in steps.items() if worker not in ends_s]
    alone = [float(one.time_s[np.searchsorted(one.time_s, last_old, "right")]) for one in new
             if one.time_s[-1] > last_old]  # fmt: skip
    if not alone:
        raise BenchmarkError("the new workers have completed no step alone")
    latency = between(
        asked_s,
        [
            ("request", time_s(wanted[0], offset_s)),
            ("newcomers", time_s(joined, offset_s)),
            ("switches", max(alone)),
            ("end", max(returned_s, *ends_s.values())),
        ],
    )
    numbers = {one["generation"] for one in rings}
    switches = [one for one in events if one["kind"] == "switch" and one["generation"] in numbers]
    gaps = _longer_s(steps.values(), asked_s, max(alone))
    stall_s = sum(sorted(gaps)[-len(switches) :]) if switches else 0.0
    return Migration(latency, stall_s, _added(switches), len(switches))


def _longer_s(steps: Iterable[Steps], asked_s: float, until_s: float) -> list[float]:
    """Return by how much each gap between the ends of two steps of a job is longer than usual.

    The end of a step is when its first worker has completed it. The gaps that end between
    ``asked_s`` and ``until_s`` count; usual is the median of those before ``asked_s``.
    """
    ends = dict[int, float]()
    for one in steps:
        for number, at_s in zip(one.step.tolist(), one.time_s.tolist(), strict=True):
            ends[number] = min(at_s, ends.get(number, at_s))
    times = [ends[number] for number in sorted(ends)]
    gaps = [(later, later - earlier) for earlier, later in pairwise(times)]
    usual = float(np.median([gap for end, gap in gaps if end < asked_s]))
    return [max(0.0, gap - usual) for end, gap in gaps if asked_s <= end <= until_s]


def _added(switches: Iterable[Event]) -> dict[str, float]:
    """Add up the parts of some switches, each of the old worker that stood still longest in it."""
    total = dict.fromkeys(SWITCH, 0.0)
    for switch in switches:
        old = [parts for parts in switch["workers"].values() if parts["role"] == "old"]
        slowest = max(old, key=lambda parts: float(parts["stall_s"]))
        for name in SWITCH:
            total[name] += float(slowest[f"{name}_s"])
    return total
