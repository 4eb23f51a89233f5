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

7. **Queues.** In a cluster that has queues the policy is asked about each of them, with its share
   of the slots (:mod:`edl.core.cluster.queue_asking`).

A decision that breaks a rule of :mod:`edl.core.cluster.validity` changes nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from edl.core.cluster.active_jobs import ActiveJob, find_active_jobs, hosts_with_slots
from edl.core.cluster.arrival_profile import profile_progress, profiled_slots
from edl.core.cluster.asking import AllocationRequest, Decision, ask_protecting, kind_of
from edl.core.cluster.devices import DeviceTable
from edl.core.cluster.held_slots import HeldSlots
from edl.core.cluster.queue_asking import ask_by_queue
from edl.core.cluster.records import AllocationRecord
from edl.core.cluster.state import ClusterPolicy
from edl.core.cluster.view import ClusterView


def allocate(
    cluster: ClusterView, policy: ClusterPolicy, table: DeviceTable
) -> tuple[AllocationRecord, dict[str, str]]:
    """Return the decision that holds now, and why jobs wait that the policy is not told of."""
    active, obstacles = find_active_jobs(cluster, table)
    nodes, last = hosts_with_slots(cluster, table), cluster.allocation
    inputs = _digest(active, nodes, cluster, policy, table.now_s)
    is_recent = 0.0 <= table.now_s - last.at_s < cluster.settings.interval_s
    if inputs == last.inputs and is_recent:
        return last, obstacles
    is_held = isinstance(policy, HeldSlots)
    request = AllocationRequest(active, nodes, cluster, policy, table.now_s)
    answer = ask_by_queue(request) if cluster.queues and not is_held else ask_protecting(request)
    if answer.problem:
        broken = replace(last, at_s=table.now_s, inputs=inputs, problem=answer.problem)
        return _without_others(broken, active), obstacles
    within = [_within_queue(one, answer, cluster) for one in active]
    profiles = profiled_slots(within, nodes, answer.targets, last, table.now_s)
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
    """Return a digest, 16 hexadecimal digits, whose change lets the policy be asked at once."""
    limits = _OwnLimits(nodes)
    jobs = [
        (
            (one.job.order, one.group, one.most, one.why_fixed, limits.of(one)),
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


def _within_queue(one: ActiveJob, answer: Decision, cluster: ClusterView) -> ActiveJob:
    """Return a job that gets no more slots for its profile than the policy gives it."""
    queue = cluster.queues.get(one.job.manifest.queue)
    if queue is None or queue.most is None:
        return one
    return replace(one, most=sum(answer.targets.get(one.job.name, {}).values()))


class _OwnLimits:
    """A finder of the hosts where jobs may have fewer slots than can be counted on."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        self._nodes = nodes
        self._kept: dict[tuple[int, int], list[tuple[str, int]]] = {}  # of the same objects

    def of(self, one: ActiveJob) -> list[tuple[str, int]]:
        """Return (host, limit) for such hosts; hosts without the job's labels are left out."""
        # most jobs share one object with their limits
        key = id(one.limits), id(one.hosts)
        found = self._kept.get(key)
        if found is None:
            limits = [(host, one.limits.get(host, 0)) for host in one.hosts]
            found = [(host, limit) for host, limit in limits if limit < self._nodes[host]]
            self._kept[key] = found
        return found


def _recorded(
    answer: Decision, last: AllocationRecord, inputs: str, now_s: float
) -> AllocationRecord:
    """Return the record of a policy's answer, for the node `allocation`."""
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
    names = {one.job.name for one in active}
    targets = {name: target for name, target in record.targets.items() if name in names}
    return replace(record, targets=targets)
