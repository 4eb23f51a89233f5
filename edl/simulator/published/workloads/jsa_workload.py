"""Jobs as in JSA's evaluation: four kinds, that differ in what limits them, and a batch range each.

After Saxena et al. (MASCOTS 2020): 40 slots, a decision each 10 minutes, 8 hours of arrivals, one
kind of job bound by computing, one by communication, one by neither, one with a small largest
batch; and their model of a step: what the samples of one slot take, and an allreduce of the
weights. None of their measurements is public: the constants here are ours, and so are at most 10
slots for a job, 30 to 60 minutes, evenly distributed, on one slot that is fully used, and half a
minute for a job that is halted and resumed.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass

from edl.core.policy.step_time import Measured
from edl.errors import UsageError
from edl.simulator.arrivals import HOUR_S, MINUTE_S, shape, times
from edl.simulator.work import Observation, SubmittedJob

NODES, SLOTS = 10, 4
MOST_SLOTS = 10  # of a job
INTERVAL_S = 10 * MINUTE_S
RESIZE_S = 0.5 * MINUTE_S
UNTIL_S = 8 * HOUR_S
SHORTEST_S, LONGEST_S = 30 * MINUTE_S, 60 * MINUTE_S
BANDWIDTH_BYTES_S = 1.2e9  # of the allreduce
HOP_S = 2e-3  # of the allreduce, for each doubling of the slots
WEIGHT_BYTES = 4


@dataclass(frozen=True)
class Kind:
    """A kind of job.

    Attributes:
        weights: numbers that an allreduce sums up.
        start_s, sample_s: a step takes the former, and the latter for each sample of a slot.
        local_batch: samples that fit into a slot.
        batches: the smallest and the largest that it trains as well with.
    """

    name: str
    weights: float
    start_s: float
    sample_s: float
    local_batch: int
    batches: tuple[int, int]

    def step_s(self, slots: int, batch: int) -> float:
        """Seconds of a step: computing, and an allreduce of so many slots."""
        ring_s = 2 * (slots - 1) / slots * WEIGHT_BYTES * self.weights / BANDWIDTH_BYTES_S
        return self.computing_s(slots, batch) + ring_s + HOP_S * math.log2(slots)

    def computing_s(self, slots: int, batch: int) -> float:
        """Seconds that the slowest slot computes in a step, in parts that fit where need be."""
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
    """The work of a job: so many samples, each worth the same in any batch."""

    kind: Kind
    count: float

    @property
    def epochs(self) -> int:
        """See :class:`edl.simulator.work.JobWork`."""
        return 1

    def end_of(self, epoch: int) -> float:
        """See :class:`edl.simulator.work.JobWork`."""
        return self.count

    def rate(self, slots: tuple[int, ...], batch: int, epoch: int) -> float:
        """See :class:`edl.simulator.work.JobWork`: wherever the slots are."""
        return batch / self.kind.step_s(sum(slots), batch)

    def model(self, epoch: int, progress: float) -> SamplesModel:
        """See :class:`edl.simulator.work.JobWork`."""
        return SamplesModel(self.kind, self.count - progress)

    def observed(self, slots: tuple[int, ...], batch: int, epoch: int) -> Observation:
        """See :class:`edl.simulator.work.JobWork`. A larger batch loses nothing: all is noise."""
        count, kind = sum(slots), self.kind
        step_s, computing_s = kind.step_s(count, batch), kind.computing_s(count, batch)
        return Measured(count, len(slots), batch / count, step_s, computing_s), math.inf


@dataclass(frozen=True)
class SamplesModel:
    """What policies are told of such work: the truth."""

    kind: Kind
    left: float

    def step_s(self, slots: tuple[int, ...], batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.kind.step_s(sum(slots), batch)

    def efficiency(self, batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return 1.0

    def steps_left(self, batch: int) -> float:
        """See :class:`edl.core.cluster.state.Model`."""
        return self.left / batch


def job_of_kind(name: str, arrival_s: float, kind: Kind, duration_s: float) -> SubmittedJob:
    """A job that takes so long on one slot that is fully used, which is what its user requests."""
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
    """The jobs of eight hours.

    Args:
        arrivals: see :func:`edl.simulator.arrivals.shape`.

    Raises:
        UsageError: see there, or nobody comes.
    """
    chance = random.Random(f"jsa {seed}")
    made = []
    for number, arrival_s in enumerate(times(shape(arrivals), UNTIL_S, chance)):
        kind = chance.choice(KINDS)
        duration_s = chance.uniform(SHORTEST_S, LONGEST_S)
        made.append(job_of_kind(f"{kind.name}-{number}", arrival_s, kind, duration_s))
    if not made:
        raise UsageError(f"no job arrives in 8 hours at {arrivals} a minute; let more come")
    return made
