"""Compute the speed, the remaining time and the best batch of a job by its number of slots.

:func:`curve` does it, for policy ``edl``. On k slots a job trains with the batch b of its range
that makes most progress, R(k) = max b * efficiency(b) / step_s(k, b), with its present efficiency
(Pollux, OSDI 2021, section 3). Batches are the smallest one, doubled up to the largest. All numbers
of slots up to a node are tried, beyond that only whole nodes, so that jobs seldom lie on more nodes
than they need. If the job's model says that its step times have errors of their own, they are
averaged over decisions and smoothed first (:mod:`edl.core.cluster.smoothing`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from edl.core.cluster.jsa_program import Values
from edl.core.cluster.placing import compact
from edl.core.cluster.smoothing import Means, averaged, smoothed
from edl.core.cluster.state import ClusterJob
from edl.core.duration import duration_in_words
from edl.core.plural import counted


@dataclass(frozen=True)
class SlotValues:
    """The speed, the remaining time and the batch of one job, by its number of slots from 0 on."""

    # the job as a policy reads it: its limits, its present slots and its measurements
    job: ClusterJob
    had: int  # the slots that the job has now, if it may have as many again; else 0
    least: int  # the fewest slots that it can have; 0 if it cannot have any
    # by the number of slots k, the speed s(k), which is 0 for k = 0 and k_min on k_min slots (the
    # fewest); minus infinity where the job cannot have so many slots, or where that number is not
    # tried
    speeds: Values
    # by the number of slots, the seconds until the job's end; infinite for 0 slots, where it cannot
    # have so many, or where that number is not tried
    left_s: Values
    # by the number of slots, the global batch that makes most progress, in samples
    batches: Sequence[int]
    # the standard deviation of the error of the logarithm of a speed; 0: none is known
    deviation: float = 0.0
    # the means of its step times over decisions, if each errs by itself; else empty
    readings: Means = field(default_factory=dict)

    @property
    def is_rigid(self) -> bool:
        """Whether it may have just one number of slots."""
        return self.job.max_slots == self.least

    @property
    def size_slot_s(self) -> float:
        """The work left: the seconds until the end on the fewest slots, times these slots."""
        start_s = 0.0 if self.had else self.job.start_s
        return (float(self.left_s[self.least]) + start_s) * self.least

    @property
    def requested_s(self) -> float:
        """The seconds until the job's end on the slots that it requested."""
        # Not of a job that can have no slots; of a number that was not tried, the next smaller one.
        known = self.left_s[self.least : max(self.job.requested_slots, self.least) + 1]
        return float(known[np.isfinite(known)][-1])

    def reason(self, slots: int, price: float) -> str:
        """Return the sentence that says why the job gets `slots` slots, or why it waits."""
        if not self.least:
            needs = counted(self.job.min_slots, "slot")
            return f"waits: it needs {needs}, and there are fewer"
        if not slots:
            left = self._left_in_words(self.least)
            left = left and f"{left} to go on its fewest slots; "
            return f"waits: {left}price {price:.2f}"
        has = f"has {counted(slots, 'slot')}"
        if len(set(self.job.batches)) > 1:
            has += f" and a batch of {self.batches[slots]}"
        left = self._left_in_words(slots)
        return f"{has}: {left and f'{left} to go; '}price {price:.2f}"

    def _left_in_words(self, slots: int) -> str:
        """Return how long the job has to train on `slots` slots, as words for a reason."""
        if not self.job.is_measured:
            return ""
        left_s = float(self.left_s[slots])
        if not math.isfinite(left_s):
            return "an unknown time"
        return f"about {duration_in_words(left_s)}"


def curve(
    job: ClusterJob, had: int, slots_a_node: int, slots: int, before: Means | None = None
) -> SlotValues:
    """Return the speed, the remaining time and the best batch of a job by its number of slots."""
    most = min(job.max_slots, slots)
    worth = {batch: batch * job.model.efficiency(batch) for batch in _batches(job)}
    fewest = job.local_batches[0] if job.local_batches else 0
    tried = [
        (count, batch)
        for count in _sizes(job.min_slots, most, had, slots_a_node)
        for batch in worth
        if batch >= count * fewest
    ]
    step_s, deviation, readings = _step_times(job, tried, slots_a_node, before or {})
    rates, batches = np.full(max(most, 0) + 1, -math.inf), [job.batch] * (max(most, 0) + 1)
    for (count, batch), seconds in zip(tried, step_s, strict=True):
        rate = worth[batch] / seconds
        if rate > rates[count]:
            rates[count], batches[count] = rate, batch
    possible = np.flatnonzero(rates > -math.inf)
    left_s = np.full(len(rates), math.inf)
    rates[0] = 0.0
    if not len(possible):
        return SlotValues(job, 0, 0, rates, left_s, batches)
    least = int(possible[0])
    batch = batches[least]
    longest_s = job.model.steps_left(batch) * step_s[tried.index((least, batch))]
    left_s[possible] = longest_s * rates[least] / rates[possible]
    return SlotValues(
        job,
        had if had < len(rates) and rates[had] > 0 else 0,
        least,
        least * rates / rates[least],
        left_s,
        batches,
        deviation,
        readings,
    )


def _step_times(
    job: ClusterJob, tried: Sequence[tuple[int, int]], slots_a_node: int, before: Means
) -> tuple[Sequence[float], float, dict[str, list[float]]]:
    """Return the seconds of a step of a job by its model, and the deviation of their logarithms."""
    placements = [compact(count, slots_a_node) for count, _ in tried]
    step_s = [
        job.model.step_s(placement, batch)
        for placement, (_, batch) in zip(placements, tried, strict=True)
    ]
    error = job.model.error
    if not error.deviation or error.readings or not tried:
        return step_s, error.deviation, {}
    keys = [f"{count} {batch}" for count, batch in tried]
    means, times, readings = averaged(step_s, keys, before)
    counts, batches = np.array(tried, float).T
    nodes = np.array([len(placement) for placement in placements], float)
    deviation = error.deviation / math.sqrt(times)
    found, left = smoothed(means, counts, nodes, batches, deviation)
    return found.tolist(), left, readings


def _sizes(least: int, most: int, had: int, slots_a_node: int) -> list[int]:
    sizes = {*range(least, slots_a_node + 1), *range(0, most + 1, slots_a_node), least, had, most}
    return sorted(size for size in sizes if least <= size <= most)


def _batches(job: ClusterJob) -> list[int]:
    """Return the global batches to try for a job, ascending, in samples."""
    smallest, largest = job.batches
    doublings = (largest // smallest).bit_length()
    return sorted({min(smallest << doubling, largest) for doubling in range(doublings)} | {largest})
