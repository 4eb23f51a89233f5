"""Change how many workers a job shall have: the one way for people, launchers and the leader.

The entry point is :func:`set_desired`, which computes a :class:`DesiredChange` and writes nothing.

The wanted workers (``desired``) and the ones that the launcher is to start (``assigned``) are two
records in ZooKeeper. An agent of `edl run` keeps as many workers as are desired, so there both
records change at once, and no reader ever sees one without the other. Where a launcher assigns
slots by itself, only ``desired`` changes.

The records are written by :meth:`edl.coordination.job_store.JobStore.set_desired` and, for the
leader, fenced together with the generation, by
:meth:`edl.coordination.decisions.DecisionWriter.carry_out`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.core.events import DesiredDetails
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms, borrowed_after, reclaims_after
from edl.core.job.device_sets import NO_DEVICES, DeviceSets, describe_devices
from edl.core.job.placement import Placement
from edl.core.plural import workers
from edl.core.records import Assigned, Desired, RequestedBy


@dataclass(frozen=True)
class DesiredChange:
    """A change of the desired workers of a job; `bool(change)` is False if nothing changes."""

    before: Desired
    desired: Desired
    assigned: Assigned | None = None  # None: it stays, or the launcher assigns by itself
    assigned_before: Assigned | None = None
    devices: str = ""  # the changed devices by host, as a clause for the event's sentence

    def __bool__(self) -> bool:
        return self.desired != self.before

    @property
    def moves(self) -> bool:
        """Whether the number of any host changes, and not only a request or the devices."""
        return dict(self.desired.hosts) != dict(self.before.hosts)

    def starts_from(self, desired: Desired, assigned: Assigned) -> bool:
        """Return whether the records that the change would overwrite are still as it found them."""
        return desired == self.before and self.assigned_before in (None, assigned)

    def at(self, at_s: float) -> DesiredChange:
        """Return a copy of this change with the time `at_s`, in seconds since 1970."""
        return replace(self, desired=replace(self.desired, at_s=at_s))

    @property
    def details(self) -> DesiredDetails:
        """The details of the event that logs the change: who asked, and the numbers by host."""
        before, after = dict(self.before.hosts), dict(self.desired.hosts)
        return DesiredDetails(str(self.desired.by), before, after)

    def __str__(self) -> str:  # "edl scale: 2 -> 3 workers wanted (b: 0 -> 1)"
        before, after = self.before.hosts, self.desired.hosts
        where = ", ".join(
            f"{host}: {before.get(host, 0)} -> {after.get(host, 0)}"
            for host in sorted({*before, *after})
            if before.get(host, 0) != after.get(host, 0)
        )
        now, np = self.desired.reason, self.desired.np
        size = f"{self.before.np} -> {workers(np)}" if np != self.before.np else workers(np)
        details = "; ".join(filter(None, (where, self.devices)))
        return f"{now}: {size} wanted" + (f" ({details})" if details else "")


def set_desired(
    before: Desired,
    assigned: Assigned,
    hosts: Placement,
    by: RequestedBy,
    why: str,
    at_s: float = 0.0,  # since 1970; requests to give slots back count from it
    terms: LeaseTerms = NO_LEASE_TERMS,
    devices: DeviceSets = NO_DEVICES,
) -> DesiredChange:
    """Return the change that makes `hosts` the desired workers; nothing is written to ZooKeeper."""
    granted = {**assigned.devices, **devices}
    if dict(hosts) == dict(before.hosts) and granted == dict(assigned.devices):
        return DesiredChange(before, before)
    profiled = by is RequestedBy.PROFILE  # a profile restores the size afterwards
    borrowed = before.borrowed if profiled else borrowed_after(before, hosts, terms)
    reclaims = reclaims_after(before, hosts, terms, at_s)
    after = Desired(dict(hosts), by, why, at_s, borrowed, reclaims, before.batch)
    if assigned.by_slot:
        return DesiredChange(before, after)
    follows = replace(assigned, hosts=after.hosts, devices=granted)
    changed = {host: new for host, new in granted.items() if assigned.devices.get(host) != new}
    return DesiredChange(before, after, follows, assigned, describe_devices(changed))
