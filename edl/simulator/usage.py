"""Compute how a run used the slots over time: :func:`spans` for a job, :func:`levels` for all."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from edl.cluster.state import slot_count
from edl.simulator.results import JobResult, Result


class SlotSpan(NamedTuple):
    """A period between two changes of a job's slots; with 0 slots the job waited."""

    from_s: float  # the begin of the period, in seconds on the clock of the job's result
    to_s: float  # the end of the period, later than its begin
    slots: int  # the number of slots that the job had


class Usage(NamedTuple):
    """The use of the cluster from one change to the next."""

    # the begin of the period between two changes, in seconds on the clock of the results
    at_s: float
    used: int  # the number of slots in use, by all jobs together
    # the number of jobs that have arrived, have neither ended nor been rejected, and have no slots
    waiting: int

    def figures(self) -> dict[str, Any]:
        """Return the three fields by name, as a dictionary that can be written as JSON."""
        return self._asdict()


def spans(job: JobResult) -> list[SlotSpan]:
    """Return the periods between the changes of the slots of `job`, in order of time."""
    changes = [(job.arrival_s, 0)] + [(one.at_s, slot_count(one.placement)) for one in job.history]
    ends_s = [at_s for at_s, _ in changes[1:]] + [job.end_s]
    return [
        SlotSpan(from_s, to_s, slots)
        for (from_s, slots), to_s in zip(changes, ends_s, strict=True)
        if to_s > from_s
    ]


def levels(result: Result) -> list[Usage]:
    """Return the number of used slots and of waiting jobs at each time at which one changes."""
    used: Counter[float] = Counter()
    waiting: Counter[float] = Counter()
    for job in result.jobs:
        for span in spans(job):
            of, by = (used, span.slots) if span.slots else (waiting, 1)
            of[span.from_s] += by
            of[span.to_s] -= by
    found = [Usage(0.0, 0, 0)]
    for at_s in sorted(used.keys() | waiting.keys()):
        last = found[-1]
        level = Usage(at_s, last.used + used[at_s], last.waiting + waiting[at_s])
        if level[1:] == last[1:]:
            continue
        if at_s == last.at_s:
            found.pop()
        found.append(level)
    return found
