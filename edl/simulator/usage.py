"""Compute how a run used the slots over time, for each job and for the whole cluster."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from edl.core.cluster.state import slot_count
from edl.simulator.results import JobResult, Result


class SlotSpan(NamedTuple):
    """A period in which a job had the same number of slots; with 0 slots it waited.

    Attributes:
        from_s: the begin of the period, in seconds of virtual time.
        to_s: the end of the period.
        slots: the number of slots.
    """

    from_s: float
    to_s: float
    slots: int


class Usage(NamedTuple):
    """The use of the cluster from one change to the next.

    Attributes:
        at_s: the begin of the period between two changes, in seconds of virtual time.
        used: the number of slots in use, by all jobs together.
        waiting: the number of jobs that have arrived, have not ended, and have no slots.
    """

    at_s: float
    used: int
    waiting: int

    def figures(self) -> dict[str, Any]:
        """Return the fields as a dictionary that can be written as JSON."""
        return self._asdict()


def spans(job: JobResult) -> list[SlotSpan]:
    """Return the periods of ``job`` with a constant number of slots, in order of time.

    They cover the time from the job's submission to its end without a gap, and none is empty.
    """
    changes = [(job.arrival_s, 0)] + [(one.at_s, slot_count(one.placement)) for one in job.history]
    ends_s = [at_s for at_s, _ in changes[1:]] + [job.end_s]
    return [
        SlotSpan(from_s, to_s, slots)
        for (from_s, slots), to_s in zip(changes, ends_s, strict=True)
        if to_s > from_s
    ]


def levels(result: Result) -> list[Usage]:
    """Return the number of used slots and of waiting jobs at each time at which one changes.

    The values of an item last until the time of the next item. The items are in order of time; the
    first is at time 0.
    """
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
