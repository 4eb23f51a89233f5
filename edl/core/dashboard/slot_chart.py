"""Lay out who had which slots when: the Gantt chart of a cluster, over its hosts.

:func:`slot_chart` draws each interval as boxes on the *lanes* of its host, one for each slot. Where
that is more than a browser can show, the chart has a row for each host, or for several hosts
together, with the part of their slots in use over time. So its size has a bound, whatever a cluster
has done.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Annotated

from edl.cluster.history import SlotInterval
from edl.core.record import Record

MOST_LANES = 96  # of all hosts together; a lane is 13 pixels high
MOST_BOXES = 1500
MOST_ROWS = 40  # of a chart of use
COLUMNS = 180  # of a chart of use
SAME_S = 0.5  # events of one plan are written one after the other, within less than that


@dataclass(frozen=True)
class ChartInterval(Record):
    """A rectangle of the chart: slots of one host that a job had for a time."""

    job: Annotated[str, "the job"]
    submission: Annotated[int, "the number that tells the job from others of its name"]
    lane: Annotated[int, "the first lane of its host, from 0"]
    lanes: Annotated[int, "how many lanes it covers"]
    from_s: Annotated[float, "from when, in seconds since 1970"]
    to_s: Annotated[float | None, "until when; null: the job has the slots still"]


@dataclass(frozen=True)
class HostRow(Record):
    """A row of the chart: a host with a lane for each slot."""

    host: Annotated[str, "the host"]
    lanes: Annotated[int, "how many lanes it has"]
    boxes: Annotated[tuple[ChartInterval, ...], "who had which slots when"]


@dataclass(frozen=True)
class HostUsage(Record):
    """A row of a chart of use: one host, or several that are shown together."""

    host: Annotated[str, "the host; of several, the first and the last by name"]
    slots: Annotated[int, "how many slots they have"]
    use: Annotated[tuple[float, ...], "the part of the slots in use, in each column"]


@dataclass(frozen=True)
class SlotChart(Record):
    """The Gantt chart of a cluster between two times; either `rows` or `use` is empty."""

    from_s: Annotated[float, "from when, in seconds since 1970"]
    to_s: Annotated[float, "until when"]
    rows: Annotated[tuple[HostRow, ...], "hosts with their jobs"]
    use: Annotated[tuple[HostUsage, ...], "hosts, where there are too many jobs to show each"]
    jobs: Annotated[int, "how many jobs had slots in this time"]
    cut_s: Annotated[float, "what was before this time is not known, or not shown; 0: all is"]


def slot_chart(
    intervals: Sequence[SlotInterval],
    slots: Mapping[str, int],
    from_s: float,
    to_s: float,
    cut_s: float = 0.0,
) -> SlotChart:
    """Return the chart of `intervals` between `from_s` and `to_s`."""
    shown = sorted(
        (one for one in intervals if one.begin_s < to_s and (one.end_s or to_s) > from_s),
        key=lambda one: (one.begin_s, one.submission, one.host),
    )
    of_host: dict[str, list[SlotInterval]] = defaultdict(list)
    for one in shown:
        of_host[one.host].append(one)
    hosts = sorted({*slots, *of_host}, key=natural_order)
    is_large = len(shown) > MOST_BOXES  # each interval is a box at least
    laid_out = () if is_large else hosts
    rows = [_lanes_of(host, of_host[host], slots.get(host, 0), from_s) for host in laid_out]
    is_large |= sum(row.lanes for row in rows) > MOST_LANES
    is_large |= sum(len(row.boxes) for row in rows) > MOST_BOXES
    return SlotChart(
        from_s=from_s,
        to_s=to_s,
        rows=() if is_large else tuple(rows),
        use=_use(hosts, of_host, slots, from_s, to_s) if is_large else (),
        jobs=len({one.submission for one in shown}),
        cut_s=cut_s,
    )


def natural_order(name: str) -> tuple[tuple[bool, int, str], ...]:
    """Return a sort key by which numbers in names are compared as numbers: node2 before node10."""
    parts: list[str] = []
    for letter in name:
        if parts and parts[-1][-1].isdecimal() == letter.isdecimal():
            parts[-1] += letter
        else:
            parts.append(letter)
    return tuple(
        (not part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in parts
    )


def _lanes_of(host: str, intervals: Sequence[SlotInterval], offered: int, from_s: float) -> HostRow:
    """Return the row of a host: each job keeps its lanes while it grows, shrinks and goes on."""
    ends: list[float] = []  # lane -> until when it is used
    last: dict[int, list[int]] = {}  # submission -> the lanes that it had before
    boxes: list[ChartInterval] = []
    for one in intervals:
        # The event that its new job has a slot may come before the event that the old one has not.
        free = [lane for lane, end_s in enumerate(ends) if end_s <= one.begin_s + SAME_S]
        own = [lane for lane in last.get(one.submission, ()) if lane in free]
        chosen = (own + [lane for lane in free if lane not in own])[: one.slots]
        chosen += range(len(ends), len(ends) + one.slots - len(chosen))
        ends += [0.0] * (max(chosen) + 1 - len(ends))
        for lane in chosen:
            ends[lane] = float("inf") if one.end_s is None else one.end_s
        last[one.submission] = chosen
        for first, count in _runs(sorted(chosen)):
            begin_s = max(one.begin_s, from_s)
            boxes.append(ChartInterval(one.job, one.submission, first, count, begin_s, one.end_s))
    return HostRow(host, max(offered, len(ends), 1), tuple(boxes))


def _runs(lanes: Sequence[int]) -> list[tuple[int, int]]:
    """Return (first lane, number of lanes) of each run of neighbours in `lanes`, sorted."""
    found: list[tuple[int, int]] = []
    for lane in lanes:
        if found and sum(found[-1]) == lane:
            found[-1] = found[-1][0], found[-1][1] + 1
        else:
            found.append((lane, 1))
    return found


def _use(
    hosts: Sequence[str],
    of_host: Mapping[str, Sequence[SlotInterval]],
    slots: Mapping[str, int],
    from_s: float,
    to_s: float,
) -> tuple[HostUsage, ...]:
    """Return a row for each host, or for several together, with the part of slots in use."""
    together = max(1, ceil(len(hosts) / MOST_ROWS))
    found = []
    for first in range(0, len(hosts), together):
        group = hosts[first : first + together]
        used = [0.0] * COLUMNS
        for host in group:
            for one in of_host.get(host, ()):
                _add(used, one, from_s, to_s)
        size = sum(slots.get(host, 0) for host in group)
        most = max(size, ceil(max(used)), 1)  # hosts that are gone had slots, too
        name = group[0] if len(group) == 1 else f"{group[0]} to {group[-1]}"
        found.append(HostUsage(name, most, tuple(round(one / most, 2) for one in used)))
    return tuple(found)


def _add(used: list[float], one: SlotInterval, from_s: float, to_s: float) -> None:
    """Add the slots of an interval to the mean number of used slots of each column."""
    wide_s = (to_s - from_s) / len(used)
    begin = max(0.0, (one.begin_s - from_s) / wide_s)
    end = min(float(len(used)), ((to_s if one.end_s is None else one.end_s) - from_s) / wide_s)
    for column in range(int(begin), min(len(used), ceil(end))):
        used[column] += one.slots * (min(end, column + 1.0) - max(begin, float(column)))
