"""Compute what a job gains from more workers: the curve of its throughput over its size.

Two readings of one worker's counters, taken by its own clock at the ends of two steps of one ring,
give the throughput. Its only error is the noise of the steps' times::

    throughput(n) = samples of all workers between the readings / time between them
    speed-up(n)   = throughput(n) / throughput(n0)          n0: the smallest size of the curve
    efficiency(n) = speed-up(n) · n0 / n                    1: throughput grows in proportion to n

A script that keeps its own place in its data (a Horovod elastic state) reports no samples, but each
worker trains the same share between two commits: there the work is commits times workers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import Any

from edl.errors import UsageError
from edl.record import Record
from edl.records import Job, ProgressSample

WARM_UP = 5  # steps of a new ring that are not measured
STEPS = 50  # steps to measure
PATIENCE = 3  # times the steps to measure; after these, pauses between epochs count too
SAMPLES, COMMITS = "samples", "commits"


@dataclass(frozen=True)
class Point(Record):
    """The measured throughput of a job with one number of workers.

    Attributes:
        np: the number of workers.
        throughput: the units of work that all workers together do in a second.
        step_s: the mean time of a step, in seconds.
        steps: how many steps were measured.
        seconds: how long these steps took together.
        unit: the unit of work: :data:`SAMPLES` or :data:`COMMITS`.
    """

    np: int
    throughput: float
    step_s: float
    steps: int
    seconds: float
    unit: str = SAMPLES


@dataclass(frozen=True)
class Curve(Record):
    """The profile of a job: its throughput at several sizes, as ZooKeeper keeps it.

    Attributes:
        job: the name of the job.
        taken: when the profile was taken, in seconds since 1970, for people only.
        points: one measurement for each number of workers, in ascending order of that number.
    """

    job: str
    taken: float
    points: tuple[Point, ...] = ()

    def with_point(self, point: Point) -> Curve:
        """Return a copy of the curve with ``point``, which replaces a point of the same size."""
        others = (p for p in self.points if p.np != point.np)
        points = tuple(sorted((*others, point), key=lambda p: p.np))
        return Curve(self.job, self.taken, points)

    def speedup(self, point: Point) -> float:
        """Return the throughput at ``point``, divided by that of the curve's smallest size.

        It is 0.0 if the smallest size has no throughput. The curve must have a point.
        """
        least = self.points[0].throughput
        return point.throughput / least if least else 0.0

    def efficiency(self, point: Point) -> float:
        """Return the speed-up at ``point``, divided by how many times as many workers it has.

        Both are relative to the curve's point with the fewest workers. The result is 1 if
        throughput grows in proportion to the number of workers, and mostly less. The curve must
        have a point.
        """
        return self.speedup(point) * self.points[0].np / point.np

    def figures(self) -> dict[str, Any]:
        """Return the curve as a dict of JSON values, as `edl profile --json` has it.

        The keys are "job", "taken", "unit" ("samples/s" or "commits/s") and "points", a list with
        the values of each :class:`Point`, its "speedup" and its "efficiency" over the smallest
        size. The values of the points are rounded.
        """
        return {
            "job": self.job,
            "taken": self.taken,
            "unit": self.unit,
            "points": [
                {
                    "np": point.np,
                    "throughput": round(point.throughput, 3),
                    "speedup": round(self.speedup(point), 4),
                    "efficiency": round(self.efficiency(point), 4),
                    "step_s": round(point.step_s, 6),
                    "steps": point.steps,
                    "seconds": round(point.seconds, 3),
                }
                for point in self.points
            ],
        }

    @property
    def unit(self) -> str:
        """The unit of the throughput: "samples/s" or "commits/s"; without a point "samples/s"."""
        return f"{self.points[0].unit if self.points else SAMPLES}/s"


def sizes(text: str) -> tuple[int, ...]:
    """Return the numbers of workers in a text such as "1..4", "1,2,4" or "3", largest first."""
    try:
        first, dots, last = text.partition("..")
        found = range(int(first), int(last) + 1) if dots else [int(n) for n in text.split(",")]
    except ValueError:
        found = []
    return in_order(found, text)


def in_order(sizes: Iterable[int], text: str = "") -> tuple[int, ...]:
    """Return the numbers in the order in which a profile measures them: largest first."""
    ordered = tuple(sorted(set(sizes), reverse=True))
    if not ordered or ordered[-1] < 1:
        raise UsageError(
            f"{text or list(ordered)!r} are no numbers of workers; write 1..4, or 1,2,4"
        )
    return ordered


def measured_point(
    readings: Sequence[ProgressSample], np: int, steps: int = STEPS, warm_up: int = WARM_UP
) -> Point | None:
    """Return the throughput of the last reading's ring; None: it was not seen long enough."""
    # The readings of the last reading's worker in its present ring, oldest first.
    run: list[ProgressSample] = []
    for reading in reversed(readings):
        last = readings[-1]
        if (reading.worker, reading.generation) != (last.worker, last.generation):
            break
        if not run or reading.step < run[-1].step:  # of one step the newest reading counts
            run.append(reading)
    run.reverse()
    if not run or run[0].size != np:
        return None
    warm = [reading for reading in run if reading.step >= run[0].step + warm_up]
    every = list(pairwise(warm))
    # Between two epochs a script evaluates or saves. These times count only if epochs are so short
    # that too few steps lie within them.
    within = [(a, b) for a, b in every if a.epoch == b.epoch]
    short = sum(b.step - a.step for a, b in within) < steps
    if short and sum(b.step - a.step for a, b in every) >= PATIENCE * steps:
        within = every
    count = sum(b.step - a.step for a, b in within)
    seconds = sum(b.at_s - a.at_s for a, b in within)
    if count < steps or seconds <= 0:
        return None
    samples = sum(b.samples - a.samples for a, b in within)
    unit, work = (SAMPLES, samples) if samples else (COMMITS, count * np)
    return Point(np, work / seconds, seconds / count, count, seconds, unit)


