"""What a run did with the slots over time: of each job, and of all together."""

from __future__ import annotations

from collections import Counter
from typing import Any, NamedTuple

from edl.core.cluster.state import size
from edl.simulator.results import JobResult, Result


class Span(NamedTuple):
    """A time in which a job had so many slots; 0: it waited."""

    from_s: float
    to_s: float
    slots: int


class Usage(NamedTuple):
    """The state of the cluster from ``at_s`` until the next level.

    Attributes:
        used: slots of all jobs.
        waiting: jobs that have arrived, have not ended, and have no slots.
    """

    at_s: float
    used: int
    waiting: int

    def figures(self) -> dict[str, Any]:
        """For JSON."""
        return self._asdict()


def spans(job: JobResult) -> list[Span]:
    """From its submission to its end without a gap, one after the other; none is empty."""
    changes = [(job.arrival_s, 0)] + [(one.at_s, size(one.placement)) for one in job.history]
    ends_s = [at_s for at_s, _ in changes[1:]] + [job.end_s]
    return [
        Span(from_s, to_s, slots)
        for (from_s, slots), to_s in zip(changes, ends_s, strict=True)
        if to_s > from_s
    ]


def levels(result: Result) -> list[Usage]:
    """The slots in use and the length of the queue, at each time at which one of them changes."""
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
