"""Judge a job by what its workers report at the end: each sample counted once in each epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cluster_jobs.workload import EPOCHS, WorkloadJob


def problem_of(reports: Sequence[Mapping[str, Any]], job: WorkloadJob) -> str:
    """Return what is wrong with the counts of a job; empty if nothing is.

    Args:
        reports: the reports of the workers that trained to the end (tests' ``tally.py``).
        job: the job.
    """
    if not reports:
        return "no worker has reported"
    wanted = {"counts": {str(EPOCHS): job.samples}, "steps": job.steps, "wrong": []}
    for report in reports:
        for key, value in wanted.items():
            if report[key] != value:
                return f"worker {report['pid']}: {key} is {report[key]}, not {value}"
    if len({report["w_sha256"] for report in reports}) > 1:
        return "its workers have different parameters"
    return ""
