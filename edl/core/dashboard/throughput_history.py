"""Keep a job's speed over time in bounded memory: means over equal periods.

:class:`ThroughputHistory` begins with periods of a second. Whenever it has more than
:data:`MOST_PERIODS`, the length of its periods doubles, so a week is as large as an hour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from edl.core.policy.stragglers import Times
from edl.core.record import Record

MOST_PERIODS = 300
FIRST_PERIOD_S = 1.0
GAP_S = 10.0  # without a sample, beyond a period: no line is drawn there


@dataclass(frozen=True)
class StepParts(Record):
    """The mean time of a step in its parts, over workers, each in seconds."""

    compute_s: float
    data_s: float  # waiting for the batch
    # reducing the gradients: the shortest reduction of a worker, which waits for none
    reduce_s: float
    wait_s: float  # waiting for slower workers: what the reductions of the others take longer


def step_parts(times: Sequence[Times]) -> StepParts | None:
    """Return the mean parts of a step over the workers of `times`; None without any."""
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
        """Return the mean of this sample and `later`, weighted by their counts, at this time."""
        count = self.count + later.count
        rate = (self.samples_per_s * self.count + later.samples_per_s * later.count) / count
        return SpeedSample(self.at_s, rate, later.np, later.parts or self.parts, count)


@dataclass(frozen=True)
class ThroughputHistory(Record):
    """A job's speed over time; `with_sample` adds to it."""

    period_s: float = FIRST_PERIOD_S  # the length of a period, in seconds
    # a mean for each period in which the job was observed, the oldest first
    samples: tuple[SpeedSample, ...] = ()

    def with_sample(self, sample: SpeedSample) -> ThroughputHistory:
        """Return the history with `sample`, which is the newest."""
        new = replace(self, samples=_added(self.samples, sample, self.period_s))
        while len(new.samples) > MOST_PERIODS:
            new = new._doubled()
        return new

    def columns(self) -> dict[str, list[float | None]]:
        """Return the samples as columns for a chart, by name; None where a value is not known."""
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
        """Return the history with periods that are twice as long."""
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
