"""Read when VirtualFlow's 20 jobs ended on 8 real GPUs, with the authors' two schedulers."""

from __future__ import annotations

from typing import NamedTuple

from edl.simulator.published.workloads.virtualflow_workload import virtualflow_rows


class MeasuredEnds(NamedTuple):
    """The measured end of one job with each of the authors' two schedulers.

    Both are in seconds from the start of the authors' run.

    Attributes:
        priority_end_s: the end of the job with the scheduler by priority.
        weighted_end_s: the end of the job with the scheduler by weighted fair shares.
    """

    priority_end_s: float
    weighted_end_s: float


def measured_ends() -> dict[str, MeasuredEnds]:
    """Return the measured ends of each job, by its name, in the order of submission."""
    return {
        row["name"]: MeasuredEnds(float(row["priority_end_s"]), float(row["weighted_end_s"]))
        for row in virtualflow_rows()
    }
