"""Lay out the charts of the pages: slots over time, throughput by size and over time, workers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil
from statistics import median
from typing import Annotated

from edl.cluster.history import SlotInterval
from edl.job.profile import SAMPLES, Curve
from edl.job.snapshot import Snapshot
from edl.policy.observation import Observation
from edl.policy.scaling_profile import ScalingProfile
from edl.policy.stragglers import Times
from edl.record import Record
from edl.records import Stage
from edl.status import JobStatus, MemberStatus
from edl.text import workers

# --- Lay out who had which slots when: the Gantt chart of a cluster, over its hosts.
#
# `slot_chart` draws each interval as boxes on the *lanes* of its host, one for each slot. Where
# that is more than a browser can show, the chart has a row for each host, or for several hosts
# together, with the part of their slots in use over time. So its size has a bound, whatever a
# cluster has done.


MAX_LANES = 96  # of all hosts together; a lane is 13 pixels high
MAX_BOXES = 1500
MAX_ROWS = 40  # of a chart of use
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
    shown = sorted(
        (one for one in intervals if one.begin_s < to_s and (one.end_s or to_s) > from_s),
        key=lambda one: (one.begin_s, one.submission, one.host),
    )
    of_host: dict[str, list[SlotInterval]] = defaultdict(list)
    for one in shown:
        of_host[one.host].append(one)
    hosts = sorted({*slots, *of_host}, key=natural_order)
    is_large = len(shown) > MAX_BOXES  # each interval is a box at least
    laid_out = () if is_large else hosts
    rows = [_lanes_of(host, of_host[host], slots.get(host, 0), from_s) for host in laid_out]
    is_large |= sum(row.lanes for row in rows) > MAX_LANES
    is_large |= sum(len(row.boxes) for row in rows) > MAX_BOXES
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
    together = max(1, ceil(len(hosts) / MAX_ROWS))
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
    wide_s = (to_s - from_s) / len(used)
    begin = max(0.0, (one.begin_s - from_s) / wide_s)
    end = min(float(len(used)), ((to_s if one.end_s is None else one.end_s) - from_s) / wide_s)
    for column in range(int(begin), min(len(used), ceil(end))):
        used[column] += one.slots * (min(end, column + 1.0) - max(begin, float(column)))


# --- Say what a job gains from another size: R(k), measured and fitted, and what a change costs.
#
# R(k) is the throughput of k workers together, in samples a second. The fitted curve is the model
# by which the job's own size rule decides (`ScalingProfile.observation`). A change of size stops
# training for `change_s` seconds. What is lost then, R(now) * change_s samples, has been made up
# after
#
#     R(now) * change_s / (R(k) - R(now))    seconds, if R(k) > R(now).
#
# The throughputs are means over all steps at a size. While the present one is far from its mean, as
# when a slow worker holds the job up, they say nothing of the present: no gain is told then.


MAX_SIZES = 64  # of the fitted curve
FAR = 1.5  # the factor between the present throughput and its mean, from which the means are void
FAR_WHEN_SLOW = 1.1  # while the others wait for a slow worker
BEYOND = 2  # a curve without an end goes on to so many times the largest size known


@dataclass(frozen=True)
class SizeThroughput(Record):
    np: int  # the number of workers
    samples_per_s: float  # of all workers together
    steps: int = 0  # the steps in which it was measured; 0: it was not


@dataclass(frozen=True)
class ResizeForecast(Record):
    """The throughput and the end of a job if it had another number of workers."""

    np: int  # that number
    samples_per_s: float  # the throughput that is expected
    measured: bool  # whether that throughput was measured; else it is fitted
    gain: float | None  # of throughput, to the present size; None: the means do not hold now
    efficiency: float | None  # the throughput of a worker, relative to the smallest measured size
    eta_s: float | None  # the seconds until the training ends, with the change; None: not known
    pays_after_s: float | None  # the seconds until the cost of the change is made up; None: never


@dataclass(frozen=True)
class ScalingCurve(Record):
    """The throughput of a job by its size."""

    np: int  # the present number of workers
    samples_per_s: float | None  # the present throughput, measured or fitted; None: not known
    measured: tuple[SizeThroughput, ...]  # while it trained, the fewest workers first
    profiled: tuple[SizeThroughput, ...]  # what `edl profile` has measured
    fitted: tuple[SizeThroughput, ...]  # the model; empty: none was fitted
    change_s: float  # for how long training stands still at a change of size, in seconds
    change_measured: bool  # whether that was measured; else the value is an assumption
    forecasts: tuple[ResizeForecast, ...]  # what other sizes would bring
    void: str  # why the means do not hold now, so that no gain is told; empty: they do
    data_part: float  # the fraction of a step that workers wait for their data, on average
    room: int | None  # the largest number of workers for which the hosts have slots; None: any


def scaling_curve(
    snapshot: Snapshot,
    learned: ScalingProfile,
    profile: Curve | None,
    present_per_s: float | None = None,
) -> ScalingCurve:
    np = len(snapshot.generation.members) if snapshot.generation is not None else 0
    filled = [host.slots for host in snapshot.available]
    slots = sum(filled) or None
    now = learned.observation(
        np, snapshot.job.sizes, slots, False, snapshot.status.left, (), filled
    )
    rates = _rates(now)
    present = present_per_s or rates.get(np, 0.0)
    void, mean, slowest = "", rates.get(np, 0.0), snapshot.status.slowest
    low, high = sorted((mean, present))
    if low and high >= (FAR_WHEN_SLOW if slowest else FAR) * low:
        cause = f", while all wait for {slowest}" if slowest else ""
        void = (
            f"the job makes {present:,.0f} samples/s{cause}, and {mean:,.0f} is the mean of "
            f"{workers(np)}"
        )
    return ScalingCurve(
        np=np,
        samples_per_s=rates.get(np),
        measured=tuple(
            SizeThroughput(n, round(one.samples_per_s, 2), one.steps)
            for n, one in sorted(now.seen.items())
        ),
        profiled=tuple(
            SizeThroughput(one.np, round(one.throughput, 2), one.steps)
            for one in (profile.points if profile is not None else ())
            if one.unit == SAMPLES
        ),
        fitted=_fitted(now),
        change_s=round(now.change_s, 3),
        change_measured=learned.change_s > 0,
        forecasts=_forecasts(now, rates, present, is_void=bool(void)),
        void=void,
        data_part=round(learned.data_part, 4),
        room=slots,
    )


def _sizes(now: Observation) -> list[int]:
    """Return allowed sizes from 1 worker on, at most `MAX_SIZES`, evenly spread."""
    seen = max([now.np, *now.seen], default=1)
    limit = min(now.most, BEYOND * max(seen, now.sizes.min_np, 2))
    known = [np for np in range(1, max(limit, seen) + 1) if now.sizes.allows(np)]
    every = max(1, -(-len(known) // MAX_SIZES))
    return sorted({*known[::every], *known[-1:]})


def _rates(now: Observation) -> dict[int, float]:
    fitted = {one.np: one.samples_per_s for one in _fitted(now)}
    return fitted | {np: one.samples_per_s for np, one in now.seen.items()}


def _fitted(now: Observation) -> tuple[SizeThroughput, ...]:
    if now.model is None:
        return ()
    try:
        return tuple(SizeThroughput(np, round(now.model.throughput(np), 2)) for np in _sizes(now))
    except ArithmeticError:
        return ()


def _forecasts(
    now: Observation, rates: dict[int, float], present_per_s: float, is_void: bool
) -> tuple[ResizeForecast, ...]:
    present = rates.get(now.np)
    if not present:
        return ()
    near = {now.np - 2, now.np - 1, now.np, now.np + 1, now.np + 2, 2 * now.np, now.least}
    shown = sorted(np for np in near | {now.most} if np in rates and now.sizes.allows(np))
    least = min(now.seen, default=None)
    alone = now.seen[least].samples_per_s / least if least else None
    found = []
    for np in shown[:9]:
        rate, change_s = rates[np], 0.0 if np == now.np else now.change_s
        more = rate - present
        tells = not is_void or np == now.np
        found.append(
            ResizeForecast(
                np=np,
                samples_per_s=round(rate, 2),
                measured=np in now.seen,
                gain=round(rate / present, 4) if tells else None,
                efficiency=round(rate / np / alone, 4) if alone else None,
                eta_s=round(now.left / (present_per_s * rate / present) + change_s, 1)
                if tells and now.left and present_per_s > 0
                else None,
                pays_after_s=round(present * change_s / more, 2) if more > 0 and tells else None,
            )
        )
    return tuple(found)


# --- Keep a job's speed over time in bounded memory: means over equal periods.
#
# `ThroughputHistory` begins with periods of a second. Whenever it has more than `MAX_PERIODS`, the
# length of its periods doubles, so a week is as large as an hour.


MAX_PERIODS = 300
FIRST_PERIOD_S = 1.0
GAP_S = 10.0  # without a sample, beyond a period: no line is drawn there


@dataclass(frozen=True)
class StepParts(Record):
    """The mean time of a step in its parts, over workers, each in seconds."""

    compute_s: float
    data_s: float  # waiting for the batch
    reduce_s: float  # the shortest reduction of a worker, which waits for none
    wait_s: float  # waiting for slower workers: what the reductions of the others take longer


def step_parts(times: Sequence[Times]) -> StepParts | None:
    if not times:
        return None
    count, reduce_s = len(times), min(one.reduce_s for one in times)
    return StepParts(
        compute_s=sum(one.compute_s for one in times) / count,
        data_s=sum(one.data_s for one in times) / count,
        reduce_s=reduce_s,
        wait_s=sum(one.reduce_s - reduce_s for one in times) / count,
    )


@dataclass(frozen=True)
class SpeedSample(Record):
    """The speed of a job at one time, or its mean over a period."""

    at_s: float  # the time, in seconds since 1970; of a period its beginning
    samples_per_s: float  # the throughput of all workers together
    np: int  # the number of workers
    parts: StepParts | None = None  # the parts of a step; None: not known
    count: int = 1  # the number of samples of which this is the mean

    def and_then(self, later: SpeedSample) -> SpeedSample:
        count = self.count + later.count
        rate = (self.samples_per_s * self.count + later.samples_per_s * later.count) / count
        return SpeedSample(self.at_s, rate, later.np, later.parts or self.parts, count)


@dataclass(frozen=True)
class ThroughputHistory(Record):
    """A job's speed over time; `with_sample` adds to it."""

    period_s: float = FIRST_PERIOD_S  # the length of a period, in seconds
    # a mean for each observed period, the oldest first
    samples: tuple[SpeedSample, ...] = ()

    def with_sample(self, sample: SpeedSample) -> ThroughputHistory:
        new = replace(self, samples=_added(self.samples, sample, self.period_s))
        while len(new.samples) > MAX_PERIODS:
            new = new._doubled()
        return new

    def columns(self) -> dict[str, list[float | None]]:
        names = ("compute_s", "data_s", "reduce_s", "wait_s")
        columns: dict[str, list[float | None]] = {
            name: [] for name in ("at_s", "samples_per_s", "np", *names)
        }
        end_s = math.inf
        for one in self.samples:
            if one.at_s - end_s > GAP_S:
                for name, column in columns.items():
                    column.append(end_s if name == "at_s" else None)
            end_s = one.at_s + self.period_s
            columns["at_s"].append(one.at_s)
            columns["samples_per_s"].append(round(one.samples_per_s, 3))
            columns["np"].append(one.np)
            for name in names:
                part = None if one.parts is None else round(getattr(one.parts, name), 6)
                columns[name].append(part)
        return columns

    def _doubled(self) -> ThroughputHistory:
        period_s, samples = 2 * self.period_s, tuple[SpeedSample, ...]()
        for one in self.samples:
            samples = _added(samples, one, period_s)
        return ThroughputHistory(period_s, samples)


