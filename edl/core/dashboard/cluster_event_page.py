"""Turn an event of a cluster into what its page lists: with who is behind it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from edl.cluster.history import BY_USERS
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult
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

    @property
    def words(self) -> str:
        """The text in which a filter looks for words."""
        return f"{self.kind} {self.about} {self.reason} {self.by}"


def shown_cluster_event(number: int, event: ClusterEvent) -> ShownClusterEvent:
    """Return `event`, which has `number` in the log, as the page lists it."""
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
