"""Read the job completion times (JCTs) that Pollux' artifact published, to compare runs with.

:func:`answers` returns them, and :func:`compare` compares a run with them. Tiresias and Optimus are
deterministic in Pollux' artifact, so a run of edl's simulator with one of them must end each job in
the same second as the artifact.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from statistics import fmean

from benchmarks.published.pollux_measurements import pollux_rows
from edl.errors import UsageError
from edl.simulator.results import Result

EXPERIMENT = "jobload"  # the experiment with the policies at the loads, at an interval of 60 s


@dataclass(frozen=True)
class JctComparison:
    """The comparison of a run's job completion times (JCTs) with the published ones."""

    jobs: int  # the number of jobs
    mean_jct_s: float  # the mean JCT of the run, in seconds
    published_mean_jct_s: float
    # for each job whose two JCTs are not exactly equal its name, the JCT of the run, and the
    # published JCT, in seconds; in the order of the run
    differing: tuple[tuple[str, float, float], ...]

    @property
    def matches(self) -> int:
        """The number of jobs whose JCT in the run is exactly the published one."""
        return self.jobs - len(self.differing)


@cache
def _all() -> Mapping[tuple[str, int], Mapping[str, float]]:
    """Return all published job completion times in seconds, by (run, workload) and by job name."""
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in pollux_rows("published_jcts"):
        if row["experiment"] == EXPERIMENT:
            run = found.setdefault((row["run"], int(row["workload"])), {})
            run[row["job"]] = float(row["jct_s"])
    return found


def answers(policy: str, load: str, workload: int) -> Mapping[str, float]:
    """Return the completion time of each job in seconds in Pollux' artifact, by its name."""
    found = _all().get((f"{policy}-{load}", workload))
    if found is None:
        runs = sorted({run for run, _ in _all()})
        raise UsageError(
            f"nothing is published for {policy} at load {load}; there is {', '.join(runs)}"
        )
    return found


def compare(result: Result, published: Mapping[str, float]) -> JctComparison:
    """Compare the job completion times of a run with the published ones of the same jobs."""
    return compare_times({job.name: job.jct_s for job in result.jobs}, published)


def compare_times(ours: Mapping[str, float], published: Mapping[str, float]) -> JctComparison:
    """Compare the job completion times in `ours` with those in `published`, job by job."""
    assert ours.keys() == published.keys()
    differing = tuple(
        (name, ours[name], published[name]) for name in ours if ours[name] != published[name]
    )
    return JctComparison(len(ours), fmean(ours.values()), fmean(published.values()), differing)
