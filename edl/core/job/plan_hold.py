"""Whose the plan of a job is while somebody profiles it, and what it shall be afterwards.

A profile changes the plan again and again. Meanwhile others may: somebody asks for another size,
or hosts and workers come and leave. What was asked for stays. Of the rest only what the profile
has taken or added is undone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from edl.core.job.placement import Plan
from edl.core.record import Record
from edl.core.records import Job


@dataclass(frozen=True)
class PlanHold(Record):
    """``profile/hold``: somebody profiles the job, which had ``before`` on each host until then."""

    token: str
    by: str  # "process 4711 on node1"
    before: Mapping[str, int]
    asked: bool = False  # somebody else has said how many workers there shall be: that stays


class Fate(StrEnum):
    """What has become of the plan that a profile has changed."""

    OURS = "nobody else has changed it"
    MOVED = "hosts or workers came or left"
    ASKED = "somebody has asked for it"


@dataclass(frozen=True)
class Held:
    """What a profile knows of the plan.

    Attributes:
        token: of its :class:`Hold`.
        before: as it was at first.
        ours: every plan that the profile found, or wrote, or may have written.
        last: the newest of these that is known to have stood; None: not known.
    """

    token: str
    before: Plan
    ours: Sequence[Plan]
    last: Plan | None

    def overruled(self, hold: PlanHold) -> bool:
        """Whether somebody else says how many workers there shall be, by the ``hold`` there is."""
        return hold.asked or hold.token != self.token

    def fate_of(self, plan: Plan, hold: PlanHold | None) -> Fate:
        """Whose ``plan`` is, by the ``hold`` that stands; None: it went with a lost session."""
        ours = plan in self.ours
        if hold is not None and self.overruled(hold):
            return Fate.ASKED
        if ours:
            return Fate.OURS
        # Nobody can know any more whether it was asked for, or against what it was changed.
        return Fate.ASKED if hold is None or self.last is None else Fate.MOVED

    def given_back(self, plan: Plan, fate: Fate, slots: Mapping[str, int], job: Job) -> Plan:
        """The plan as it shall be from now on.

        Each host gets what the profile has taken, and loses what it has added, as far as its
        slots and the limits of the job allow.

        Args:
            plan: that stands, of that ``fate``.
            slots: of the hosts that are there.
        """
        if fate is Fate.ASKED:
            return plan
        last = plan
        if fate is Fate.MOVED:
            assert self.last is not None  # see fate_of
            last = self.last
        elif all(slots.get(host, 0) >= count for host, count in self.before.items()):
            return self.before
        new = dict(plan)
        for host in sorted({*self.before, *last}):
            here = plan.get(host, 0)
            wanted = here + self.before.get(host, 0) - last.get(host, 0)
            new[host] = max(0, min(wanted, max(here, slots.get(host, 0))))
        return _within(new, plan, job)


def _within(new: dict[str, int], plan: Plan, job: Job) -> Plan:
    """``new`` with a size that the job may have, which ``plan`` itself may not be."""
    fitting = job.sizes.fit(sum(new.values()))
    for host in sorted(new, reverse=True):
        over = sum(new.values()) - fitting
        new[host] -= max(0, min(over, new[host] - plan.get(host, 0)))
    for host in sorted(new):
        short = fitting - sum(new.values())
        new[host] += max(0, min(short, plan.get(host, 0) - new[host]))
    return new
