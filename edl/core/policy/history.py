"""The sizes that a job has had, and what it has trained meanwhile: from its event log."""

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
class Span:
    """A time in which a job had one size.

    Attributes:
        from_s, to_s: in seconds since the first event.
        samples_per_s: at its end, or at the last decision in it; None: nobody has said it.
    """

    from_s: float
    to_s: float
    np: int
    samples_per_s: float | None = None


@dataclass(frozen=True)
class Mark:
    """Something that was decided: by a ``policy``, a ``person``, or what the event says."""

    at_s: float
    by: str
    reason: str


@dataclass(frozen=True)
class History:
    """What there was of a job, in order."""

    job: str
    spans: tuple[Span, ...]
    marks: tuple[Mark, ...]


def history(job: str, events: Sequence[Event]) -> History:
    """That of ``events``, which are in order; without any it is empty."""
    if not events:
        return History(job, (), ())
    first_s, last_s = events[0].time, events[-1].time
    sizes = [
        (event.time - first_s, len(event.details.members))
        for event in events
        if isinstance(event.details, GenerationDetails)
    ]
    spans = [
        Span(at_s, to_s, np)
        for (at_s, np), (to_s, _) in pairwise([*sizes, (last_s - first_s, 0)])
        if np
    ]
    return History(
        job,
        tuple(replace(span, samples_per_s=_rate(span, events, first_s)) for span in spans),
        tuple(mark for event in events if (mark := _mark(event, first_s)) is not None),
    )


def _rate(span: Span, events: Sequence[Event], first_s: float) -> float | None:
    """What was said last of the throughput within a span."""
    said = None
    for event in events:
        at_s, details = event.time - first_s, event.details
        if isinstance(details, GenerationDetails) and span.from_s < at_s <= span.to_s:
            said = details.samples_per_s or said  # of the ring before
        elif isinstance(details, PolicyDetails) and span.from_s <= at_s <= span.to_s:
            said = (details.samples_per_s if details.np == span.np else None) or said
    return said


def _mark(event: Event, first_s: float) -> Mark | None:
    details = event.details
    if isinstance(details, DesiredDetails):
        return Mark(event.time - first_s, details.by, event.reason)
    if isinstance(details, StragglerDetails):
        return Mark(event.time - first_s, "straggler", event.reason)
    return None
