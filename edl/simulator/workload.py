"""Make synthetic traces on which cluster policies differ: rigid jobs, bursts, two kinds of nodes.

Each function returns the jobs of one trace; those that draw at random draw by seed. All durations
follow Amdahl's law (:mod:`edl.simulator.workload`). The cluster has 16 nodes of 4 slots; policies
decide each 60 s, and a change of slots costs 30 s, as on Pollux' workloads.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

from edl.cluster.state import EXACT, Node, StepTimeError, TrainingModel
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample
from edl.simulator.costs import constant

# ------------------------------------------------------------
# Define the true work of a job, which the simulator knows and a policy does not.
#
# `SubmittedJob` is a job, and `JobWork` the interface of its work.


Observation = tuple[StepTimeSample, float | None]

"""A step that a job has made, and the noise scale of its gradients in samples; None: not known."""


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
    # the number of slots that its user requests; it lies between the two limits
    requested_slots: int
    min_slots: int  # the fewest and the most slots that a policy may give it
    max_slots: int
    batch: int = 1  # the global batch that its user requests, in samples
    # the smallest and the largest global batch that a policy may choose
    batches: tuple[int, int] = (1, 1)
    # whether a policy may change its slots. If False, the job keeps the slots that it was first
    # given until it ends.
    preemptible: bool = True
    # the fewest samples of a step that one slot can train, and the most that it can train at once
    # (a larger share is accumulated); None: there is no limit
    local_batches: tuple[int, int] | None = None
    kind: str = ""  # the kind of job (like the name of its application), for tables; may be empty
    weight: float = 1.0  # its weight in policies that share slots by weight; above 0


# ------------------------------------------------------------
# Draw at random when jobs are submitted: a Poisson process whose rate may change with time.
#
# `times` draws the times; `shape` returns the rates that a name stands for.


MINUTE_S = 60.0

HOUR_S = 3600.0

Pieces = Sequence[tuple[float, float]]

"""Seconds, and arrivals a second meanwhile; they come one after the other, over and over."""

LOW, HIGH = 0.2 / MINUTE_S, 1.0 / MINUTE_S

SHAPES: dict[str, Pieces] = {
    "low": [(HOUR_S, LOW)],
    "high": [(HOUR_S, HIGH)],
    "mixed": [(HOUR_S, LOW), (HOUR_S, HIGH)],
    "bursts": [(10 * MINUTE_S, 3.0 / MINUTE_S), (50 * MINUTE_S, 0.1 / MINUTE_S)],
}

"""JSA's rates of arrival; that "mixed" changes each hour is theirs, the rates themselves are not
known. Jobs of 45 minutes on one slot each keep 9 of 40 slots busy at 0.2 a minute, and ask for 45
at 1 a minute."""


def times(pieces: Pieces, until_s: float, chance: random.Random) -> Iterator[float]:
    """Yield the times at which jobs are submitted, in seconds from 0, before `until_s`."""
    begun_s, owed = 0.0, chance.expovariate(1.0)
    for seconds, per_s in cycle(pieces):
        at_s, end_s = begun_s, min(begun_s + seconds, until_s)
        while owed < (end_s - at_s) * per_s:
            at_s += owed / per_s
            yield at_s
            owed = chance.expovariate(1.0)
        owed -= (end_s - at_s) * per_s
        begun_s += seconds
        if begun_s >= until_s:
            return


def shape(text: str) -> Pieces:
    """Return the rates of submission that `text` names, for `times`."""
    if text in SHAPES:
        return SHAPES[text]
    try:
        per_minute = float(text)
    except ValueError:
        per_minute = 0.0
    if not 0 < per_minute <= 1000:
        raise UsageError(
            f"there are no arrivals {text!r}; use {', '.join(SHAPES)}, or a number of jobs a minute"
        )
    return [(HOUR_S, per_minute / MINUTE_S)]


# ------------------------------------------------------------
# Define jobs of a known duration, whose speed with other slots follows Amdahl's law.
#
# `TimedWork` is the work of such a job.


@dataclass(frozen=True)
class TimedWork:
    """The work of a job that takes a known time with a certain number of slots."""

    duration_s: float  # the seconds that the work takes with `slots` slots, above 0
    slots: int  # the number of slots for which the duration is known, at least 1
    # the fraction of the work that is divided among the slots, 0 to 1; the rest takes equally long
    # on any number of slots
    parallel_fraction: float = 1.0

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, which is always 1."""
        return 1

    def end_of(self, epoch: int) -> float:
        """Return 1, the progress at the end of the only epoch, whatever `epoch` is."""
        return 1.0

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress per second, a fraction of the whole work, by Amdahl's law."""
        return 1 / self.whole_s(sum(slots))

    def model(self, epoch: int, progress: float) -> TimedModel:
        """Return the model that policies get: it has the true speed and the work yet to be done."""
        return TimedModel(self, 1 - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time that the job would measure, and None: no noise scale is known."""
        whole_s = self.whole_s(sum(slots))
        return StepTimeSample(sum(slots), len(slots), batch / sum(slots), whole_s, whole_s), None

    def whole_s(self, slots: int) -> float:
        """Return the seconds that the whole work, from its begin, takes with `slots` slots."""
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
        """No error: the times are the true ones."""
        return EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of the single step, which is the whole work, done or not."""
        return self.work.whole_s(sum(slots))

    def efficiency(self, batch: int) -> float:
        """Return 1, the statistical efficiency: a sample is worth the same in any `batch`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """Return the fraction of the single step that is yet to be done, 0 to 1."""
        return self.left


NODES, SLOTS = 16, 4

INTERVAL_S = 60.0

RESIZE = constant(30.0)

SPEEDS = {"fast": 4.0, "slow": 1.0}

POWERS = (1, 2, 4, 8, 16, 32, 64)


def wide_job_first() -> list[SubmittedJob]:
    """Return a job of all 64 slots for 6 h, and 1,423 jobs of 1 slot for 5 min behind it."""
    chance = random.Random("wide")
    times = sorted(chance.uniform(0.0, 1423 * 30.0) for _ in range(1423))
    wide = _rigid("wide", 0.0, 6 * HOUR_S, NODES * SLOTS)
    return [wide, *(_rigid(f"small-{at}", at_s, 300.0, 1) for at, at_s in enumerate(times))]


def rigid_jobs(seed: int, count: int = 350, load: float = 0.9) -> list[SubmittedJob]:
    """Return rigid jobs of 1 to 64 slots whose durations are lognormal, as on shared clusters."""
    chance = random.Random(f"rigid {seed}")
    sizes = chance.choices(POWERS, [1 / size for size in POWERS], k=count)
    durations = [chance.lognormvariate(math.log(600.0), 2.0) for _ in range(count)]
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    span_s = work / (load * NODES * SLOTS)
    times = sorted(chance.uniform(0.0, span_s) for _ in range(count))
    return [
        _rigid(f"rigid-{at}", *of)
        for at, of in enumerate(zip(times, durations, sizes, strict=True))
    ]


def bursts(seed: int) -> list[SubmittedJob]:
    """Return 24 long elastic jobs, and three bursts of 120 short ones."""
    chance = random.Random(f"bursts {seed}")
    jobs = [
        _elastic(
            f"long-{at}",
            chance.uniform(0.0, HOUR_S),
            chance.uniform(2 * HOUR_S, 6 * HOUR_S),
            4,
            16,
        )
        for at in range(24)
    ]
    for burst, begin_s in enumerate((HOUR_S, 3 * HOUR_S, 5 * HOUR_S)):
        jobs += [
            _elastic(
                f"short-{burst}-{at}",
                begin_s + chance.uniform(0.0, 600.0),
                chance.uniform(120.0, 480.0),
                chance.choice((1, 2, 4)),
                4,
            )
            for at in range(120)
        ]
    return sorted(jobs, key=lambda job: job.arrival_s)


def elastic_jobs(seed: int, count: int = 237, load: float = 0.8) -> list[SubmittedJob]:
    """Return elastic jobs whose durations are lognormal, for nodes of two kinds."""
    chance = random.Random(f"elastic {seed}")
    sizes = [chance.choice((1, 2, 4, 8)) for _ in range(count)]
    durations = [chance.lognormvariate(math.log(3000.0), 1.0) for _ in range(count)]
    work = sum(size * duration for size, duration in zip(sizes, durations, strict=True))
    slots = NODES * SLOTS * sum(SPEEDS.values()) / len(SPEEDS)
    times = sorted(chance.uniform(0.0, work / (load * slots)) for _ in range(count))
    return [
        _elastic(f"elastic-{at}", arrival_s, duration_s, size, 16)
        for at, (arrival_s, duration_s, size) in enumerate(
            zip(times, durations, sizes, strict=True)
        )
    ]


def two_kinds(order: str) -> list[Node]:
    """Return the nodes of a cluster, half of them of each kind of `SPEEDS`."""
    kinds = {
        "fast": ["fast"] * (NODES // 2) + ["slow"] * (NODES // 2),
        "slow": ["slow"] * (NODES // 2) + ["fast"] * (NODES // 2),
        "mixed": ["fast", "slow"] * (NODES // 2),
    }[order]
    return [Node(f"n{at}", SLOTS, kind) for at, kind in enumerate(kinds)]


def _rigid(name: str, arrival_s: float, duration_s: float, slots: int) -> SubmittedJob:
    return SubmittedJob(name, arrival_s, TimedWork(duration_s, slots), slots, slots, slots)


def _elastic(name: str, arrival_s: float, duration_s: float, slots: int, most: int) -> SubmittedJob:
    return SubmittedJob(name, arrival_s, TimedWork(duration_s, slots, 0.95), slots, 1, most)
