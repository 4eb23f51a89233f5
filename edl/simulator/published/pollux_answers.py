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

from edl.errors import UsageError
from edl.simulator.published.workloads.pollux_measurements import pollux_rows
from edl.simulator.results import Result

EXPERIMENT = "jobload"  # the experiment with the policies at the loads, at an interval of 60 s


@dataclass(frozen=True)
class JctComparison:
    """The comparison of a run's job completion times (JCTs) with the published ones.

    :func:`compare` returns it.

    Attributes:
        jobs: the number of jobs.
        mean_jct_s: the mean JCT of the run, in seconds.
        published_mean_jct_s: the published mean JCT, in seconds.
        differing: for each job whose two JCTs are not exactly equal its name, the JCT of the run,
            and the published JCT, in seconds; in the order of the run.
    """

    jobs: int
    mean_jct_s: float
    published_mean_jct_s: float
    differing: tuple[tuple[str, float, float], ...]

    @property
    def matches(self) -> int:
        """The number of jobs whose JCT in the run is exactly the published one."""
        return self.jobs - len(self.differing)


@cache
def _all() -> Mapping[tuple[str, int], Mapping[str, float]]:
    """Return all published job completion times in seconds, by (run, workload) and by job name.

    A run is named after its policy and its load, like "tiresias-1.0"; a workload is a number from
    1 to 8. The file is read by the first call.
    """
    found: dict[tuple[str, int], dict[str, float]] = {}
    for row in pollux_rows("published_jcts"):
        if row["experiment"] == EXPERIMENT:
            run = found.setdefault((row["run"], int(row["workload"])), {})
            run[row["job"]] = float(row["jct_s"])
    return found


def answers(policy: str, load: str, workload: int) -> Mapping[str, float]:
    """Return the job completion time in seconds of each job in Pollux' artifact, by the job's name.

    Args:
        policy: the name of the policy, like "tiresias".
        load: the load, like "1.0".
        workload: the number of the workload, 1 to 8.

    Raises:
        UsageError: nothing was published for that policy, load and workload.
    """
    found = _all().get((f"{policy}-{load}", workload))
    if found is None:
        runs = sorted({run for run, _ in _all()})
        raise UsageError(
            f"nothing is published for {policy} at load {load}; there is {', '.join(runs)}"
        )
    return found


def compare(result: Result, published: Mapping[str, float]) -> JctComparison:
    """Compare the job completion times of a run with the published ones of the same jobs.

    Args:
        result: the result of the run; a job that was rejected counts from its submission to its
            rejection.
        published: the published completion time of each job in seconds, by its name.

    Raises:
        AssertionError: the jobs are not the same.
    """
    return compare_times({job.name: job.jct_s for job in result.jobs}, published)


def compare_times(ours: Mapping[str, float], published: Mapping[str, float]) -> JctComparison:
    """Compare the job completion times in ``ours`` with those in ``published``, job by job.

    Both have the completion time of each job in seconds, by its name. Times count as equal only if
    they are exactly equal.

    Raises:
        AssertionError: the two do not have the same jobs.
    """
    assert ours.keys() == published.keys()
    differing = tuple(
        (name, ours[name], published[name]) for name in ours if ours[name] != published[name]
    )
    return JctComparison(len(ours), fmean(ours.values()), fmean(published.values()), differing)
