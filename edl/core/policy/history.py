"""Read from a job's event log which sizes the job has had, and what it trained with each.

The entry is :func:`history`.
"""

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

    from_s: float  # when the period began, in seconds since the job's first event
    # when the period ended, in seconds since the job's first event: at the next change of the
    # workers, or at the last event
    to_s: float
    np: int  # the number of workers, above 0
    # the throughput of all workers together, in samples a second, from the last event of the period
    # that tells it, the change that ends it included; None: no event tells it
    samples_per_s: float | None = None


@dataclass(frozen=True)
class HistoryMark:
    """A decision or finding about a job's workers, as one event of its log tells it."""

    at_s: float  # when it was made, in seconds since the job's first event
    # the party that made it (the text of a `RequestedBy`, such as `policy`), or `straggler` for a
    # finding about slow workers
    by: str
    reason: str  # the reason in the event


@dataclass(frozen=True)
class History:
    """The sizes that a job has had, and the decisions about it; `history` returns it."""

    job: str  # the name of the job
    # the periods of one size each, in order of time; times without workers are left out
    spans: tuple[SizeSpan, ...]
    marks: tuple[HistoryMark, ...]  # the decisions and findings, in order of time


def history(job: str, events: Sequence[Event]) -> History:
    """Return the history of the job named `job` that its `events` tell."""
    # `events` are all events of the job's log, in order of time; they must be in that order.
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
