"""Choose the events of a job or a cluster that a page shows: by kind and words, newest first."""

from __future__ import annotations

import re
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Generic, Protocol, TypeVar

from edl.cluster.history import BY_USERS
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult
from edl.event_text import EXPLANATIONS, Severity, cost
from edl.events import Event, EventKind
from edl.record import Record

MAX_EVENTS = 2000  # as many as ZooKeeper keeps
PAGE = 100
_TONES = {Severity.ERROR: "bad", Severity.WARNING: "warning", Severity.NORMAL: "plain"}
CHANGE = frozenset({EventKind.GENERATION, EventKind.SWITCH, EventKind.LEADER, EventKind.DESIRED})
CONCERNING = ("bad", "warning")  # the tones of events that somebody should look at


@dataclass(frozen=True)
class EventView(Record):
    """An event as the page lists it."""

    number: int  # its number in the log
    at_s: float  # when it was written, in seconds since 1970
    kind: str
    tone: str  # `bad`, `warning`, `change` (of workers or leader) or `plain`
    generation: int  # the generation that it is about
    step: int  # the newest complete step that its writer knew
    reason: str  # what has happened, and why
    meaning: str  # what events of this kind mean; empty if a healthy job has them, too
    causes: str  # their usual causes; empty as `meaning` is
    advice: str  # what to do; empty as `meaning` is
    cost: str  # how long workers stood still; empty if it is no switch

    @property
    def words(self) -> str:
        return f"{self.kind} {self.reason}"


def tone_of(kind: EventKind) -> str:
    tone = _TONES[EXPLANATIONS[kind].severity]
    return "change" if tone == "plain" and kind in CHANGE else tone


def event_view(number: int, event: Event, job: str = "JOB") -> EventView:
    tone, known = tone_of(event.kind), EXPLANATIONS[event.kind]
    concerns = tone in CONCERNING
    return EventView(
        number=number,
        at_s=event.time,
        kind=str(event.kind),
        tone=tone,
        generation=event.generation,
        step=event.step,
        reason=event.reason,
        meaning=known.meaning if concerns else "",
        causes=known.why if concerns else "",
        advice=named_commands(known.advice, event, job) if concerns else "",
        cost=cost(event),
    )


def named_commands(text: str, event: Event, job: str) -> str:
    worker = getattr(event.details, "worker", None)
    text = text.replace("JOB WORKER", f"JOB {worker}" if worker else "JOB")
    return re.sub(r"\bJOB\b", lambda _: job, text)


class PageEvent(Protocol):
    """An event as a page lists it, of a job or of a cluster."""

    @property
    def number(self) -> int: ...
    @property
    def tone(self) -> str: ...
    @property
    def words(self) -> str: ...  # in which a filter looks


View = TypeVar("View", bound=PageEvent)


@dataclass(frozen=True)
class EventChoice:
    """A filter of events."""

    tones: frozenset[str] = frozenset()  # the tones to show; empty: all
    text: str = ""  # words that must all occur in an event's `words`, in any case; empty: no limit
    before: int | None = None  # show only events with a smaller number; None: no limit
    limit: int = PAGE  # the largest number of events

    def matches(self, event: PageEvent) -> bool:
        if self.tones and event.tone not in self.tones:
            return False
        if self.before is not None and event.number >= self.before:
            return False
        said = event.words.lower()
        return all(word in said for word in self.text.lower().split())


class EventBuffer(Generic[View]):
    """The newest 2,000 events of a job or a cluster; one thread adds to it at a time."""

    def __init__(self) -> None:
        self._events: deque[View] = deque(maxlen=MAX_EVENTS)

    def add(self, events: Iterable[View]) -> None:
        self._events.extend(events)

    def counts(self) -> dict[str, int]:
        return dict(sorted(Counter(one.tone for one in tuple(self._events)).items()))

    def chosen(self, choice: EventChoice) -> Sequence[View]:
        found: list[View] = []
        for one in reversed(tuple(self._events)):
            if len(found) >= choice.limit:
                break
            if choice.matches(one):
                found.append(one)
        return found


# --- Turn an event of a cluster into what its page lists: with who is behind it.


_ABOUT_HOSTS = frozenset({ClusterEventKind.HOST, ClusterEventKind.LEASE})


@dataclass(frozen=True)
class ClusterEventView(Record):
    """An event of a cluster as the page lists it."""

    number: Annotated[int, "its number in the log"]
    at_s: Annotated[float, "when it was written, in seconds since 1970"]
    kind: Annotated[str, "its kind"]
    tone: Annotated[str, "`bad`, `user` (asked by one), `host` or `plain`"]
    about: Annotated[str, "the job or host that it is about; empty: none"]
    reason: Annotated[str, "what has happened, and why"]
    by: Annotated[str, "who has written it"]

    @property
    def words(self) -> str:
        return f"{self.kind} {self.about} {self.reason} {self.by}"


def cluster_event_view(number: int, event: ClusterEvent) -> ClusterEventView:
    tone = "user" if event.kind in BY_USERS else "plain"
    tone = "host" if event.kind in _ABOUT_HOSTS else tone
    tone = "bad" if event.result is LifeResult.FAILED else tone
    return ClusterEventView(
        number=number,
        at_s=event.time_s,
        kind=str(event.kind),
        tone=tone,
        about=event.job or event.host,
        reason=event.reason,
        by=event.by,
    )
