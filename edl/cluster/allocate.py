"""Ask the cluster policy about the jobs of each queue, with the slots that the queue may have.

:func:`ask_by_queue` does so, in a cluster that has queues. Each queue is a cluster of its own for
the policy:

1. **Jobs that may not be preempted** get slots only within the quota of their queue, because others
   could not get them back (:func:`edl.cluster.queues.quota_limits`).
2. **Shares.** :func:`edl.cluster.queues.queue_shares` says how many slots each queue may
   have now. Its quota is met before anything else.
3. **The policy** is asked about each queue, with as many slots as that.
4. **What is left**, because the jobs of a queue can use a part of it only, goes to the others.

A queue that has more slots than it may have gives them back (*reclaim*):

- A job that trains shrinks before any is halted: none loses all slots as long as the fewest slots
  of all jobs that train fit in the share of the queue, whatever the policy answers.
- They do not fit only where another queue's quota needs the slots: surplus halts nobody. Then jobs
  of the lowest priority are halted, of these the one that was submitted last. So a job whose fewest
  slots are within the quota of its queue is never halted for another queue.
- ``min_run_s`` and ``cool_down_s`` do not keep slots that another queue's quota needs: else a
  manifest could keep them for ever. A job that starts keeps its slots until it trains.
"""

from __future__ import annotations

import hashlib
import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from edl.cluster.candidates import ActiveJob, StepTimeModels, find_active_jobs, hosts_with_slots
from edl.cluster.lifecycle import LifeState
from edl.cluster.placing import JobSize, place_stably, trimmed
from edl.cluster.queues import (
    NO_QUEUE,
    QueueRequest,
    QuotaRequest,
    queue_shares,
    quota_limits,
    surplus_slots,
)
from edl.cluster.records import AllocationRecord, QueueRecord
from edl.cluster.state import Allocation, ClusterPolicy, ClusterState, Node, slot_count, violation
from edl.cluster.view import ClusterView, DeviceTable, JobView
from edl.spec import Sizes
from edl.text import counted, verb, workers

# ------------------------------------------------------------
# Decide with how many workers a new job of a cluster trains while its throughput is measured.
#
# A policy that knows nothing of a job's speed takes it to grow in proportion to the workers. So the
# manifest may ask (`profile`) that a job of which nothing is known trains for a few seconds each
# with a few numbers of workers, when it trains for the first time. The rules:
#
# 1. **Bounds.** At most `sizes` numbers of workers are measured, each for about `each_s` seconds,
#    and all of it ends `within_s` seconds after the first step, once and for all
#    (`profile_until_s`). All that this needs is in ZooKeeper.
# 2. **Nobody loses anything by it.** The policy decides first, as if there were no profile. A job
#    is profiled with fewer workers than the policy gives it, or with more on slots that the policy
#    gives to nobody; and not with more while any job waits for slots. If the policy takes all slots
#    of a job away, it has none. After the profile the job has what the policy gives it.
# 3. **The order.** The size with which it starts is measured first; then each time the one that is
#    farthest, by its factor, from all that are measured: for 8 slots 8, 1, 3. A size counts as
#    measured when the job itself says how fast it was.


def profile_end_s(job: JobView, now_s: float) -> float:
    limits, before_s = job.manifest.profile, job.life.profile_until_s
    if limits is None or before_s:
        return before_s
    if job.measured.curve or job.manifest.hints.samples_per_s:
        return now_s
    return now_s + job.manifest.snooze_s + limits.within_s


@dataclass(frozen=True)
class ProfileProgress:
    known: tuple[int, ...]  # the numbers of workers that are measured, sorted
    is_settled: bool  # whether the job has had its present slots for `each_s` seconds


def profile_progress(
    job: JobView, allocation: AllocationRecord, now_s: float
) -> ProfileProgress | None:
    """Return how far the profile of a job is; None: the job is not profiled, or not any more."""
    limits, life = job.manifest.profile, job.life
    if limits is None or life.state is not LifeState.RUNNING or now_s >= life.profile_until_s:
        return None
    if now_s - life.since_s < job.manifest.snooze_s:
        return None
    known = {one.workers for one in job.measured.steps}
    return ProfileProgress(tuple(sorted(known)), now_s >= settled_s(job, allocation))


