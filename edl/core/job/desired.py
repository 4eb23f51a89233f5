"""The one way to change what is wanted of a job, for people, launchers, profiles and the leader.

What is wanted (``desired``) and what the launcher makes of it (``assigned``) are two records. An
agent of `edl run` keeps as many workers as are desired, so there both change at once, and nobody
ever sees one without the other. Where a launcher assigns slots by itself, only ``desired`` changes.

The writers are :meth:`edl.coordination.job_store.JobStore.set_desired` and, for the leader, fenced
together with the generation, :meth:`edl.coordination.decisions.DecisionWriter.carry_out`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from edl.core.events import DesiredDetails
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms, borrowed_after, reclaims_after
from edl.core.job.placement import Placement
from edl.core.plural import workers
from edl.core.records import Assigned, Desired, RequestedBy


@dataclass(frozen=True)
class Change:
    """What is wanted, ``before`` and from now on; the two are one where nothing changes.

    ``assigned``: to be written with it; None: its launcher has to follow, or nothing changes.
    """

    before: Desired
    desired: Desired
    assigned: Assigned | None = None

    def __bool__(self) -> bool:
        return self.desired != self.before

    @property
    def moves(self) -> bool:
        """Whether other workers are wanted: it is not only noted that a slot was given back."""
        return dict(self.desired.hosts) != dict(self.before.hosts)

    def at(self, at_s: float) -> Change:
        """The same, made at that time."""
        return replace(self, desired=replace(self.desired, at_s=at_s))

    @property
    def details(self) -> DesiredDetails:
        """For its event."""
        before, after = dict(self.before.hosts), dict(self.desired.hosts)
        return DesiredDetails(str(self.desired.by), before, after)

    def __str__(self) -> str:
        """Why, how many, and where: "edl scale: 2 -> 3 workers wanted (b: 0 -> 1)"."""
        before, after = self.before.hosts, self.desired.hosts
        where = ", ".join(
            f"{host}: {before.get(host, 0)} -> {after.get(host, 0)}"
            for host in sorted({*before, *after})
            if before.get(host, 0) != after.get(host, 0)
        )
        now, np = self.desired.reason, self.desired.np
        size = f"{self.before.np} -> {workers(np)}" if np != self.before.np else workers(np)
        return f"{now}: {size} wanted" + (f" ({where})" if where else "")


def set_desired(
    before: Desired,
    assigned: Assigned,
    hosts: Placement,
    by: RequestedBy,
    why: str,
    at_s: float = 0.0,
    terms: LeaseTerms = NO_LEASE_TERMS,
) -> Change:
    """Want ``hosts`` from now on. ``why``: a clause, which begins the sentence of its event."""
    if dict(hosts) == dict(before.hosts):
        return Change(before, before)
    profiled = by is RequestedBy.PROFILE  # it gives the size back
    borrowed = before.borrowed if profiled else borrowed_after(before, hosts, terms)
    reclaims = reclaims_after(before, hosts, terms, at_s)
    after = Desired(dict(hosts), by, why, at_s, borrowed, reclaims)
    follows = None if assigned.by_slot else replace(assigned, hosts=after.hosts)
    return Change(before, after, follows)
