"""The published completion times, and whether a run has the same ones.

Tiresias and Optimus are deterministic in Pollux' artifact, so each job must end in the same second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from edl.errors import UsageError
from edl.simulator.published.workloads.pollux_measurements import pollux_rows
from edl.simulator.results import Result

EXPERIMENT = "jobload"  # of the policies at the loads, with an interval of 60 s


@dataclass(frozen=True)
class JctComparison:
    """A run beside the published one.

    Attributes:
        differing: jobs whose completion time is another one: name, ours, published, in seconds.
    """

    jobs: int
    mean_jct_s: float
    published_mean_jct_s: float
    differing: tuple[tuple[str, float, float], ...]

    @property
    def matches(self) -> int:
        """Jobs that end in the same second."""
        return self.jobs - len(self.differing)


@cache
def _all() -> Mapping[tuple[str, int], Mapping[str, float]]:
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in pollux_rows("published_jcts"):
        if row["experiment"] == EXPERIMENT:
            run = found.setdefault((row["run"], int(row["workload"])), {})
            run[row["job"]] = float(row["jct_s"])
    return found


def answers(policy: str, load: str, workload: int) -> Mapping[str, float]:
    """The completion time of each job, in seconds, by name.

    Raises:
        UsageError: nothing was published for that policy and load.
    """
    found = _all().get((f"{policy}-{load}", workload))
    if found is None:
        runs = sorted({run for run, _ in _all()})
        raise UsageError(
            f"nothing is published for {policy} at load {load}; there is {', '.join(runs)}"
        )
    return found


def compare(result: Result, published: Mapping[str, float]) -> JctComparison:
    """The run beside the published answers, which are of the same jobs."""
    return compare_times({job.name: job.jct_s for job in result.jobs}, published)


def compare_times(ours: Mapping[str, float], published: Mapping[str, float]) -> JctComparison:
    """As :func:`compare`, of the completion time of each job."""
    assert ours.keys() == published.keys()
    differing = tuple(
        (name, ours[name], published[name]) for name in ours if ours[name] != published[name]
    )
    return JctComparison(len(ours), fmean(ours.values()), fmean(published.values()), differing)
