"""Ask a cluster policy which slots each live job shall have, and fit its answer to live jobs.

:func:`allocate` does so. The policies are those of the simulator, unchanged. What they do not know
is added around them:

1. **When.** The policy is asked when a job or a host has come or gone, when a job trains that has
   just started, when a priority, a limit or the policy itself has changed, and at an interval. In
   between its last decision stands.
2. **Priority and labels.** Jobs are asked about in groups: those of a higher priority first; of one
   priority, those whose labels leave them the fewest hosts first. Each group is a cluster of its
   own, with the slots that the groups before it leave.
3. **Rest.** A job that starts, or whose slots have just changed (``cool_down_s``), or that may not
   be preempted, keeps its slots as one that may not be preempted. For ``snooze_s`` after a start a
   job gets no more slots. A job that has trained for less than ``min_run_s`` and would lose all
   slots keeps its fewest, and the policy is asked again with that.
4. **Sizes.** Where a job may have only some sizes, it gets the next smaller one. Slots that this
   leaves go to such jobs, in the order of submission, if they reach their next size.
5. **Nodes.** :mod:`edl.core.cluster.stable_placing` chooses the nodes.
6. **Profiles.** A job of unknown speed may get other slots for a short time, so that it is measured
   (:mod:`edl.core.cluster.arrival_profile`).

A decision that breaks a rule of :mod:`edl.core.cluster.validity` changes nothing.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

from edl.core.cluster.active_jobs import ActiveJob, find_active_jobs, hosts_with_slots
from edl.core.cluster.arrival_profile import profile_progress, profiled_slots
from edl.core.cluster.devices import DeviceTable
from edl.core.cluster.held_slots import HeldSlots
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.records import AllocationRecord
from edl.core.cluster.stable_placing import JobSize, place_stably, trimmed
from edl.core.cluster.state import Allocation, ClusterPolicy, ClusterState, Node, slot_count
from edl.core.cluster.validity import violation
from edl.core.cluster.view import ClusterView

Targets = dict[str, Mapping[str, int]]
"""Job -> host -> number of slots."""


@dataclass
class _Decision:
    """The answers of a policy about the groups of jobs that it was asked about so far.

    Attributes:
        targets: job -> host -> the number of slots that the job shall have there.
        reasons: job -> why it has its slots or waits, as the policy's sentence.
        batches: job -> the global batch that the policy chose, in samples.
        state: group of jobs -> what the policy keeps for its next decision.
        problem: the rule that its decision broke, as a sentence; empty: it broke none.
    """

    targets: Targets = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    batches: dict[str, int] = field(default_factory=dict)
    state: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    problem: str = ""


def allocate(
    cluster: ClusterView, policy: ClusterPolicy, table: DeviceTable
) -> tuple[AllocationRecord, dict[str, str]]:
    """Return the decision that holds now, and why jobs wait that the policy is not told of.

    The policy is asked if the jobs, hosts, limits or the policy have changed since it was asked
    last, or the interval has passed. Otherwise its last decision holds. If its answer breaks a
    rule, the last decision holds, with that rule in ``problem``.

    Args:
        cluster: the jobs and hosts as they were read, with the policy's last decision.
        policy: the cluster policy to ask.
        table: the devices, the run that each belongs to, and the time.

    Returns:
        (the decision, as the record to write; for each job that wants slots and of which the policy
        is not told, by name, the reason).
    """
    active, obstacles = find_active_jobs(cluster, table)
    nodes, last = hosts_with_slots(cluster, table), cluster.allocation
    inputs = _digest(active, nodes, cluster, policy, table.now_s)
    due = table.now_s - last.at_s >= cluster.settings.interval_s
    if inputs == last.inputs and not due:
        return last, obstacles
    answer = _ask_protecting(active, nodes, cluster, policy, table.now_s)
    if answer.problem:
        broken = replace(last, at_s=table.now_s, inputs=inputs, problem=answer.problem)
        return _without_others(broken, active), obstacles
    profiles = profiled_slots(active, nodes, answer.targets, last, table.now_s)
    given = {name: answer.targets[name] for name in profiles.targets}
    answer.targets |= profiles.targets
    for name, what in profiles.reasons.items():
        answer.reasons[name] = f"{what}: {answer.reasons[name]}"
    held = policy.why if isinstance(policy, HeldSlots) else ""
    record = _recorded(answer, last, inputs, table.now_s)
    return replace(record, profiled=given, held=held), obstacles


def _digest(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    cluster: ClusterView,
    policy: ClusterPolicy,
    now_s: float,
) -> str:
    """Return a digest, 16 hexadecimal digits, whose change lets the policy be asked at once.

    Args:
        active: the jobs that may get slots.
        nodes: host -> the slots that can be counted on.
        cluster: the cluster, for the kinds of its hosts.
        policy: the policy, whose text has its parameters.
        now_s: the time, in seconds since 1970.
    """
    jobs = [
        (
            (one.job.order, one.group, one.most, one.why_fixed, _own_limits(one, nodes)),
            profile_progress(one.job, cluster.allocation, now_s),
        )
        for one in active
    ]
    kinds = [(name, nodes[name], _kind(cluster, name)) for name in nodes]
    return hashlib.sha256(repr((jobs, kinds, policy)).encode()).hexdigest()[:16]


def _own_limits(one: ActiveJob, nodes: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return (host, limit) for the hosts where a job may have fewer slots than can be counted on.

    Args:
        one: the job; hosts without its labels are left out.
        nodes: host -> the slots that can be counted on.
    """
    limits = [(host, one.limits.get(host, 0)) for host in one.hosts]
    return [(host, limit) for host, limit in limits if limit < nodes[host]]


