"""Plan what the leader of a cluster writes and orders next, from what it has read.

:func:`plan` is a pure function. It looks at how things are, never at what has changed, so it may be
called at any time and as often as one likes: with the same view the plan is the same, and once the
plan is carried out and answered, the next one is empty. Whatever of a plan is lost is in the next
one again. A leader that begins anew needs nothing but the records.

One call goes through these stages:

1. **Lives** (:mod:`edl.core.cluster.living`). The events happen that follow from users' goals and
   from what runs have become.
2. **Ended runs** (:mod:`edl.core.cluster.ending`). The hosts are told to end what belongs to no run
   that may go on. What they report as ended is free.
   Hosts are asked which paths they have that jobs need (:mod:`edl.core.cluster.path_questions`).
3. **Allocation** (:mod:`edl.core.cluster.allocating`). The policy is asked if that is due.
4. **Giving back** (:mod:`edl.core.cluster.settling`). Jobs without slots in the allocation are told
   to stop. Jobs with fewer slots are to give some back; what they no longer use is free.
5. **Taking** (the same module). Free devices are assigned to the jobs that the allocation gives
   them to; jobs that have all of theirs start or grow.
6. **Stopping** (:mod:`edl.core.cluster.ending`). Runs that are to stop are told so.

So a slot changes hands in two writes, in two different turns: the order to the old run in stage 5
of one turn, and the assignment to the new run in stage 5 of a later turn, after the proof in stage
4 (:mod:`edl.core.cluster.devices` says what counts as proof).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from edl.core.cluster.active_jobs import HAS_SLOTS
from edl.core.cluster.allocating import allocate
from edl.core.cluster.arrival_profile import profile_progress, settled_s
from edl.core.cluster.devices import FAILED_S
from edl.core.cluster.draft import Draft, JobChange
from edl.core.cluster.ending import end_runs, stop_runs
from edl.core.cluster.job_life import JobLife, LifeState
from edl.core.cluster.living import advance_lives
from edl.core.cluster.missing_paths import missing_on_borrowed
from edl.core.cluster.orders import Order
from edl.core.cluster.path_questions import ask_about_paths
from edl.core.cluster.queue_shares import surplus_slots
from edl.core.cluster.records import AllocationRecord, ClusterRecord, HostAssignment
from edl.core.cluster.settling import give_back, take_devices
from edl.core.cluster.state import ClusterPolicy
from edl.core.cluster.view import ClusterView, JobView
from edl.core.plural import counted

AGAIN_S = 1.0  # until the next plan, if something was written or ordered
# Changes, in one plan, of jobs that have nothing on a host: new ones that are begun, waiting ones
# that are deleted. Thousands at once would keep the leader from all else.
MOST_IDLE = 500


@dataclass(frozen=True)
class ClusterPlan:
    """One plan of the leader: records to write, orders to carry out, and a reason for each job."""

    # `lives`, `assigned` and `allocation` are written in one transaction, under the fence, with
    # checks of the versions that were read. If it is refused, nothing else is done. Then the
    # `orders` are carried out.

    # job -> the new record of its life; only those that change
    lives: Mapping[str, JobLife] = field(default_factory=dict)
    # host -> its new assignment; only those that change
    assigned: Mapping[str, HostAssignment] = field(default_factory=dict)
    # the new record of the policy's decision; None: it stays
    allocation: AllocationRecord | None = None
    orders: tuple[Order, ...] = ()  # what runs are asked to do, in this order
    # the changes of jobs' states in `lives`, in order, for the log of events
    changes: tuple[JobChange, ...] = ()
    # job -> why it has what it has, or why it waits and where in the queue, as a sentence
    reasons: Mapping[str, str] = field(default_factory=dict)
    # job -> how many of its slots are beyond the quota of its queue; only those with any. Empty in
    # a cluster without queues.
    surplus: Mapping[str, int] = field(default_factory=dict)
    # when to plan again although nothing was seen to change, in seconds since 1970
    next_s: float = 0.0

    @property
    def writes(self) -> bool:
        """Whether the plan changes a record; orders to runs do not count."""
        return bool(self.lives or self.assigned or self.allocation is not None)

    @property
    def acts(self) -> bool:
        return self.writes or bool(self.orders)


def plan(cluster: ClusterView, policy: ClusterPolicy, now_s: float) -> ClusterPlan:
    """Return what the leader of `cluster` writes and orders next, and why."""
    draft = Draft(cluster, now_s)
    advance_lives(draft)
    end_runs(draft)
    ask_about_paths(draft)
    now = replace(cluster, jobs=tuple(draft.jobs.values()), allocation=draft.allocation)
    draft.allocation, draft.waits = allocate(now, policy, draft.table)
    give_back(draft)
    take_devices(draft)
    stop_runs(draft)
    return _finished(draft)


def _finished(draft: Draft) -> ClusterPlan:
    """Return the plan: the records and orders in `draft` that differ from what was read."""
    lives: dict[str, JobLife] = {}
    later: set[str] = set()
    idle = 0
    for job in draft.cluster.jobs:
        life = _tidied(draft, draft.jobs[job.name])
        if life == job.life:
            continue
        is_idle = not (job.life.state.has_run or life.state.has_run)
        idle += is_idle
        if is_idle and idle > MOST_IDLE:
            later.add(job.name)
        else:
            lives[job.name] = life
    changed = draft.allocation != draft.cluster.allocation
    found = ClusterPlan(
        lives=lives,
        assigned=draft.table.changed(),
        allocation=draft.allocation if changed else None,
        orders=tuple(draft.orders),
        changes=tuple(one for one in draft.changes if one.job not in later),
        reasons=_reasons(draft),
        surplus=_surplus(draft),
    )
    return replace(found, next_s=_next_s(draft, found))


def _surplus(draft: Draft) -> dict[str, int]:
    """Return how many slots of each job are beyond the quota of its queue; only those with any."""
    if not draft.cluster.queues:
        return {}
    jobs = sorted(draft.jobs.values(), key=lambda job: (-job.wanted.priority, job.order))
    sizes = [
        (job.name, job.manifest.queue, sum(draft.target(job).values()))
        for job in jobs
        if job.life.state in HAS_SLOTS
    ]
    return surplus_slots(sizes, draft.cluster.queues)


def _tidied(draft: Draft, job: JobView) -> JobLife:
    """Return the life of `job` with its slot-seconds until now, without limits that are over."""
    slots = 0
    if job.life.state.has_run:
        entries = draft.table.entries(job.name, job.life.run)
        slots = sum(len(entry.devices) for entry in entries.values())
    limits = {host: one for host, one in job.life.limits.items() if one.until_s > draft.now_s}
    return replace(job.life.counted(slots, draft.now_s), limits=limits)


def _reasons(draft: Draft) -> dict[str, str]:
    """Return why each job has its slots, or why it waits, and where in the queue."""
    queue = sorted(
        (job for job in draft.jobs.values() if job.life.state is LifeState.QUEUED),
        key=lambda job: (-job.wanted.priority, job.order),
    )
    places = {job.name: place for place, job in enumerate(queue, 1)}
    problem, found = draft.allocation.problem, {}
    for name, job in draft.jobs.items():
        why = draft.waits.get(name) or job.unreadable or draft.why(job) or problem
        if name in places:
            at = f"place {places[name]} of {len(queue)} in the queue"
            why = (why or job.life.reason).removeprefix("waits: ")
            lacks = draft.cluster.path_checks.of(job.manifest).lacks
            lacks = lacks or missing_on_borrowed(job, draft.cluster)
            more = f"; {lacks}" if lacks and lacks not in why else _holders(draft, job)
            found[name] = f"{at}: {why}{more}"
        else:
            found[name] = why if why and job.life.state in HAS_SLOTS else job.life.reason
    return found


def _holders(draft: Draft, job: JobView) -> str:
    """Return a clause that says which jobs have the slots of the hosts that `job` may use."""
    allocation = draft.allocation
    if draft.waits.get(job.name) or draft.target(job) or allocation.held or allocation.problem:
        return ""  # it does not wait for slots
    if job.manifest.preemptible is False and draft.cluster.queues:
        return ""  # its quota is in its way
    held: Counter[str] = Counter()
    for host, name, entry in draft.table.all_entries():
        offer = draft.cluster.host_named[host].offer
        labels = offer.labels if offer is not None else {}
        if name == job.name or draft.cluster.is_closed_to(host, job.name):
            continue
        if job.manifest.labels.items() <= labels.items():
            held[name] += len(entry.devices)
    most = [f"{name} has {counted(count, 'slot')}" for name, count in held.most_common(3)]
    others = f" and {counted(len(held) - 3, 'other job')} the rest" if len(held) > 3 else ""
    return f"; {', '.join(most)}{others}" if most else ""


def _next_s(draft: Draft, found: ClusterPlan) -> float:
    """Return when to plan again even if nothing changes until then, in seconds since 1970."""
    settings, now_s = draft.settings, draft.now_s
    times = [*draft.times_s, draft.allocation.at_s + settings.interval_s]
    if found.acts:
        times.append(now_s + AGAIN_S)
    for host in draft.cluster.hosts:
        times += _times_of_host(found.assigned.get(host.name, host.assigned), settings)
    for job in draft.jobs.values():
        times += _times_of_job(job, settings)
        if profile_progress(job, draft.allocation, now_s) is not None:
            times += [job.life.profile_until_s, settled_s(job, draft.allocation)]
    return min((at_s for at_s in times if at_s > now_s), default=now_s + settings.interval_s)


def _times_of_host(record: HostAssignment, settings: ClusterRecord) -> Sequence[float]:
    """Return when time limits of a host end: to be lost, to give back slots."""
    found = [record.silent_s + settings.lost_after_s] if record.silent_s else []
    found += [one.at_s + FAILED_S for one in record.failures.values()]
    waits = [entry for entry in record.jobs.values() if entry.leaving or entry.ends]
    return [*found, *(entry.changed_s + settings.stuck_s for entry in waits)]


def _times_of_job(job: JobView, settings: ClusterRecord) -> Sequence[float]:
    """Return when time limits of `job` end, in seconds since 1970, some of them in the past."""
    life = job.life
    found = [life.not_before_s, *(limit.until_s for limit in life.limits.values())]
    if life.state is LifeState.QUEUED:
        found.append(life.since_s + settings.gather_s)
    if life.state is LifeState.STARTING:
        found.append(life.since_s + job.start_limit_s(settings))
    if life.state is LifeState.HALTING:
        found.append(life.since_s + settings.halt_timeout_s)
    return found
