"""Read from a job's event log which sizes the job has had, and what it trained with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from edl.core.events import (
    DesiredDetails,
    Event,
    GenerationDetails,
    PolicyDetails,
    StragglerDetails,
)


@dataclass(frozen=True)
class SizeSpan:
    """A period in which a job had one number of workers."""

    from_s: float  # since the job's first event, as all times here
    to_s: float
    np: int  # above 0
    samples_per_s: float | None = None  # of all workers together; None: no event tells it


@dataclass(frozen=True)
class HistoryMark:
    """A decision or finding about a job's workers, as one event of its log tells it."""

    at_s: float
    by: str  # the text of a `RequestedBy`, or `straggler`
    reason: str


@dataclass(frozen=True)
class History:
    """The sizes that a job has had, and the decisions about it, in order of time."""

    job: str
    spans: tuple[SizeSpan, ...]  # without times without workers
    marks: tuple[HistoryMark, ...]


def history(job: str, events: Sequence[Event]) -> History:
    """Return the history of a job that all its `events` tell, which must be in order of time."""
    if not events:
        return History(job, (), ())
    first_s, last_s = events[0].time, events[-1].time
    sizes = [
        (event.time - first_s, len(event.details.members))
        for event in events
        if isinstance(event.details, GenerationDetails)
    ]
    spans = [
        SizeSpan(at_s, to_s, np)
        for (at_s, np), (to_s, _) in pairwise([*sizes, (last_s - first_s, 0)])
        if np
    ]
    return History(
        job,
        tuple(replace(span, samples_per_s=_rate(span, events, first_s)) for span in spans),
        tuple(mark for event in events if (mark := _mark(event, first_s)) is not None),
    )


def _rate(span: SizeSpan, events: Sequence[Event], first_s: float) -> float | None:
    """Return the last throughput that `events` report for `span`; None if they report none."""
    said = None
    for event in events:
        at_s, details = event.time - first_s, event.details
        if isinstance(details, GenerationDetails) and span.from_s < at_s <= span.to_s:
            said = details.samples_per_s or said  # of the ring before
        elif isinstance(details, PolicyDetails) and span.from_s <= at_s <= span.to_s:
            said = (details.samples_per_s if details.np == span.np else None) or said
    return said


def _mark(event: Event, first_s: float) -> HistoryMark | None:
    """Return the decision or finding that `event` tells of, or None if it tells of none."""
    details = event.details
    if isinstance(details, DesiredDetails):
        return HistoryMark(event.time - first_s, details.by, event.reason)
    if isinstance(details, StragglerDetails):
        return HistoryMark(event.time - first_s, "straggler", event.reason)
    return None