def _added(
    samples: tuple[SpeedSample, ...], sample: SpeedSample, period_s: float
) -> tuple[SpeedSample, ...]:
    """Return `samples` with one more, combined with the last one if it is of no later period."""
    last = samples[-1] if samples else None
    # Clocks differ: an earlier sample counts in the last period.
    if last is not None and last.at_s // period_s >= sample.at_s // period_s:
        return (*samples[:-1], last.and_then(sample))
    return (*samples, sample)


# --- Lay out the workers of a job beside their median: what each spends its steps with.
#
# The times come from the leader's scaling profile, which has those of the slowest workers. Of a
# worker's reduction, what is longer than the shortest reduction of all is waiting: the worker that
# all others wait for waits for none (`_network`).


MAX_HOSTS = 24
SLOW_BELOW = 0.8  # of the median speed, as the default of the policy for stragglers has it


@dataclass(frozen=True)
class WorkerRow(Record):
    """One worker in the table. Times are in seconds a step; None: not known."""

    worker: str  # its name
    host: str
    slot: int
    device: int | None
    rank: int | None  # its rank; None: it is not in the ring
    stage: str
    leads: bool  # whether it leads
    pid: int  # its process
    samples: float | None = None  # the samples that it trains in a step
    compute_s: float | None = None
    data_s: float | None = None  # waiting for its batch
    reduce_s: float | None = None  # reducing the gradients
    wait_s: float | None = None  # waiting for slower workers
    speed: float | None = None  # its samples in a second of its own time, relative to the median
    is_slow: bool = False  # below `SLOW_BELOW`, or the workers report that they wait for it
    note: str = ""  # what is unusual about it, in a few words; empty: nothing

    @property
    def own_s(self) -> float | None:
        """Computing and loading in a step, in seconds; None: not known."""
        known = self.compute_s is not None and self.data_s is not None
        return (self.compute_s or 0.0) + (self.data_s or 0.0) if known else None