def settled_s(job: JobView, allocation: AllocationRecord) -> float:
    limits = job.manifest.profile
    begun_s = max(allocation.changed_s.get(job.name, 0.0), job.life.since_s)
    return begun_s + (limits.each_s if limits is not None else 0.0)


def next_size(
    progress: ProfileProgress, sizes: Sizes, present: int, most: int, count: int
) -> int | None:
    """Return the number of workers with which a job is profiled now; None: it is complete."""
    known = progress.known
    if not progress.is_settled or present not in known:
        return present if present <= most and sizes.allows(present) else None
    if len(known) >= count:
        return None
    others = [n for n in range(sizes.min_np, most + 1) if sizes.allows(n) and n not in known]

    def rank(size: int) -> tuple[float, int]:
        return min(abs(math.log(size / one)) for one in known), size

    return max(others, key=rank, default=None)


@dataclass(frozen=True)
class ProfileSlots:
    targets: Mapping[str, Mapping[str, int]]  # job -> host -> the number of its slots there
    reasons: Mapping[str, str]  # job -> what is measured, as a clause


def profiled_slots(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    targets: Mapping[str, Mapping[str, int]],
    allocation: AllocationRecord,
    now_s: float,
) -> ProfileSlots:
    free = Counter(nodes)
    for slots in targets.values():
        free.subtract(slots)
    somebody_waits = any(one.job.name not in targets for one in active)
    found: dict[str, Mapping[str, int]] = {}
    reasons: dict[str, str] = {}
    for one in sorted(active, key=lambda one: one.job.order):
        name, limits = one.job.name, one.job.manifest.profile
        progress = profile_progress(one.job, allocation, now_s)
        if limits is None or progress is None or name not in targets:
            continue
        if len(progress.known) >= limits.sizes and name not in allocation.profiled:
            continue  # it has its slots again
        given = targets[name]
        present = allocation.targets.get(name, given)
        spare = {} if somebody_waits else {host: n for host, n in free.items() if n > 0}
        room = {host: given.get(host, 0) + spare.get(host, 0) for host in {*given, *spare}}
        most = min(one.most, sum(min(n, one.limits.get(host, 0)) for host, n in room.items()))
        allowed = one.job.manifest.allowed_sizes
        size = next_size(progress, allowed, sum(present.values()), most, limits.sizes)
        if size is None:
            continue
        job = JobSize(name, size, present, (), one.limits, lambda count: count)
        placed = place_stably([job], {host: room[host] for host in sorted(room)}).get(name, {})
        if sum(placed.values()) == size:
            free.subtract(placed)
            free.update(given)
            found[name] = placed
            measured = f"{len(progress.known)} of {limits.sizes} sizes measured"
            reasons[name] = f"is profiled with {workers(size)}, {measured}"
    return ProfileSlots(found, reasons)


# ------------------------------------------------------------
# Ask a cluster policy about groups of jobs, and fit its answer to live jobs.
#
# `ask_protecting` does so, group by group; each is a cluster of its own (see `allocate`).


Targets = dict[str, Mapping[str, int]]  # job -> host -> number of slots


@dataclass
class Decision:
    targets: Targets = field(default_factory=dict)  # job -> host -> slots
    reasons: dict[str, str] = field(default_factory=dict)  # job -> why, as the policy's sentence
    batches: dict[str, int] = field(default_factory=dict)  # job -> the batch that was chosen
    state: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # group -> what is kept
    problem: str = ""  # the rule that its decision broke, as a sentence; empty: it broke none

    @property
    def used(self) -> int:
        return sum(sum(target.values()) for target in self.targets.values())


@dataclass(frozen=True)
class AllocationRequest:
    active: Sequence[ActiveJob]  # the jobs that may get slots
    nodes: Mapping[str, int]  # host -> the slots that they may have
    cluster: ClusterView  # the cluster, with the policy's last decision
    policy: ClusterPolicy
    now_s: float
    later: Sequence[ActiveJob] = ()  # asked about later, in another request, with what is left
    most: int | None = None  # the most slots that the jobs may have together; None: all of `nodes`
    queue: str = ""  # the queue whose jobs they are; empty: those of all queues


