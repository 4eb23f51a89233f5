"""Who says what is desired of a job while somebody profiles it, and what it shall be afterwards.

A profile asks for other sizes again and again. Meanwhile others may: somebody asks for another one,
or hosts and workers come and leave. What was asked for stays. Of the rest only what the profile
has taken or added is undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edl.core.job.placement import Placement
from edl.core.record import Record
from edl.core.records import Job


@dataclass(frozen=True)
class ProfileHold(Record):
    """``profile/hold``: somebody profiles the job, which had ``before`` on each host until then."""

    token: str
    by: str  # "process 4711 on node1"
    before: Mapping[str, int]
    asked: bool = False  # somebody else has said how many workers there shall be: that stays


class Fate(StrEnum):
    """What has become of the size that a profile has asked for."""

    OURS = "nobody else has changed it"
    MOVED = "hosts or workers came or left"
    ASKED = "somebody has asked for it"


@dataclass(frozen=True)
class Held:
    """What a profile knows of what is desired.

    Attributes:
        token: of its :class:`ProfileHold`.
        before: as it was at first.
        ours: each placement that the profile found, or wrote, or may have written.
        last: the newest of these that is known to have stood; None: not known.
    """

    token: str
    before: Placement
    ours: Sequence[Placement]
    last: Placement | None

    def overruled(self, hold: ProfileHold) -> bool:
        """Whether somebody else says how many workers there shall be, by the ``hold`` there is."""
        return hold.asked or hold.token != self.token

    def fate_of(self, desired: Placement, hold: ProfileHold | None) -> Fate:
        """Who has asked for ``desired``. ``hold``: that stands; None: it went with a session."""
        ours = desired in self.ours
        if hold is not None and self.overruled(hold):
            return Fate.ASKED
        if ours:
            return Fate.OURS
        # Nobody can know any more whether it was asked for, or against what it was changed.
        return Fate.ASKED if hold is None or self.last is None else Fate.MOVED

    def given_back(
        self, desired: Placement, fate: Fate, slots: Mapping[str, int], job: Job
    ) -> Placement:
        """What shall be desired from now on.

        Each host gets what the profile has taken, and loses what it has added, as far as its
        slots and the limits of the job allow.

        Args:
            desired: that stands, of that ``fate``.
            slots: of the hosts that are there.
        """
        if fate is Fate.ASKED:
            return desired
        last = desired
        if fate is Fate.MOVED:
            assert self.last is not None  # see fate_of
            last = self.last
        elif all(slots.get(host, 0) >= count for host, count in self.before.items()):
            return self.before
        new = dict(desired)
        for host in sorted({*self.before, *last}):
            here = desired.get(host, 0)
            wanted = here + self.before.get(host, 0) - last.get(host, 0)
            new[host] = max(0, min(wanted, max(here, slots.get(host, 0))))
        return _within(new, desired, job)


def _within(new: dict[str, int], desired: Placement, job: Job) -> Placement:
    """``new`` with a size that the job may have, which ``desired`` itself may not be."""
    fitting = job.sizes.fit(sum(new.values()))
    for host in sorted(new, reverse=True):
        over = sum(new.values()) - fitting
        new[host] -= max(0, min(over, new[host] - desired.get(host, 0)))
    for host in sorted(new):
        short = fitting - sum(new.values())
        new[host] += max(0, min(short, desired.get(host, 0) - new[host]))
    return new