@dataclass(frozen=True)
class WorkerTable(Record):
    """The workers of a job."""

    rows: tuple[WorkerRow, ...]  # the unusual and the slow ones if not all are shown
    total: int
    stages: Mapping[str, int]  # the number of workers by stage
    hosts: Mapping[str, int]  # the number of workers by host, of at most `MAX_HOSTS` hosts
    host_count: int  # the number of hosts
    timed: int  # the number of workers whose times are known: the slowest ones
    own_s: float | None  # the median of computing and loading in a step; None: none is timed
    step_s: float  # the longest step of a timed worker: the length of a full bar; 0: none
    evicted: Mapping[str, str]  # worker -> why it was evicted, the newest few
    disabled_slots: Mapping[str, str]  # slot -> why no worker is started in it


def worker_table(status: JobStatus, times: Sequence[Times]) -> WorkerTable:
    here = {one.id for one in status.members}
    known = {f"w{one.worker}": one for one in times if f"w{one.worker}" in here}
    own_s = median(one.own_s for one in known.values()) if known else None
    rates = [one.samples / one.own_s for one in known.values() if one.own_s > 0 and one.samples > 0]
    usual = median(rates) if rates else None
    least_s = min((one.reduce_s for one in known.values()), default=0.0)
    rows = [_row(one, status, known.get(one.id), usual, least_s) for one in status.members]
    if len(rows) > MAX_ROWS:
        rows = sorted(rows, key=_unusual)[:MAX_ROWS]
    rows.sort(key=lambda one: (one.rank is None, one.rank or 0, one.worker))
    hosts = Counter(one.host for one in status.members)
    return WorkerTable(
        rows=tuple(rows),
        total=len(status.members),
        stages=dict(sorted(Counter(str(one.stage) for one in status.members).items())),
        hosts=dict(sorted(hosts.items())[:MAX_HOSTS]),
        host_count=len(hosts),
        timed=len(known),
        own_s=own_s,
        step_s=max((one.own_s + one.reduce_s for one in known.values()), default=0.0),
        evicted=dict(list(status.evicted.items())[-5:]),
        disabled_slots=dict(list(status.disabled_slots.items())[:20]),
    )


