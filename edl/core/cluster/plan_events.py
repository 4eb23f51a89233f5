"""Say in the event log of a cluster what a plan changes: states of jobs, their slots, hosts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.job_life import LifeResult, LifeState
from edl.core.cluster.plan import ClusterPlan
from edl.core.cluster.records import HostAssignment, JobAssignment
from edl.core.cluster.view import ClusterView, HostView
from edl.core.plural import counted


class PlannedEvent(NamedTuple):
    """An event of a plan, without its time and writer."""

    kind: ClusterEventKind
    reason: str  # what has happened, and why, in a sentence
    job: str = ""  # the job that it is about; empty: none
    host: str = ""  # the host that it is about; empty: none, or several
    # the state that the job has entered; None: it is another kind of event
    state: LifeState | None = None
    result: LifeResult | None = None  # how the job has ended; None: it has not
    # host -> slots that the job has; None: it is another kind of event
    slots: Mapping[str, int] | None = None


def plan_events(view: ClusterView, found: ClusterPlan) -> list[PlannedEvent]:
    """Return the events for the log that report what the plan `found` changes."""
    return [
        *(
            PlannedEvent(
                ClusterEventKind.STATE,
                f"{one.before} -> {one.after}: {one.reason}",
                job=one.job,
                state=one.after,
                result=found.lives[one.job].result if one.after is LifeState.ENDED else None,
            )
            for one in found.changes
        ),
        *_slots(view, found),
        *_hosts(view, found),
    ]


def _slots(view: ClusterView, found: ClusterPlan) -> Iterator[PlannedEvent]:
    """Yield an event for each job whose devices the plan `found` changes, in the order of names."""
    before = {host.name: host.assigned for host in view.hosts}
    after = {**before, **found.assigned}
    names = {name for host in found.assigned for one in (before, after) for name in one[host].jobs}
    for job in sorted(names):
        had, has = _devices(before, job), _devices(after, job)
        if had != has:
            where = "; ".join(f"{host}: {_described(entry)}" for host, entry in has.items())
            reason = f"slots {where}" if where else "no slots"
            why = found.reasons.get(job, "")
            yield PlannedEvent(
                ClusterEventKind.SLOTS,
                f"{reason}: {why}" if why else reason,
                job,
                slots={host: len(entry.devices) for host, entry in has.items()},
            )


def _devices(hosts: Mapping[str, HostAssignment], job: str) -> dict[str, JobAssignment]:
    """Return the devices that `job` has, by host, so that two results differ only if slots do."""
    entries = {host: one.jobs[job] for host, one in hosts.items() if job in one.jobs}
    return {
        host: JobAssignment(entry.run, entry.devices, entry.leaving)
        for host, entry in sorted(entries.items())
        if not entry.ends
    }


def _described(entry: JobAssignment) -> str:
    """Return the devices of a job on a host as text, like "0, 1 (gives back 2)"."""
    keeps = ", ".join(str(one) for one in entry.devices if one not in entry.leaving)
    leaves = ", ".join(map(str, entry.leaving))
    return " ".join(filter(None, (keeps, f"(gives back {leaves})" if leaves else "")))


def _hosts(view: ClusterView, found: ClusterPlan) -> Iterator[PlannedEvent]:
    """Yield an event for each host that, by the plan `found`, offers nothing any more or again."""
    for name, after in found.assigned.items():
        host = view.host_named[name]
        if bool(host.assigned.silent_s) != bool(after.silent_s):
            yield PlannedEvent(ClusterEventKind.HOST, _host_change(host), host=name)
        for job, one in after.failures.items():
            before = host.assigned.failures.get(job)
            if before is None or (before.order, before.reason) != (one.order, one.reason):
                why = f"it could not start on host {name}, and gets no slots there"
                yield PlannedEvent(ClusterEventKind.HOST, f"{why}: {one.reason}", job, host=name)
        if bool(host.assigned.out) != bool(after.out):
            why = (
                f"is taken out: {after.out}; `edl undrain {name}`"
                if after.out
                else "is tried again"
            )
            yield PlannedEvent(ClusterEventKind.HOST, f"host {name} {why}", host=name)


def _host_change(host: HostView) -> str:
    """Return the sentence that says that a host offers nothing any more, or offers slots again."""
    if host.offer is None:
        return f"host {host.name} offers nothing any more"
    return f"host {host.name} offers {counted(len(host.offer.numbers), 'slot')} again"
