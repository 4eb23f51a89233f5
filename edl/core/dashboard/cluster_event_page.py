"""Choose the events of a cluster that its page shows: by who is behind them, and by words."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated

from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.history import BY_USERS
from edl.core.cluster.job_life import LifeResult
from edl.core.dashboard.event_page import MOST_EVENTS, EventChoice
from edl.core.record import Record

_ABOUT_HOSTS = frozenset({ClusterEventKind.HOST, ClusterEventKind.LEASE})


@dataclass(frozen=True)
class ShownClusterEvent(Record):
    """An event of a cluster as the page lists it."""

    number: Annotated[int, "its number in the log"]
    at_s: Annotated[float, "when it was written, in seconds since 1970"]
    kind: Annotated[str, "its kind"]
    tone: Annotated[str, "`bad`, `user` (asked by one), `host` or `plain`"]
    about: Annotated[str, "the job or host that it is about; empty: none"]
    reason: Annotated[str, "what has happened, and why"]
    by: Annotated[str, "who has written it"]


def shown_cluster_event(number: int, event: ClusterEvent) -> ShownClusterEvent:
    """Return ``event``, which has ``number`` in the log, as the page lists it."""
    tone = "user" if event.kind in BY_USERS else "plain"
    tone = "host" if event.kind in _ABOUT_HOSTS else tone
    tone = "bad" if event.result is LifeResult.FAILED else tone
    return ShownClusterEvent(
        number=number,
        at_s=event.time_s,
        kind=str(event.kind),
        tone=tone,
        about=event.job or event.host,
        reason=event.reason,
        by=event.by,
    )


class ClusterEventBuffer:
    """The newest 2,000 events of a cluster; one thread adds to it at a time."""

    def __init__(self) -> None:
        self._events: deque[ShownClusterEvent] = deque(maxlen=MOST_EVENTS)

    def add(self, events: Iterable[ShownClusterEvent]) -> None:
        """Append ``events``, the oldest first; the oldest of too many are dropped."""
        self._events.extend(events)

    def counts(self) -> dict[str, int]:
        """Return the number of kept events by tone."""
        return dict(sorted(Counter(one.tone for one in tuple(self._events)).items()))

    def chosen(self, choice: EventChoice) -> Sequence[ShownClusterEvent]:
        """Return the events that ``choice`` shows, the newest first."""
        found: list[ShownClusterEvent] = []
        words = choice.text.lower().split()
        for one in reversed(tuple(self._events)):
            if len(found) >= choice.limit:
                break
            if choice.before is not None and one.number >= choice.before:
                continue
            said = f"{one.kind} {one.about} {one.reason} {one.by}".lower()
            is_of_tone = not choice.tones or one.tone in choice.tones
            if is_of_tone and all(word in said for word in words):
                found.append(one)
        return found
