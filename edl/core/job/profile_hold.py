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
    """The record at the node ``profile/hold`` of a job, which says that a process profiles the job.

    It vanishes with the ZooKeeper session of that process.

    Attributes:
        token: a text that identifies the profile.
        by: the process that profiles, for people: "process 4711 on node1".
        before: the number of desired workers by host when the profile began.
        asked: whether a person has asked for a number of workers during the profile; that number
            then stays.
    """

    token: str
    by: str
    before: Mapping[str, int]
    asked: bool = False


class HoldState(StrEnum):
    """The reason why a job that is profiled has its present desired placement.

    ``OURS``: the profile asked for it, or it is the one before the profile. ``MOVED``: hosts or
    workers joined or left. ``ASKED``: a person, or another profile, asked for it, or it is not
    known who did.
    """

    OURS = "nobody else has changed it"
    MOVED = "hosts or workers came or left"
    ASKED = "somebody has asked for it"


@dataclass(frozen=True)
class ProfileView:
    """The knowledge of a process that profiles a job about the desired workers of that job.

    A profile measures the job at several numbers of workers, and restores the old one afterwards.

    Attributes:
        token: the text that identifies the profile, as in its record (:class:`ProfileHold`).
        before: the desired placement (workers by host) before the profile.
        ours: each placement that the profile found, wrote, or may have written.
        last: the newest placement in ``ours`` that is known to have been in ZooKeeper; None: not
            known.
    """

    token: str
    before: Placement
    ours: Sequence[Placement]
    last: Placement | None

    def overruled(self, hold: ProfileHold) -> bool:
        """Return whether a person has asked for a size during the profile, or another profile runs.

        If so, this profile must not change the size any more. ``hold`` is the record in ZooKeeper
        of the profile that runs now.
        """
        return hold.asked or hold.token != self.token

    def fate_of(self, desired: Placement, hold: ProfileHold | None) -> HoldState:
        """Return why the job has its present desired placement ``desired``: who asked for it.

        Args:
            desired: the placement (workers by host) that is now desired.
            hold: the record in ZooKeeper of the profile that runs; None: it has vanished with the
                session of its writer. Then a placement that the profile has not written itself
                counts as asked for by a person.
        """
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
        """Return the placement (workers by host) that shall be desired after the profile.

        Nothing is written to ZooKeeper.

        Each host gets what the profile has taken, and loses what the profile has added, as far as
        its slots and the limits of the job allow. A placement that a person asked for stays as it
        is.

        Args:
            desired: the placement that is now desired.
            fate: why it is, from :meth:`fate_of`.
            slots: the number of slots of each present host.
            job: the job, whose sizes limit the result.
        """
        if fate is HoldState.ASKED:
            return desired
        last = desired
        if fate is HoldState.MOVED:
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
    """Change ``new`` towards ``desired`` until ``job`` may have its number of workers; return it.

    The number aimed at is the largest allowed one up to that of ``new``, or else the smallest
    allowed one. Hosts with more workers than ``desired`` lose some, the last by name first; hosts
    with fewer get some, the first by name first. The number may be missed.

    Args:
        new: the number of workers by host, which is changed in place.
        desired: the number of workers by host that is desired now; no host is changed beyond it.
        job: the job, whose sizes limit the number.
    """
    fitting = job.sizes.fit(sum(new.values()))
    for host in sorted(new, reverse=True):
        over = sum(new.values()) - fitting
        new[host] -= max(0, min(over, new[host] - desired.get(host, 0)))
    for host in sorted(new):
        short = fitting - sum(new.values())
        new[host] += max(0, min(short, desired.get(host, 0) - new[host]))
    return new