Spare = Callable[[Sequence[ActiveJob], Decision], Mapping[str, str]]

"""Gets the jobs that were asked about, and the answer. Returns the jobs that lose all slots and
may not, each with the reason."""


def ask_protecting(request: AllocationRequest, spare: Spare | None = None) -> Decision:
    slots = sum(request.nodes.values()) if request.most is None else request.most
    spare = spare or (
        lambda asked, answer: {
            **spare_unsaved(asked, answer, slots),
            **spare_young(asked, answer, request.now_s),
        }
    )
    asked = list(request.active)
    while True:
        answer = _ask(replace(request, active=asked))
        spared = {} if answer.problem else spare(asked, answer)
        if not spared:
            return answer
        # Those that may not lose all slots have their fewest of them, fixed.
        asked = [
            replace(one, present=trimmed(one.present, one.job.min_slots), why_fixed=why)
            if (why := spared.get(one.job.name))
            else one
            for one in asked
        ]


def spare_young(asked: Sequence[ActiveJob], answer: Decision, now_s: float) -> dict[str, str]:
    found = {}
    for one in losers(asked, answer):
        name, least_s = one.job.name, one.job.manifest.min_run_s
        # not fixed although it may not be preempted: it has lost slots, as with a host
        if one.job.manifest.preemptible is False:
            found[name] = "keeps its fewest slots: it may not be preempted"
        elif now_s - one.job.life.since_s < least_s:
            found[name] = f"keeps its fewest slots for {least_s:g} s after its start (min_run_s)"
    return found


def spare_unsaved(asked: Sequence[ActiveJob], answer: Decision, slots: int) -> Mapping[str, str]:
    found: dict[str, str] = {}
    kept = 0
    lost = {one.job.name for one in losers(asked, answer)}
    for one in sorted(asked, key=lambda one: one.group[0]):
        if one.job.name not in lost or not one.job.saves_nothing:
            continue
        # its user has said whether it may be preempted
        if one.job.manifest.preemptible is not None:
            continue
        higher = sum(
            sum(answer.targets.get(other.job.name, {}).values())
            for other in asked
            if other.group[0] < one.group[0] or other.is_fixed
        )
        if higher + kept + one.job.min_slots <= slots:
            kept += one.job.min_slots
            found[one.job.name] = (
                "keeps its fewest slots: it saves no checkpoint (preemptible: true lets others "
                "of its priority halt it)"
            )
    return found


def losers(asked: Sequence[ActiveJob], answer: Decision) -> list[ActiveJob]:
    return [
        one
        for one in asked
        if one.job.name not in answer.targets
        and not one.is_fixed
        and one.job.life.state is LifeState.RUNNING
        and one.size >= one.job.min_slots
    ]


def _ask(request: AllocationRequest) -> Decision:
    cluster, left = request.cluster, dict(request.nodes)
    answer, most, models = Decision(), request.most, StepTimeModels()
    silent = [host.name for host in cluster.hosts if host.offer is None]
    order = sorted(request.active, key=lambda one: one.group)
    for group, members in groupby(order, key=lambda one: one.group):
        jobs = sorted(members, key=lambda one: one.job.order)
        own_later = [one for one in request.active if one.group > group]
        later = [*own_later, *request.later]
        # what later jobs keep is not for these
        fixed = _sum(one.present for one in later if one.is_fixed)
        free = {host: left[host] - fixed[host] for host in left if host in jobs[0].hosts}
        free = {host: slots for host, slots in free.items() if slots > 0}
        usable = free
        if most is not None:
            reserved = sum(one.size for one in own_later if one.is_fixed)
            usable = _limited(free, most - reserved, jobs)
        key = f"{-group[0]}/{group[2]}"
        key = f"{request.queue}:{key}" if request.queue else key
        state = ClusterState(
            jobs=[one.cluster_job(request.now_s, models) for one in jobs],
            nodes=[Node(host, slots, kind_of(cluster, host)) for host, slots in usable.items()],
            present={one.job.name: tuple(one.present.items()) for one in jobs if one.present},
            now_s=request.now_s,
            state=cluster.allocation.state.get(key, {}),
        )
        decision = request.policy(state)
        wrong = violation(decision, state)
        if wrong is not None:
            return Decision(problem=f"the policy's decision breaks a rule and is not used: {wrong}")
        moving = _sum(one.present for one in later if not one.is_fixed)
        sized = _sized(jobs, decision, sum(usable.values()))
        placed = place_stably(sized, free, moving, silent)
        taken = _sum(placed.values())
        left = {host: slots - taken[host] for host, slots in left.items()}
        most = None if most is None else most - sum(taken.values())
        answer.targets |= placed
        kept = {one.job.name: one.why_fixed for one in jobs if one.is_fixed}
        answer.reasons |= {**decision.reasons, **kept}
        answer.batches |= decision.batches
        answer.state[key] = decision.state
    return answer


