"""Draw jobs as in JSA's evaluation: four kinds, each with its own bottleneck and its batch range.

:func:`jsa_jobs` draws them. The evaluation (Saxena et al., MASCOTS 2020) has 40 slots, a decision
each 10 minutes, and 8 hours of arrivals. One kind of job is bound by computing, one by
communication, one by neither, and one has a small largest batch. The model of a step is also
theirs: the time for the samples of one slot, and an allreduce of the weights.

The authors published no measurements, so the constants here are edl's own. So are these rules: a
job has at most 10 slots, it takes 30 to 60 minutes, evenly distributed, on one slot that is fully
used, and half a minute is lost when a job is halted and resumed.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle

from edl.cluster.state import EXACT, StepTimeError
from edl.errors import UsageError
from edl.policy.step_time import StepTimeSample
from edl.simulator.workload import Observation, SubmittedJob

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

NODES, SLOTS = 10, 4
MOST_SLOTS = 10  # the most of a job
INTERVAL_S = 10 * MINUTE_S
RESIZE_S = 0.5 * MINUTE_S
UNTIL_S = 8 * HOUR_S
SHORTEST_S, LONGEST_S = 30 * MINUTE_S, 60 * MINUTE_S
BANDWIDTH_BYTES_S = 1.2e9  # of the allreduce
HOP_S = 2e-3  # of the allreduce, for each doubling of the slots
WEIGHT_BYTES = 4


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


@dataclass(frozen=True)
class Kind:
    """A kind of job, and its model of a step."""

    name: str
    weights: float  # the number of weights that an allreduce sums up
    # the seconds that each local batch takes, whatever the number of its samples; a slot trains
    # several of them in a step if its share does not fit
    start_s: float
    sample_s: float  # the seconds that each sample of a slot adds
    local_batch: int  # the most samples that fit into a slot at once
    # the smallest and the largest global batch in samples; a sample is worth the same in all
    # batches of this range
    batches: tuple[int, int]

    def step_s(self, slots: int, batch: int) -> float:
        """Return the seconds of a step: computing, and an allreduce among `slots` slots."""
        ring_s = 2 * (slots - 1) / slots * WEIGHT_BYTES * self.weights / BANDWIDTH_BYTES_S
        return self.computing_s(slots, batch) + ring_s + HOP_S * math.log2(slots)

    def computing_s(self, slots: int, batch: int) -> float:
        """Return the seconds that the slowest slot computes in a step, without the allreduce."""
        share = math.ceil(batch / slots)
        return self.start_s * math.ceil(share / self.local_batch) + self.sample_s * share


KINDS = (
    Kind("compute", 25e6, 0.05, 0.006, 32, (32, 256)),
    Kind("communication", 60e6, 0.02, 0.0004, 128, (128, 1024)),
    Kind("balanced", 28e6, 0.03, 0.002, 64, (64, 512)),
    Kind("capped", 28e6, 0.03, 0.002, 64, (32, 128)),
)


@dataclass(frozen=True)
class Samples:
    """The work of a job: a number of samples, each worth the same in any batch."""

    kind: Kind  # the kind of job, which has its speed
    count: float  # the number of samples, not necessarily whole

    @property
    def epochs(self) -> int:
        """The number of epochs of the job, which is always 1."""
        return 1

    def end_of(self, epoch: int) -> float:
        """Return the number of all samples: the progress at which the only epoch ends."""
        return self.count

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """Return the progress in samples a second."""
        return batch / self.kind.step_s(sum(slots), batch)

    def model(self, epoch: int, progress: float) -> SamplesModel:
        """Return the model that policies get of the job after `progress` trained samples."""
        return SamplesModel(self.kind, self.count - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """Return the step time that the job would measure, and an infinite noise scale."""
        count, kind = sum(slots), self.kind
        step_s, computing_s = kind.step_s(count, batch), kind.computing_s(count, batch)
        # A larger batch loses no progress here.
        return StepTimeSample(count, len(slots), batch / count, step_s, computing_s), math.inf


@dataclass(frozen=True)
class SamplesModel:
    """The model that policies get of a job of `Samples`: its true speed and work."""

    kind: Kind  # the kind of job, which has its speed
    left: float  # the number of samples that the job has yet to train

    @property
    def error(self) -> StepTimeError:
        """No error: the times are the true ones."""
        return EXACT

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """Return the seconds of a step with a global batch of `batch` samples."""
        return self.kind.step_s(sum(slots), batch)

    def efficiency(self, batch: int) -> float:
        """Return 1, the statistical efficiency: a sample is worth the same in any `batch`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """Return the number of steps of `batch` samples until the job ends, not rounded."""
        return self.left / batch


def job_of_kind(name: str, arrival_s: float, kind: Kind, duration_s: float) -> SubmittedJob:
    """Return a job that takes a given time on one slot, with the largest batch that fits there."""
    work = Samples(kind, duration_s * kind.local_batch / kind.step_s(1, kind.local_batch))
    return SubmittedJob(
        name=name,
        arrival_s=arrival_s,
        work=work,
        requested_slots=1,
        min_slots=1,
        max_slots=MOST_SLOTS,
        batch=kind.local_batch,
        batches=kind.batches,
        local_batches=(1, kind.local_batch),
        kind=kind.name,
    )


def jsa_jobs(arrivals: str, seed: int) -> list[SubmittedJob]:
    """Return jobs of JSA's four kinds that arrive within eight hours, drawn by `seed`."""
    chance = random.Random(f"jsa {seed}")
    made = []
    for number, arrival_s in enumerate(times(shape(arrivals), UNTIL_S, chance)):
        kind = chance.choice(KINDS)
        duration_s = chance.uniform(SHORTEST_S, LONGEST_S)
        made.append(job_of_kind(f"{kind.name}-{number}", arrival_s, kind, duration_s))
    if not made:
        raise UsageError(f"no job arrives in 8 hours at {arrivals} a minute; let more come")
    return made