def _kind(cluster: ClusterView, host: str) -> str:
    """Return the kind of machine that a host offers; empty if it offers nothing just now."""
    offer = cluster.host_named[host].offer
    return offer.kind if offer is not None else ""


def _recorded(
    answer: _Decision, last: AllocationRecord, inputs: str, now_s: float
) -> AllocationRecord:
    """Return the record of a policy's answer, for the node ``allocation``.

    A target that is as before keeps the time of its last change; a job about which the answer has
    no batch keeps its last batch.

    Args:
        answer: the answers of the policy about all groups of jobs.
        last: the record of the decision before this one.
        inputs: the digest of the jobs, hosts and policy that were asked about.
        now_s: the time, in seconds since 1970.
    """
    changed_s = {}
    for name, target in answer.targets.items():
        same = last.targets.get(name) == target
        changed_s[name] = last.changed_s.get(name, now_s) if same else now_s
    kept = {name: size for name, size in last.batches.items() if name in answer.reasons}
    return AllocationRecord(
        at_s=now_s,
        inputs=inputs,
        targets=answer.targets,
        changed_s=changed_s,
        batches=kept | answer.batches,
        reasons=answer.reasons,
        state=answer.state,
    )


def _without_others(record: AllocationRecord, active: Sequence[ActiveJob]) -> AllocationRecord:
    """Return a copy of ``record`` whose targets are only those of the jobs in ``active``."""
    names = {one.job.name for one in active}
    targets = {name: target for name, target in record.targets.items() if name in names}
    return replace(record, targets=targets)


# --- asking


def _ask_protecting(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    cluster: ClusterView,
    policy: ClusterPolicy,
    now_s: float,
) -> _Decision:
    """Ask the policy, and again until no job loses all slots that has trained too short a time.

    That is a job that has trained for less than its ``min_run_s``. In the next question it has its
    fewest slots, which the policy may not change.

    Args:
        active: the jobs that may get slots.
        nodes: host -> the slots that can be counted on.
        cluster: the cluster, with the policy's last decision.
        policy: the policy.
        now_s: the time, in seconds since 1970.

    Returns:
        The last answers; if one breaks a rule, only its ``problem``.
    """
    asked = list(active)
    while True:
        answer = _ask(asked, nodes, cluster, policy, now_s)
        spared = [
            one.job.name
            for one in asked
            if one.job.name not in answer.targets and not one.is_fixed and _is_young(one, now_s)
        ]
        if answer.problem or not spared:
            return answer
        asked = [_at_fewest(one) if one.job.name in spared else one for one in asked]