def _row(
    member: MemberStatus,
    status: JobStatus,
    times: Times | None,
    usual: float | None,
    least_s: float,
) -> WorkerRow:
    row = WorkerRow(
        worker=member.id,
        host=member.host,
        slot=member.slot,
        device=member.device,
        rank=member.rank,
        stage=str(member.stage),
        leads=member.id == status.leader,
        pid=member.pid,
        is_slow=member.id == status.slowest,
        note=_note(member, None, member.id == status.slowest),
    )
    if times is None or member.rank is None:
        return row
    speed = times.samples / times.own_s / usual if usual and times.own_s > 0 else None
    return replace(
        row,
        samples=times.samples,
        compute_s=times.compute_s,
        data_s=times.data_s,
        reduce_s=least_s,
        wait_s=max(0.0, times.reduce_s - least_s),
        speed=speed,
        is_slow=row.is_slow or (speed is not None and speed < SLOW_BELOW),
        note=_note(member, speed, row.is_slow),
    )


def _note(member: MemberStatus, speed: float | None, is_slowest: bool) -> str:
    if member.stage == Stage.PREPARING:
        return "starts and warms up; the others train on"
    if member.stage == Stage.READY:
        return "ready; joins with the next switch"
    if member.stage == Stage.LEAVING:
        return "leaves with the next switch"
    if member.stage == Stage.FINISHED:
        return "has trained to the end"
    if member.rank is None:
        return "not in the newest ring"
    if speed is not None and speed < SLOW_BELOW:
        return f"slow: {speed:.2f} of the usual speed"
    return "slow: the others wait for it" if is_slowest else ""


def _unusual(row: WorkerRow) -> tuple[bool, float, str]:
    return (not row.note, -(row.own_s or 0.0), row.worker)
