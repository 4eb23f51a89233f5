"""Compute which workers a profiled job shall have afterwards, whoever has changed them meanwhile.

The process that profiles keeps a :class:`ProfileView`, and afterwards asks its
:meth:`ProfileView.fate_of` and :meth:`ProfileView.given_back`.

A profile measures a job at several numbers of workers, so it changes the size again and again.
Meanwhile a person may ask for another size, or hosts and workers may join and leave. A size that a
person asked for stays. Otherwise only what the profile itself has taken or added is undone.
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
    """The record at a job's ephemeral node `profile/hold` while a process profiles the job."""

    token: str  # of the profile
    by: str  # for people: "process 4711 on node1"
    before: Mapping[str, int]  # the desired workers by host when the profile began
    asked: bool = False  # a person has asked for a size during the profile; that size then stays


class HoldState(StrEnum):
    """Why a job that is profiled has its present desired placement."""

    OURS = "nobody else has changed it"
    MOVED = "hosts or workers came or left"
    ASKED = "somebody has asked for it"  # or it is not known who did


@dataclass(frozen=True)
class ProfileView:
    """What a process that profiles a job knows about the desired workers of that job."""

    token: str  # as in its `ProfileHold`
    before: Placement
    ours: Sequence[Placement]  # what the profile found, wrote, or may have written
    last: Placement | None  # the newest of `ours` that was surely in ZooKeeper; None: not known

    def overruled(self, hold: ProfileHold) -> bool:
        """Return whether this profile must not change the size any more."""
        return hold.asked or hold.token != self.token

    def fate_of(self, desired: Placement, hold: ProfileHold | None) -> HoldState:
        """Return why `desired` is desired; without a hold the session of its writer has ended."""
        ours = desired in self.ours
        if hold is not None and self.overruled(hold):
            return HoldState.ASKED
        if ours:
            return HoldState.OURS
        # It is not known any more whether it was asked for, or what it was before the change.
        return HoldState.ASKED if hold is None or self.last is None else HoldState.MOVED

    def given_back(
        self, desired: Placement, fate: HoldState, slots: Mapping[str, int], job: Job
    ) -> Placement:
        """Return the placement (workers by host) that shall be desired after the profile."""
        if fate is HoldState.ASKED:
            return desired
        last = desired
        if fate is HoldState.MOVED:
            assert self.last is not None  # see fate_of
            last = self.last
        elif all(slots.get(host, 0) >= count for host, count in self.before.items()):
            return self.before
        # Each host gets what the profile has taken, and loses what it has added, if it has room.
        new = dict(desired)
        for host in sorted({*self.before, *last}):
            here = desired.get(host, 0)
            wanted = here + self.before.get(host, 0) - last.get(host, 0)
            new[host] = max(0, min(wanted, max(here, slots.get(host, 0))))
        return _within(new, desired, job)


def _within(new: dict[str, int], desired: Placement, job: Job) -> Placement:
    """Change `new` in place towards `desired` until the job may have its number; return it."""
    fitting = job.sizes.fit(sum(new.values()))
    for host in sorted(new, reverse=True):
        over = sum(new.values()) - fitting
        new[host] -= max(0, min(over, new[host] - desired.get(host, 0)))
    for host in sorted(new):
        short = fitting - sum(new.values())
        new[host] += max(0, min(short, desired.get(host, 0) - new[host]))
    return new
