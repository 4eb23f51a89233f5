"""Define what a job's page says of one incident: what happened, why, what to do, what followed."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Self

from edl.core.dashboard.full_disk import FullDisk
from edl.core.event_explanations import EXPLANATIONS, Severity
from edl.core.events import Event, EventKind
from edl.core.learning_curve import LossSpike
from edl.core.record import Record

_WORKER = re.compile(r"w\d+\b")  # the name of a worker keeps its small letter
MOST_CLAUSES = 3  # workers of an incident that are named one by one


@dataclass(frozen=True)
class Incident(Record):
    """Something that happened to a job, as one or several events tell of it."""

    number: int
    at_s: float  # when it was noticed, in seconds since 1970
    last_s: float  # when the newest of its events was written
    kind: str  # the kind of the event that says most of it
    tone: str  # `bad` or `warning`
    step: int  # the newest complete step when it was noticed
    host: str  # the host that it is about; empty: not known, or several
    clauses: Mapping[str, str]  # worker -> what happened to it; "" -> what happened to the job
    why: str  # what is known of the cause, in a sentence or two
    advice: str  # what to do; JOB stands for the name of the job
    followed: tuple[str, ...] = ()  # what followed, in short sentences
    times: int = 1  # how often it has happened
    is_over: bool = False  # whether the job has recovered from it
    over_s: float | None = None  # when it did, in seconds since 1970; None: it has not
    # the workers that have joined in the places of those that were lost
    joined: tuple[str, ...] = ()
    # what could not be written, if it is a full disk; None: it is not
    full_disk: FullDisk | None = None
    spike: LossSpike | None = None  # the loss, if that has gone wrong; None: it has not

    @classmethod
    def of(cls, number: int, event: Event, what: str = "", worker: str = "") -> Self:
        """Return the incident that `event` tells of, with what is known of events of its kind."""
        known = EXPLANATIONS[event.kind]
        return cls(
            number=number,
            at_s=event.time,
            last_s=event.time,
            kind=str(event.kind),
            tone="bad" if known.severity is Severity.ERROR else "warning",
            step=event.step,
            host="",
            clauses={worker: what or event.reason},
            why=known.why,
            advice=known.advice.replace("JOB WORKER", f"JOB {worker}".rstrip()),
        )

    @property
    def workers(self) -> tuple[str, ...]:
        """The workers that it happened to."""
        return tuple(worker for worker in self.clauses if worker)

    @property
    def has_empty_place(self) -> bool:
        """Whether it is a loss of more workers than have joined since."""
        lost = self.kind in LOST and self.kind != EventKind.STALLED
        return lost and len(self.joined) < len(self.workers)

    @property
    def what(self) -> str:
        """A sentence that says what happened, in both tenses, to at most three workers by name."""
        clauses = list(self.clauses.values())
        text = "; ".join(clauses[:MOST_CLAUSES])
        more = len(clauses) - MOST_CLAUSES
        is_loss = self.kind in LOST and self.kind != EventKind.STALLED
        text += f"; and {more} more workers" if more > 0 else ""
        text += f", after step {self.step:,}" if is_loss else ""
        text += "" if text.endswith(".") else "."
        return text if _WORKER.match(text) else text[:1].upper() + text[1:]

    def then(self, event_s: float, *sentences: str, is_over: bool | None = None) -> Self:
        """Return the incident with more of what followed."""
        new = tuple(one for one in sentences if one not in self.followed)
        over, over_s = self.is_over if is_over is None else is_over, self.over_s
        return replace(
            self,
            last_s=max(self.last_s, event_s),
            followed=(*self.followed, *new),
            is_over=over,
            over_s=(event_s if over_s is None else over_s) if over else None,
        )

    def of_disk(self, disk: FullDisk, event_s: float, is_over: bool) -> Self:
        """Return the incident of a full disk with what is known of the disk now."""
        told = replace(
            self,
            clauses={"": disk.what},
            host=disk.hosts[0] if len(disk.hosts) == 1 else "",
            why=disk.why,
            advice=disk.advice,
            followed=disk.followed,
            full_disk=disk,
        )
        return told.then(event_s, is_over=is_over)


LOST = frozenset(
    {
        str(EventKind.WORKER_FAILED),
        str(EventKind.WORKER_FROZEN),
        str(EventKind.EVICTED),
        str(EventKind.GENERATION),
        str(EventKind.STALLED),
    }
)
"""The kinds of incidents in which a job lost workers, or may lose them."""
