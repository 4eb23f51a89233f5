"""Plan what the leader of a cluster writes and orders next, from what it has read.

:func:`plan` is a pure function. It looks at how things are, never at what has changed, so it may be
called at any time and as often as one likes: with the same view the plan is the same, and once the
plan is carried out and answered, the next one is empty. Whatever of a plan is lost is in the next
one again. A leader that begins anew needs nothing but the records.

One call goes through these stages:

1. **Lives** (:mod:`edl.cluster.reconcile`). The events happen that follow from users' goals and
   from what runs have become.
2. **Ended runs** (:mod:`edl.cluster.reconcile`). The hosts are told to end what belongs to no run
   that may go on. What they report as ended is free.
3. **Allocation** (:mod:`edl.cluster.allocate`). The policy is asked if that is due.
4. **Giving back** (:mod:`edl.cluster.reconcile`). Jobs without slots in the allocation are told
   to stop. Jobs with fewer slots are to give some back; what they no longer use is free.
5. **Taking** (the same module). Free devices are assigned to the jobs that the allocation gives
   them to; jobs that have all of theirs start or grow.
6. **Stopping** (:mod:`edl.cluster.reconcile`). Runs that are to stop are told so.

So a slot changes hands in two writes, in two different turns: the order to the old run in stage 5
of one turn, and the assignment to the new run in stage 5 of a later turn, after the proof in stage
4 (:mod:`edl.cluster.view` says what counts as proof).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from edl.cluster.allocate import allocate, profile_progress, settled_s
from edl.cluster.candidates import HAS_SLOTS
from edl.cluster.lifecycle import ClusterEventKind, JobLifecycle, LifeResult, LifeState
from edl.cluster.queues import surplus_slots
from edl.cluster.reconcile import (
    JobChange,
    PlanBuilder,
    advance_lives,
    end_runs,
    give_back,
    stop_runs,
    take_devices,
)
from edl.cluster.records import AllocationRecord, HostAssignment, JobAssignment
from edl.cluster.state import ClusterPolicy
from edl.cluster.view import FAILED_S, Action, ClusterView, JobView, missing_on_borrowed
from edl.text import counted

AGAIN_S = 1.0  # until the next plan, if something was written or ordered
# Changes, in one plan, of jobs that have nothing on a host: new ones that are begun, waiting ones
# that are deleted. Thousands at once would keep the leader from all else.
MAX_IDLE = 500


@dataclass(frozen=True)
class ClusterPlan:
    """One plan of the leader: records to write, orders to carry out, and a reason for each job."""

    # `lives`, `assigned` and `allocation` are written in one transaction, under the fence, with
    # checks of the versions that were read. If it is refused, nothing else is done. Then the
    # `orders` are carried out.

    lives: Mapping[str, JobLifecycle] = field(default_factory=dict)  # job -> the new one, if new
    assigned: Mapping[str, HostAssignment] = field(default_factory=dict)  # host -> the new record
    allocation: AllocationRecord | None = None  # the policy's new decision; None: it stays
    orders: tuple[Action, ...] = ()  # what runs are asked to do, in this order
    changes: tuple[JobChange, ...] = ()  # of jobs' states, in order, for the log of events
    reasons: Mapping[str, str] = field(default_factory=dict)  # job -> why, and where in the queue
    surplus: Mapping[str, int] = field(default_factory=dict)  # job -> slots beyond the quota
    next_s: float = 0.0  # when to plan again in any case, in seconds since 1970

    @property
    def writes(self) -> bool:
        """Whether the plan changes a record; orders to runs do not count."""
        return bool(self.lives or self.assigned or self.allocation is not None)

    @property
    def acts(self) -> bool:
        return self.writes or bool(self.orders)


def plan(cluster: ClusterView, policy: ClusterPolicy, now_s: float) -> ClusterPlan:
    builder = PlanBuilder(cluster, now_s)
    advance_lives(builder)
    end_runs(builder)
    now = replace(cluster, jobs=tuple(builder.jobs.values()), allocation=builder.allocation)
    builder.allocation, builder.waits = allocate(now, policy, builder.table)
    give_back(builder)
    take_devices(builder)
    stop_runs(builder)
    return _finished(builder)


def _finished(builder: PlanBuilder) -> ClusterPlan:
    lives: dict[str, JobLifecycle] = {}
    later: set[str] = set()
    idle = 0
    for job in builder.cluster.jobs:
        now = builder.jobs[job.name]
        slots = 0
        if now.life.state.has_run:
            entries = builder.table.entries(job.name, now.life.run)
            slots = sum(len(entry.devices) for entry in entries.values())
        limits = {h: one for h, one in now.life.limits.items() if one.until_s > builder.now_s}
        life = replace(now.life.counted(slots, builder.now_s), limits=limits)
        if life == job.life:
            continue
        is_idle = not (job.life.state.has_run or life.state.has_run)
        idle += is_idle
        if is_idle and idle > MAX_IDLE:
            later.add(job.name)
        else:
            lives[job.name] = life
    changed = builder.allocation != builder.cluster.allocation
    by_priority = sorted(builder.jobs.values(), key=lambda job: (-job.wanted.priority, job.order))
    sizes = [
        (job.name, job.manifest.queue, sum(builder.target(job).values()))
        for job in by_priority
        if job.life.state in HAS_SLOTS
    ]
    queues = builder.cluster.queues
    found = ClusterPlan(
        lives=lives,
        assigned=builder.table.changed(),
        allocation=builder.allocation if changed else None,
        orders=tuple(builder.orders),
        changes=tuple(one for one in builder.changes if one.job not in later),
        reasons=_reasons(builder),
        surplus=surplus_slots(sizes, queues) if queues else {},
    )
    return replace(found, next_s=_next_s(builder, found))


def _reasons(builder: PlanBuilder) -> dict[str, str]:
    queue = sorted(
        (job for job in builder.jobs.values() if job.life.state is LifeState.QUEUED),
        key=lambda job: (-job.wanted.priority, job.order),
    )
    places = {job.name: place for place, job in enumerate(queue, 1)}
    problem, found = builder.allocation.problem, {}
    for name, job in builder.jobs.items():
        why = builder.waits.get(name) or job.unreadable or builder.why(job) or problem
        if name in places:
            at = f"place {places[name]} of {len(queue)} in the queue"
            why = (why or job.life.reason).removeprefix("waits: ")
            lacks = missing_on_borrowed(job, builder.cluster)
            more = f"; {lacks}" if lacks and lacks not in why else _holders(builder, job)
            found[name] = f"{at}: {why}{more}"
        else:
            found[name] = why if why and job.life.state in HAS_SLOTS else job.life.reason
    return found


def _holders(builder: PlanBuilder, job: JobView) -> str:
    allocation = builder.allocation
    if builder.waits.get(job.name) or builder.target(job) or allocation.held or allocation.problem:
        return ""  # it does not wait for slots
    if job.manifest.preemptible is False and builder.cluster.queues:
        return ""  # its quota is in its way
    held: Counter[str] = Counter()
    for host, name, entry in builder.table.all_entries():
        offer = builder.cluster.host_named[host].offer
        labels = offer.labels if offer is not None else {}
        if name == job.name or builder.cluster.is_closed_to(host, job.name):
            continue
        if job.manifest.labels.items() <= labels.items():
            held[name] += len(entry.devices)
    most = [f"{name} has {counted(count, 'slot')}" for name, count in held.most_common(3)]
    others = f" and {counted(len(held) - 3, 'other job')} the rest" if len(held) > 3 else ""
    return f"; {', '.join(most)}{others}" if most else ""


def _next_s(builder: PlanBuilder, planned: ClusterPlan) -> float:
    """Return when to plan again even if nothing changes until then, in seconds since 1970."""
    settings, now_s = builder.settings, builder.now_s
    times = [*builder.times_s, builder.allocation.at_s + settings.interval_s]
    if planned.acts:
        times.append(now_s + AGAIN_S)
    for host in builder.cluster.hosts:
        record = planned.assigned.get(host.name, host.assigned)
        times += [record.silent_s + settings.lost_after_s] if record.silent_s else []
        times += [one.at_s + FAILED_S for one in record.failures.values()]
        waits = [entry for entry in record.jobs.values() if entry.leaving or entry.ends]
        times += [entry.changed_s + settings.stuck_s for entry in waits]
    limits = {LifeState.QUEUED: settings.gather_s, LifeState.HALTING: settings.halt_timeout_s}
    for job in builder.jobs.values():
        life = job.life
        times += [life.not_before_s, *(limit.until_s for limit in life.limits.values())]
        if life.state in limits:
            times.append(life.since_s + limits[life.state])
        elif life.state is LifeState.STARTING:
            times.append(life.since_s + job.start_limit_s(settings))
        if profile_progress(job, builder.allocation, now_s) is not None:
            times += [job.life.profile_until_s, settled_s(job, builder.allocation)]
    return min((at_s for at_s in times if at_s > now_s), default=now_s + settings.interval_s)


# ------------------------------------------------------------
# Say in the event log of a cluster what a plan changes: states of jobs, their slots, hosts.


class PlannedEvent(NamedTuple):
    kind: ClusterEventKind
    reason: str  # what has happened, and why, in a sentence
    job: str = ""  # the job that it is about; empty: none
    host: str = ""  # the host that it is about; empty: none, or several
    state: LifeState | None = None  # entered by the job; None: another kind of event
    result: LifeResult | None = None  # how the job has ended; None: it has not
    slots: Mapping[str, int] | None = None  # by host; None: it is another kind of event


def plan_events(view: ClusterView, planned: ClusterPlan) -> list[PlannedEvent]:
    return [
        *(
            PlannedEvent(
                ClusterEventKind.STATE,
                f"{one.before} -> {one.after}: {one.reason}",
                job=one.job,
                state=one.after,
                result=planned.lives[one.job].result if one.after is LifeState.ENDED else None,
            )
            for one in planned.changes
        ),
        *_slots(view, planned),
        *_hosts(view, planned),
    ]


def _slots(view: ClusterView, planned: ClusterPlan) -> Iterator[PlannedEvent]:
    before = {host.name: host.assigned for host in view.hosts}
    after = {**before, **planned.assigned}
    names = {
        name for host in planned.assigned for one in (before, after) for name in one[host].jobs
    }
    for job in sorted(names):
        had, has = _devices(before, job), _devices(after, job)
        if had != has:
            where = "; ".join(f"{host}: {_described(entry)}" for host, entry in has.items())
            reason = f"slots {where}" if where else "no slots"
            why = planned.reasons.get(job, "")
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


def _hosts(view: ClusterView, planned: ClusterPlan) -> Iterator[PlannedEvent]:
    for name, after in planned.assigned.items():
        host = view.host_named[name]
        if bool(host.assigned.silent_s) != bool(after.silent_s):
            why = f"host {name} offers nothing any more"
            if host.offer is not None:
                why = f"host {name} offers {counted(len(host.offer.numbers), 'slot')} again"
            yield PlannedEvent(ClusterEventKind.HOST, why, host=name)
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


# ------------------------------------------------------------
# Divide a large plan of a cluster into parts that may be written one after another.
#
# ZooKeeper takes no transaction above 1 MB. The records of one part depend on each other: a job
# whose devices change and all hosts where they change, and with these hosts all other jobs whose
# devices change there. No record is in two parts, so each is written once, as the plan has made it.
# If only some parts are written, the next plan goes on from there, as after any lost order.
#
# A part that is too large by itself is not written (`without_parts`).


class PlanPart(NamedTuple):
    """Records of a plan that have to be written together."""

    jobs: tuple[str, ...]  # the jobs whose lives are written, sorted
    hosts: tuple[str, ...]  # the hosts whose assignments are written, sorted


def plan_parts(view: ClusterView, planned: ClusterPlan) -> list[PlanPart]:
    """Return the parts of the plan `planned`, which was made from `view`; first those of a job."""
    # A graph of jobs and hosts; its connected parts are written apart.
    near: dict[tuple[str, str], set[tuple[str, str]]] = {
        ("job", job): set() for job in planned.lives
    }
    for name, after in planned.assigned.items():
        host = ("host", name)
        near.setdefault(host, set())
        for job in _changed_jobs(view, name, after):
            near[host].add(("job", job))
            near.setdefault(("job", job), set()).add(host)
    parts = []
    while near:
        members, waiting = [], [next(iter(near))]
        while waiting:
            if (member := waiting.pop()) in near:
                members.append(member)
                waiting += near.pop(member)
        jobs = [name for kind, name in members if kind == "job" and name in planned.lives]
        hosts = [name for kind, name in members if kind == "host"]
        parts.append(PlanPart(tuple(sorted(jobs)), tuple(sorted(hosts))))
    return sorted(parts, key=lambda part: (bool(part.hosts), part))


def without_parts(
    view: ClusterView, planned: ClusterPlan, left_out: Iterable[PlanPart]
) -> ClusterPlan:
    hosts = {host for part in left_out for host in part.hosts}
    jobs = {job for part in left_out for job in part.jobs}
    for host in hosts:
        jobs |= _changed_jobs(view, host, planned.assigned[host])
    return replace(
        planned,
        lives={job: life for job, life in planned.lives.items() if job not in jobs},
        assigned={host: one for host, one in planned.assigned.items() if host not in hosts},
        # A run is told what to do only after the records say so.
        orders=tuple(order for order in planned.orders if order.job not in jobs),
        changes=tuple(change for change in planned.changes if change.job not in jobs),
    )


def _changed_jobs(view: ClusterView, host: str, after: HostAssignment) -> set[str]:
    before = view.host_named[host].assigned.jobs
    return {job for job in {*before, *after.jobs} if before.get(job) != after.jobs.get(job)}