# ------------------------------------------------------------
# Which workers a profiled job shall have afterwards. A profile changes the size again and again;
# meanwhile a person may ask for another, or hosts and workers may come and go. A size that a person
# asked for stays. Otherwise only what the profile itself has taken or added is undone.


@dataclass(frozen=True)
class ProfileHold(Record):
    """The record at a job's ephemeral node `profile/hold` while a process profiles the job."""

    token: str  # of the profile
    by: str  # for people: "process 4711 on node1"
    before: Mapping[str, int]  # the desired workers by host when the profile began
    asked: bool = False  # a person has asked for a size during the profile; that size then stays


class HoldState(StrEnum):
    """Why a job that is profiled has its present desired placement."""

    OURS = "nobody else has changed it"
    MOVED = "hosts or workers came or left"
    ASKED = "somebody has asked for it"  # or it is not known who did


@dataclass(frozen=True)
class ProfileView:
    """What a process that profiles a job knows about the desired workers of that job."""

    token: str  # as in its `ProfileHold`
    before: Mapping[str, int]  # workers by host, as in the others
    ours: Sequence[Mapping[str, int]]  # what the profile found, wrote, or may have written
    # the newest of `ours` that was surely in ZooKeeper; None: not known
    last: Mapping[str, int] | None

    def overruled(self, hold: ProfileHold) -> bool:
        """Return whether this profile must not change the size any more."""
        return hold.asked or hold.token != self.token

    def fate_of(self, desired: Mapping[str, int], hold: ProfileHold | None) -> HoldState:
        """Return why `desired` is desired; without a hold the session of its writer has ended."""
        if hold is not None and self.overruled(hold):
            return HoldState.ASKED
        if desired in self.ours:
            return HoldState.OURS
        # It is not known any more whether it was asked for, or what it was before the change.
        return HoldState.ASKED if hold is None or self.last is None else HoldState.MOVED

    def given_back(
        self, desired: Mapping[str, int], fate: HoldState, slots: Mapping[str, int], job: Job
    ) -> Mapping[str, int]:
        """Return the placement (workers by host) that shall be desired after the profile."""
        if fate is HoldState.ASKED:
            return desired
        last = desired
        if fate is HoldState.MOVED:
            assert self.last is not None  # see fate_of
            last = self.last
        elif all(slots.get(host, 0) >= count for host, count in self.before.items()):
            return self.before
        # Each host gets what the profile has taken, and loses what it has added, if it has room.
        new = dict(desired)
        for host in sorted({*self.before, *last}):
            here = desired.get(host, 0)
            wanted = here + self.before.get(host, 0) - last.get(host, 0)
            new[host] = max(0, min(wanted, max(here, slots.get(host, 0))))
        # Back towards `desired` until the job may have the number.
        fitting = job.sizes.fit(sum(new.values()))
        for host in sorted(new, reverse=True):
            over = sum(new.values()) - fitting
            new[host] -= max(0, min(over, new[host] - desired.get(host, 0)))
        for host in sorted(new):
            short = fitting - sum(new.values())
            new[host] += max(0, min(short, desired.get(host, 0) - new[host]))
        return new