def _is_young(one: ActiveJob, now_s: float) -> bool:
    """Return whether a job trains on its fewest slots or more, and for less than ``min_run_s``.

    ``min_run_s`` is a value of the job's manifest, in seconds; ``now_s`` is the time, in seconds
    since 1970.
    """
    job = one.job
    if job.life.state is not LifeState.RUNNING or sum(one.present.values()) < job.min_slots:
        return False
    return now_s - job.life.since_s < job.manifest.min_run_s


def _at_fewest(one: ActiveJob) -> ActiveJob:
    """Return the active job with only the fewest of its present slots, which are fixed."""
    least_s = one.job.manifest.min_run_s
    why = f"keeps its fewest slots for {least_s:g} s after its start (min_run_s)"
    return replace(one, present=trimmed(one.present, one.job.min_slots), why_fixed=why)


def _ask(
    active: Sequence[ActiveJob],
    nodes: Mapping[str, int],
    cluster: ClusterView,
    policy: ClusterPolicy,
    now_s: float,
) -> _Decision:
    """Ask the policy about one group of jobs after the other, and return all answers together.

    A group has the jobs of one priority whose labels leave them the same hosts.

    If one answer breaks a rule, the result has only that ``problem``.

    Args:
        active: the jobs that may get slots.
        nodes: host -> the slots that can be counted on.
        cluster: the cluster, with the policy's last decision.
        policy: the policy.
        now_s: the time, in seconds since 1970.
    """
    answer, left = _Decision(), dict(nodes)
    silent = [host.name for host in cluster.hosts if host.offer is None]
    order = sorted(active, key=lambda one: one.group)
    for group, members in groupby(order, key=lambda one: one.group):
        jobs = sorted(members, key=lambda one: one.job.order)
        later = [one for one in active if one.group > group]
        fixed = _sum(one.present for one in later if one.is_fixed)
        free = {host: left[host] - fixed[host] for host in left if host in jobs[0].hosts}
        free = {host: slots for host, slots in free.items() if slots > 0}
        key = f"{-group[0]}/{group[2]}"
        state = ClusterState(
            jobs=[one.cluster_job(now_s) for one in jobs],
            nodes=[Node(host, slots, _kind(cluster, host)) for host, slots in free.items()],
            present={one.job.name: tuple(one.present.items()) for one in jobs if one.present},
            now_s=now_s,
            state=cluster.allocation.state.get(key, {}),
        )
        decision = policy(state)
        wrong = violation(decision, state)
        if wrong is not None:
            return _Decision(
                problem=f"the policy's decision breaks a rule and is not used: {wrong}"
            )
        moving = _sum(one.present for one in later if not one.is_fixed)
        sized = _sized(jobs, decision, sum(free.values()))
        placed = place_stably(sized, free, moving, silent)
        taken = _sum(placed.values())
        left = {host: slots - taken[host] for host, slots in left.items()}
        answer.targets |= placed
        kept = {one.job.name: one.why_fixed for one in jobs if one.is_fixed}
        answer.reasons |= {**decision.reasons, **kept}
        answer.batches |= decision.batches
        answer.state[key] = decision.state
    return answer


def _sum(many: Iterable[Mapping[str, int]]) -> Counter[str]:
    """Return, by host, the sum of the numbers of slots in all mappings of ``many``."""
    total: Counter[str] = Counter()
    for slots in many:
        total.update(slots)
    return total


def _sized(jobs: Sequence[ActiveJob], decision: Allocation, slots: int) -> list[JobSize]:
    """Return the jobs that get slots by a policy's decision, each with an allowed size.

    They are in the order of ``jobs``; a job that gets none is left out.

    Args:
        jobs: the jobs of one group, in the order of submission.
        decision: the policy's decision about them.
        slots: the number of slots of their hosts together.
    """
    suggested = decision.placements
    sizes, left = {}, slots
    for one in jobs:
        given = slot_count(suggested.get(one.job.name, ()))
        sizes[one.job.name] = one.job.manifest.allowed_sizes.below(given) or 0
        left -= sizes[one.job.name]
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
