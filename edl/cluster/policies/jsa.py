"""Choose the batch and the slots of all jobs at once, so that together they train fastest (JSA).

JSA is the job scaling and autoscaling of Saxena et al. (MASCOTS 2020, arXiv 2006.13878):

1. A job trains equally well with any batch of its range. A batch is not possible if a slot's share
   does not fit into the slot's memory (nothing is accumulated). On k slots the job takes the batch
   with the highest throughput:

       F_j(k) = max over b of  P_j(b, k) / P_j(b_dev, 1)

   F_j(k) is the *relative throughput* of job j. P_j(b, k) is its throughput in samples a second,
   and b_dev the batch that fits into one slot. So one slot that is fully used is the unit in which
   jobs are compared.
2. The slots of all jobs are those with the largest sum of F_j(k_j), each job having at least as
   many as its batch needs (:mod:`edl.cluster.policies.jsa`).
3. While not all jobs fit, the job that was submitted last is left out. It waits, or is rejected if
   the caller rejects jobs without slots (drop mode). So jobs begin in the order of submission, and
   the first waiting job holds up all later ones, until enough jobs have ended.

Its baselines have one batch: the largest, the smallest, or a random one of each job's range. They
are elastic like JSA, or fixed: a job then has the fewest slots that hold its batch.

The objective knows no statistical efficiency and no cost of a resize. Batches are searched on a
geometric grid of at most 12 in the range that fits, its ends included. Random batches are the
smallest batch times a power of two. Which batches the authors tried is not known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt

from edl.cluster.placing import compact, place_slots
from edl.cluster.state import Allocation, ClusterJob, ClusterState
from edl.spec import setting
from edl.text import counted

# ------------------------------------------------------------
# Choose the number of slots of each job with the largest sum of values, by JSA's dynamic program.
#
# JSA is the scheduler of Saxena et al. (MASCOTS 2020). F_j(g) is the value of job j on g slots,
# minus infinity where the job cannot have so many. Each job gets at least one slot. P(j, k) is the
# largest sum of the first j jobs on k slots:
#
#     P(0, 0) = 0        P(j, k) = max over g of  F_j(g) + P(j - 1, k - g)
#
# The answer is the largest P(J, k) of all k <= K, where J is the number of jobs and K the number of
# slots. So slots may stay free. (The one public implementation takes P(J, K), by which a job may be
# given slots that slow it down.)
#
# For each job and g one vector operation covers all k. The program leaves out what changes no
# answer: the sizes of a job that have no larger value than a smaller size, and each k that the jobs
# so far cannot use, or that leaves too few slots for the minima of the other jobs. It does not
# assume diminishing gains: with a batch range gains do not diminish (the first slots that
# synchronise gain least). Time and memory grow as J * K * sizes and J * K. For 1,000 jobs and
# 10,000 slots it takes 0.08 s where each job may have 10 sizes, 0.5 s where it may have 64, and 0.1
# GB (one core of an AMD EPYC).


Values = npt.NDArray[np.float64]


@dataclass(frozen=True)
class ProgramRow:
    """A row of the dynamic program: for the first j jobs, the largest sum P(j, k) on k slots."""

    low: int  # the smallest number of slots k that the row covers
    values: Values  # P(j, k) for k = `low`, `low` + 1, and so on

    @property
    def high(self) -> int:
        return self.low + len(self.values) - 1


def best_sizes(values: Sequence[Values], slots: int) -> list[int] | None:
    # The sizes with a larger value than each smaller one. The value of 0 slots is ignored: each job
    # gets some.
    worth = [
        np.flatnonzero(of[1:] > np.maximum.accumulate(np.concatenate(([-np.inf], of[1:-1])))) + 1
        for of in values
    ]
    if any(len(sizes) == 0 for sizes in worth):
        return None
    needed = sum(int(sizes[0]) for sizes in worth)
    if needed > slots:
        return None
    rows = [ProgramRow(0, np.zeros(1))]
    scratch = np.empty(slots + 1)
    for of, sizes in zip(values, worth, strict=True):
        needed -= int(sizes[0])
        rows.append(_next(rows[-1], of, sizes, slots - needed, scratch))
    last = rows[-1]
    # The fewest slots of the same sum.
    used = last.low + int(np.argmax(last.values))
    chosen: list[int] = []
    for before, of, sizes in zip(rows[-2::-1], values[::-1], worth[::-1], strict=True):
        possible = sizes[(used - sizes >= before.low) & (used - sizes <= before.high)]
        sums = before.values[used - possible - before.low] + of[possible]
        chosen.append(int(possible[np.argmax(sums)]))
        used -= chosen[-1]
    return chosen[::-1]


def _next(
    before: ProgramRow, values: Values, sizes: npt.NDArray[np.int64], most: int, scratch: Values
) -> ProgramRow:
    low = before.low + int(sizes[0])
    high = min(before.high + int(sizes[-1]), most)
    row = np.full(high - low + 1, -np.inf)
    for size in sizes.tolist():
        begin, end = max(low, before.low + size), min(high, before.high + size) + 1
        if begin < end:
            sums = scratch[: end - begin]
            source = before.values[begin - size - before.low : end - size - before.low]
            np.add(source, values[size], out=sums)
            best = row[begin - low : end - low]
            np.maximum(best, sums, out=best)
    return ProgramRow(low, row)


GRID = 12
BEST, LARGEST, SMALLEST, RANDOM = "best", "largest", "smallest", "random"


@dataclass(frozen=True)
class Jsa:
    """The cluster policy `jsa`, which maximises the total throughput, and its baselines."""

    batch: str = setting(BEST, "of each job", choices=(BEST, LARGEST, SMALLEST, RANDOM))
    elastic: bool = setting(True, "whether a job may have more slots than its batch needs")
    seed: int = setting(0, "of random batches")

    def __call__(self, cluster: ClusterState) -> Allocation:
        fixed = cluster.fixed
        slots, largest = cluster.slots - sum(fixed.values()), cluster.per_node
        reasons: dict[str, str] = {}
        admitted: list[JobScaling] = []
        left, held = slots, False
        for job in cluster.jobs:
            if job.name in fixed:
                reasons[job.name] = "keeps its slots: it may not be preempted"
            elif held:
                reasons[job.name] = "waits: so does a job submitted before it"
            else:
                scaling = self._scaling(job, largest, left)
                held = not scaling.least
                if held:
                    reasons[job.name] = f"waits: of {slots} slots {left} are left, too few for it"
                else:
                    admitted.append(scaling)
                    left -= scaling.least
        chosen = best_sizes([one.values for one in admitted], slots)
        assert chosen is not None, "each of them fits beside the minima of the others"
        sizes, batches = dict(fixed), {}
        for one, count in zip(admitted, chosen, strict=True):
            sizes[one.job.name] = count
            reasons[one.job.name] = one.reason(count)
            if one.batches[count] != one.job.batch:
                batches[one.job.name] = one.batches[count]
        return Allocation(place_slots(sizes, cluster), reasons, cluster.state, batches)

    def _scaling(self, job: ClusterJob, slots_a_node: int, slots: int) -> JobScaling:
        low, high = self._range(job)
        scaling = JobScaling(job)
        unit = job.batches[1]
        if job.local_batches is not None:
            unit = min(unit, job.local_batches[1])
        unit_rate = unit / job.model.step_s((1,), unit)
        for count in range(1, min(job.max_slots, slots) + 1):
            chosen = None
            if count >= job.min_slots and (self.elastic or not scaling.least):
                chosen = fastest_batch(job, count, slots_a_node, low, high)
            if chosen is None:
                scaling.add(-math.inf, 0)
            else:
                scaling.add(chosen.rate / unit_rate, chosen.batch)
        return scaling

    def _range(self, job: ClusterJob) -> tuple[int, int]:
        low, high = job.batches
        if job.local_batches is not None:
            high = max(low, min(high, job.max_slots * job.local_batches[1]))
        if self.batch == BEST:
            return low, high
        if self.batch == RANDOM:
            doublings = (high // low).bit_length()
            drawn_of = [self.seed, crc32(f"{job.name} {job.arrival_s}".encode())]
            low = high = low << int(np.random.default_rng(drawn_of).integers(doublings))
        one = low if self.batch == SMALLEST else high
        return one, one


@dataclass
class JobScaling:
    """The relative throughput F_j(k) of one job on k slots, and the batch that reaches it."""

    job: ClusterJob  # the job as a policy reads it: its limits and measurements
    least: int = 0  # the fewest slots that the job can have; 0 if it can have no number of slots
    # the relative throughput by the number of slots: `rates[k]` is that of k slots, and minus
    # infinity where the job cannot have k slots, as for `rates[0]`
    rates: list[float] = field(default_factory=lambda: [-math.inf])
    batches: list[int] = field(default_factory=lambda: [0])  # the global batch of k slots, or 0

    def add(self, rate: float, batch: int) -> None:
        if rate > -math.inf and not self.least:
            self.least = len(self.rates)
        self.rates.append(rate)
        self.batches.append(batch)

    @property
    def values(self) -> Values:
        """`rates` as an array: the relative throughput by the number of slots, from 0 on."""
        return np.array(self.rates)

    def reason(self, count: int) -> str:
        slots = counted(count, "slot")
        rate = f"{self.rates[count]:.2f} times as fast as one full slot"
        return f"has {slots} and a batch of {self.batches[count]}: {rate}"


class BatchThroughput(NamedTuple):
    """A global batch, and the throughput that a job reaches with it."""

    batch: int  # the global batch, in samples
    rate: float  # the throughput, in samples a second


def fastest_batch(
    job: ClusterJob, slots: int, slots_a_node: int, low: int, high: int
) -> BatchThroughput | None:
    """Return the global batch with the highest throughput on `slots` slots; None if none fits."""
    if job.local_batches is not None:
        # Each slot must be able to hold its share.
        fewest, most = job.local_batches
        low, high = max(low, slots * fewest), min(high, slots * most)
    if low > high:
        return None
    placement = compact(slots, slots_a_node)
    best = BatchThroughput(0, -math.inf)
    steps = min(GRID - 1, high - low)
    grid = {low, high}
    for step in range(1, steps):
        # Multiples of `slots`, so that all slots have equal shares.
        batch = round(low * (high / low) ** (step / steps) / slots) * slots
        if low < batch < high:
            grid.add(batch)
    for batch in sorted(grid):
        rate = batch / job.model.step_s(placement, batch)
        # of equal ones the smallest
        if rate > best.rate:
            best = BatchThroughput(batch, rate)
    return best