def kind_of(cluster: ClusterView, host: str) -> str:
    offer = cluster.host_named[host].offer
    return offer.kind if offer is not None else ""


def _limited(free: Mapping[str, int], most: int, jobs: Sequence[ActiveJob]) -> dict[str, int]:
    """Return at most `most` of the `free` slots of hosts, in the same order."""
    found: Counter[str] = Counter()
    fixed = _sum(one.present for one in jobs if one.is_fixed)
    present = _sum(one.present for one in jobs if not one.is_fixed)
    # first what jobs keep, then what others have, then those of the hosts with the most
    for wanted in (fixed, present, free):
        for host in sorted(free, key=lambda host: found[host] - free[host]):
            count = min(wanted[host], free[host] - found[host], most)
            if count > 0:
                found[host] += count
                most -= count
    return {host: found[host] for host in free if found[host]}


def _sum(many: Iterable[Mapping[str, int]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for slots in many:
        total.update(slots)
    return total


def _sized(jobs: Sequence[ActiveJob], decision: Allocation, slots: int) -> list[JobSize]:
    suggested = decision.placements
    sizes, left = {}, slots
    for one in jobs:
        given = slot_count(suggested.get(one.job.name, ()))
        sizes[one.job.name] = one.job.manifest.allowed_sizes.below(given) or 0
        left -= sizes[one.job.name]
    # slots that smaller sizes leave go to jobs that reach their next size with them
    for one in jobs:
        size = sizes[one.job.name]
        if 0 < size < slot_count(suggested[one.job.name]):
            more = one.job.manifest.allowed_sizes.above(size + 1)
            if more is not None and more <= one.most and more - size <= left:
                left -= more - size
                sizes[one.job.name] = more
    return [
        JobSize(
            name=one.job.name,
            size=sizes[one.job.name],
            present=one.present,
            suggested=suggested[one.job.name],
            limits=one.limits,
            fit=one.job.manifest.allowed_sizes.below,
        )
        for one in jobs
        if sizes[one.job.name]
    ]


# ------------------------------------------------------------
# Let each job keep its slots: what a live cluster does while its policy cannot be asked.
#
# A policy may fail with an error, or be one that this version of edl does not have. Jobs that end
# or shrink give their slots back as ever; nobody gets them until the policy works again.


@dataclass(frozen=True)
class KeepAllocation:
    """The cluster policy that changes nothing: each job keeps its slots, and no job gets more."""

    why: str = ""  # why the cluster's policy is not asked, as a sentence for the reasons

    def __call__(self, cluster: ClusterState) -> Allocation:
        kept, reasons = {}, {}
        for job in cluster.jobs:
            present = cluster.present.get(job.name, ())
            size = slot_count(present)
            what = "keeps its slots" if size else "waits"
            if size >= job.min_slots:
                # The hosts that are left may allow fewer.
                kept[job.name] = tuple(trimmed(dict(present), job.max_slots).items())
            elif size:
                what = f"has {size} of at least {job.min_slots} slots, and gets no others"
            reasons[job.name] = f"{what}: {self.why}"
        return Allocation(kept, reasons, cluster.state)


SPARED = "keeps its fewest slots: no job is halted for another queue where smaller ones are enough"


def ask_by_queue(request: AllocationRequest) -> Decision:
    queues = request.cluster.queues
    reasons: dict[str, str] = {}
    by_queue: dict[str, list[ActiveJob]] = {}
    for one in sorted(request.active, key=rank_in_queue):
        by_queue.setdefault(one.job.manifest.queue, []).append(one)
    requests = {}
    for name in sorted(by_queue):
        record = queues.get(name, NO_QUEUE)
        by_queue[name] = _within_quota(name, by_queue[name], record, reasons)
        requests[name] = _request_of(name, by_queue[name], record, request.nodes)
    slots = sum(request.nodes.values())
    shares = queue_shares(list(requests.values()), slots)
    held = {name: sum(one.size for one in jobs) for name, jobs in by_queue.items()}

    def order(name: str) -> tuple[int, int, str]:
        fewest = min((len(one.hosts) for one in by_queue[name]), default=0)
        return fewest, shares[name] - held[name], name

    answers: dict[str, Decision] = {}
    left, names = dict(request.nodes), sorted(by_queue, key=order)
    for at, name in enumerate(names):
        later = [one for other in names[at + 1 :] for one in by_queue[other]]
        part = replace(request, active=by_queue[name], nodes=left, later=later, queue=name)
        answers[name] = _ask_queue(part, shares[name])
        if answers[name].problem:
            return answers[name]
        left = _without(left, answers[name])

    def need(name: str) -> tuple[int, float, str]:
        used, record = answers[name].used, queues.get(name, NO_QUEUE)
        return min(0, used - held[name]), (used - record.quota) / record.weight, name

    idle = slots - sum(one.used for one in answers.values())
    for name in sorted(names, key=need):
        used, most = answers[name].used, requests[name].limit
        room = dict(_sum([left, *answers[name].targets.values()]))
        fixed = _sum(one.present for one in by_queue[name] if one.is_fixed)  # perhaps given away
        if idle <= 0 or used >= most or any(fixed[host] > room[host] for host in room):
            continue
        part = replace(request, active=by_queue[name], nodes=room, queue=name)
        more = min(most, used + idle)
        again = _ask_queue(part, more)
        if not again.problem and again.used > used:
            answers[name], shares[name] = again, max(shares[name], again.used)
            left, idle = _without(room, again), idle - again.used + used
    return _together(request, answers, shares, reasons)


def rank_in_queue(one: ActiveJob) -> tuple[int, int]:
    """Return the rank of a job in its queue, for sorting: the lowest keeps its slots longest."""
    return -one.job.wanted.priority, one.job.order


def _within_quota(
    queue: str, jobs: Sequence[ActiveJob], record: QueueRecord, reasons: dict[str, str]
) -> list[ActiveJob]:
    """Return the jobs of a queue without those that may not be preempted and exceed its quota."""
    rigid = [
        QuotaRequest(
            name=one.job.name,
            size=one.size,
            least=one.job.min_slots,
            most=max(one.size, one.job.min_slots) if one.is_fixed else one.most,
            sizes=one.job.manifest.allowed_sizes,
        )
        for one in jobs
        if one.job.manifest.preemptible is False
    ]
    limits, waiting = quota_limits(queue, rigid, record.quota)
    reasons |= waiting
    return [
        replace(one, most=min(one.most, limits.get(one.job.name, one.most)))
        for one in jobs
        if one.job.name not in waiting
    ]


def _request_of(
    name: str, jobs: Sequence[ActiveJob], record: QueueRecord, nodes: Mapping[str, int]
) -> QueueRequest:
    wanted: dict[tuple[str, ...], int] = {}
    for one in jobs:
        wanted[one.hosts] = wanted.get(one.hosts, 0) + max(one.most, one.size)
    total = sum(
        min(count, sum(nodes[host] for host in hosts if host in nodes))
        for hosts, count in wanted.items()
    )
    held = sum(one.size for one in jobs if _is_kept(one))
    least = sum(
        one.size if _is_kept(one) else one.job.min_slots
        for one in jobs
        if one.size >= one.job.min_slots
    )
    return QueueRequest(name, min(total, sum(nodes.values())), record, held, least)


def _is_kept(one: ActiveJob) -> bool:
    starts = one.job.life.state is LifeState.STARTING
    return one.is_fixed and (starts or one.job.manifest.preemptible is False)


def _ask_queue(request: AllocationRequest, most: int) -> Decision:
    held = sum(one.size for one in request.active)
    # `cool_down_s` and the like do not keep what another queue's quota needs.
    if sum(one.size for one in request.active if one.is_fixed) > most:
        request = replace(
            request,
            active=[one if _is_kept(one) else replace(one, why_fixed="") for one in request.active],
        )
    asked, reasons = [], {}
    for one in request.active:
        size = one.job.manifest.allowed_sizes.below(min(one.most, most))
        if one.is_fixed:
            asked.append(one)
        elif size is None:
            reasons[one.job.name] = f"waits: it needs {counted(one.job.min_slots, 'slot')}"
        else:
            asked.append(replace(one, most=size))
    # Shrunk so that another queue has its quota: a policy of fixed sizes would halt one else.
    if sum(max(one.job.manifest.requested_np, one.size) for one in asked if one.size) > most:
        asked = [
            replace(one, requested=min(one.size, one.job.manifest.requested_np))
            if one.size
            else one
            for one in asked
        ]
    # The jobs that can keep their fewest slots if all together have `most`.
    room = most - sum(one.size for one in asked if one.is_fixed)
    survivors = set()
    for one in sorted(
        asked, key=lambda one: (one.job.manifest.preemptible is not False, *rank_in_queue(one))
    ):
        if not one.is_fixed and one.size >= one.job.min_slots <= room:
            room -= one.job.min_slots
            survivors.add(one.job.name)

    def spare(asked: Sequence[ActiveJob], answer: Decision) -> Mapping[str, str]:
        kept = {**spare_unsaved(asked, answer, most), **spare_young(asked, answer, request.now_s)}
        found = {name: why for name, why in kept.items() if name in survivors}
        idle = most - answer.used
        for one in sorted(losers(asked, answer), key=rank_in_queue):
            name, least = one.job.name, one.job.min_slots
            if name not in survivors or name in found:
                continue
            # Smaller jobs are enough for the other queue's quota, or it would be halted for nobody.
            if held > most or least <= idle:
                found[name] = SPARED
                idle -= least
        return found

    answer = ask_protecting(replace(request, active=asked, most=most), spare)
    if not answer.problem:
        answer.reasons |= reasons
    return answer


def _together(
    request: AllocationRequest,
    answers: Mapping[str, Decision],
    shares: Mapping[str, int],
    reasons: Mapping[str, str],
) -> Decision:
    found = Decision(reasons=dict(reasons))
    for answer in answers.values():
        found.targets |= answer.targets
        found.reasons |= answer.reasons
        found.batches |= answer.batches
        found.state |= answer.state
    queues, by_priority = request.cluster.queues, sorted(request.active, key=rank_in_queue)
    sizes = {name: sum(target.values()) for name, target in found.targets.items()}
    surplus = surplus_slots(
        [
            (one.job.name, one.job.manifest.queue, sizes[one.job.name])
            for one in by_priority
            if one.job.name in sizes
        ],
        queues,
    )
    for one in by_priority:
        name, queue = one.job.name, one.job.manifest.queue
        quota = queues.get(queue, NO_QUEUE).quota
        if name in surplus:
            many = surplus[name]
            what = f"{many} of its slots {verb(many, 'is', 'are')}"
            found.reasons[name] += f"; {what} beyond the quota of {quota} of queue {queue}"
        elif name not in sizes and name not in reasons:
            share = counted(shares[queue], "slot")
            found.reasons[name] += f"; queue {queue} may have {share} now, and its quota is {quota}"
    return found


def _without(nodes: Mapping[str, int], answer: Decision) -> dict[str, int]:
    taken = _sum(answer.targets.values())
    return {host: slots - taken[host] for host, slots in nodes.items()}


# ------------------------------------------------------------
# Ask a cluster policy which slots each live job shall have, and fit its answer to live jobs.
#
# The policies are those of the simulator, unchanged. What they do not know is added around them:
#
# 1. **When.** The policy is asked when a job or a host has come or gone, when a job trains that has
#    just started, when a priority, a limit or the policy has changed, and at an interval.
# 2. **Priority and labels.** Jobs are asked about in groups: those of a higher priority first; of
#    one priority, those whose labels leave them the fewest hosts first. Each group is a cluster of
#    its own, with the slots that the groups before it leave.
# 3. **Rest.** A job that starts, or whose slots have just changed (`cool_down_s`), or that may not
#    be preempted, keeps its slots as one that may not be preempted. For `snooze_s` after a start a
#    job gets no more slots. A job that has trained for less than `min_run_s` and would lose all
#    slots keeps its fewest, and the policy is asked again with that.
# 4. **Sizes.** Where a job may have only some sizes, it gets the next smaller one. Slots that this
#    leaves go to such jobs, in the order of submission, if they reach their next size.
# 5. **Nodes.** `place_stably` chooses the nodes.
#
# Queues and profiles are added too. A decision that breaks a rule (`violation`) changes nothing.


def allocate(
    cluster: ClusterView, policy: ClusterPolicy, table: DeviceTable
) -> tuple[AllocationRecord, dict[str, str]]:
    active, obstacles = find_active_jobs(cluster, table)
    nodes, last = hosts_with_slots(cluster, table), cluster.allocation
    inputs = _digest(active, nodes, cluster, policy, table.now_s)
    is_recent = 0.0 <= table.now_s - last.at_s < cluster.settings.interval_s
    if inputs == last.inputs and is_recent:
        return last, obstacles
    is_held = isinstance(policy, KeepAllocation)
    request = AllocationRequest(active, nodes, cluster, policy, table.now_s)
    answer = ask_by_queue(request) if cluster.queues and not is_held else ask_protecting(request)
    if answer.problem:
        names = {one.job.name for one in active}
        targets = {name: target for name, target in last.targets.items() if name in names}
        broken = replace(last, at_s=table.now_s, inputs=inputs, problem=answer.problem)
        return replace(broken, targets=targets), obstacles
    within = []
    for one in active:
        queue = cluster.queues.get(one.job.manifest.queue)
        if queue is not None and queue.most is not None:
            # It gets no more slots for its profile than the policy gives it.
            one = replace(one, most=sum(answer.targets.get(one.job.name, {}).values()))
        within.append(one)
    profiles = profiled_slots(within, nodes, answer.targets, last, table.now_s)
    given = {name: answer.targets[name] for name in profiles.targets}
    answer.targets |= profiles.targets
    for name, what in profiles.reasons.items():
        answer.reasons[name] = f"{what}: {answer.reasons[name]}"
    held = policy.why if isinstance(policy, KeepAllocation) else ""
    changed_s = {}
    for name, target in answer.targets.items():
        same = last.targets.get(name) == target
        changed_s[name] = last.changed_s.get(name, table.now_s) if same else table.now_s
    kept = {name: size for name, size in last.batches.items() if name in answer.reasons}
    record = AllocationRecord(
        at_s=table.now_s,
        inputs=inputs,
        targets=answer.targets,
        changed_s=changed_s,
        batches=kept | answer.batches,
        reasons=answer.reasons,
        state=answer.state,
        profiled=given,
        held=held,
    )
    return record, obstacles


def _digest(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    cluster: ClusterView,
    policy: ClusterPolicy,
    now_s: float,
) -> str:
    """Return a digest, 16 hexadecimal digits, whose change lets the policy be asked at once."""
    kept: dict[tuple[int, int], list[tuple[str, int]]] = {}

    def own_limits(one: ActiveJob) -> list[tuple[str, int]]:
        """Return (host, limit) where the job may have fewer slots than can be counted on."""
        # Most jobs share one object with their limits.
        key = id(one.limits), id(one.hosts)
        if key not in kept:
            limits = [(host, one.limits.get(host, 0)) for host in one.hosts]
            kept[key] = [(host, limit) for host, limit in limits if limit < nodes[host]]
        return kept[key]

    jobs = [
        (
            (one.job.order, one.group, one.most, one.why_fixed, own_limits(one)),
            profile_progress(one.job, cluster.allocation, now_s),
        )
        for one in active
    ]
    kinds = [(name, nodes[name], kind_of(cluster, name)) for name in nodes]
    queues = [
        (name, one.quota, one.weight, one.most) for name, one in sorted(cluster.queues.items())
    ]
    inputs = (jobs, kinds, policy, queues) if queues else (jobs, kinds, policy)
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]
