"""Read when VirtualFlow's 20 jobs ended on 8 real GPUs: :func:`measured_ends`.

The authors ran the jobs twice: with a scheduler by priority, and with their scheduler by weighted
fair shares.
"""

from __future__ import annotations

from typing import NamedTuple

from benchmarks.published.virtualflow_workload import virtualflow_rows


class MeasuredEnds(NamedTuple):
    """The times at which one job ended in the authors' two runs, each with its own scheduler."""

    priority_end_s: float  # the end of the job with the scheduler by priority
    weighted_end_s: float  # the end of the job with the scheduler by weighted fair shares


def measured_ends() -> dict[str, MeasuredEnds]:
    """Return the measured ends of each of the 20 jobs, by its name, in the order of submission."""
    return {
        row["name"]: MeasuredEnds(float(row["priority_end_s"]), float(row["weighted_end_s"]))
        for row in virtualflow_rows()
    }
