"""Decide how many hosts the jobs of a cluster need from an engine that lends them.

:func:`wanted_hosts` is a pure function of the jobs, the hosts and the limits.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet

from edl.core.cluster.active_jobs import obstacle
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.lease_records import LeaseLimits
from edl.core.cluster.quota_limits import QuotaRequest, quota_limits
from edl.core.cluster.tenant_names import tenant_of
from edl.core.cluster.view import ClusterView, HostView, JobView
from edl.core.plural import counted, verb
from edl.errors import some

_Labels = frozenset[tuple[str, str]]


def wanted_hosts(
    cluster: ClusterView, limits: LeaseLimits, missing: AbstractSet[str] = frozenset()
) -> tuple[int, str]:
    """Return how many hosts of the fleet the jobs need, within the limits, and why."""
    slots = limits.shape.slots
    hosts = [
        host
        for host in cluster.hosts
        if host.offer is not None and host.takes_slots and not host.offer.lease
    ]
    own = _slots_without(hosts, (), limits)
    jobs = [
        job
        for job in cluster.jobs
        if missing.isdisjoint(job.manifest.required_paths) and _counts(job, cluster, limits, own)
    ]
    others = {job.name for job in cluster.jobs if job.wants_slots} - {job.name for job in jobs}
    wanted: Counter[_Labels] = Counter()
    asking = _requests(jobs, others, cluster)
    for job, count in asking:
        wanted[frozenset(job.manifest.labels.items())] += count
    needed = math.ceil(_lacking(wanted, _slots_without(hosts, others, limits)) / slots)
    why = "no job needs one"
    if asking:
        names, total = some([job.name for job, _ in asking]), wanted.total()
        why = f"{names} {verb(len(asking), 'asks', 'ask')} for {counted(total, 'slot')}"
    return min(limits.max_hosts, max(limits.min_hosts, needed)), why


def _requests(
    jobs: Sequence[JobView], others: Collection[str], cluster: ClusterView
) -> list[tuple[JobView, int]]:
    """Return for how many slots each of `jobs` counts, within what its queue may have."""
    left = {name: one.most for name, one in cluster.queues.items() if one.most is not None}
    held: Counter[str] = Counter()
    for host in cluster.hosts:
        for name, entry in host.assigned.jobs.items():
            held[name] += len(entry.devices)
            if name in others and (queue := cluster.by_name[name].manifest.queue) in left:
                left[queue] -= len(entry.devices)
    holding = [cluster.by_name[name] for name in others if held[name]]
    limits = _rigid_limits([*jobs, *holding], held, cluster)
    found = []
    for job in jobs:
        queue, count = job.manifest.queue, job.manifest.requested_np
        if job.manifest.preemptible is False:
            count = limits.get(job.name, 0)
        if count > left.get(queue, count):
            count = job.manifest.allowed_sizes.below(max(0, left[queue])) or 0
        if queue in left:
            left[queue] -= count
        if count:
            found.append((job, count))
    return found


def _rigid_limits(
    jobs: Sequence[JobView], held: Mapping[str, int], cluster: ClusterView
) -> dict[str, int]:
    """Return how many slots each job with `preemptible: false` may have, by job name."""
    queues: dict[str, list[QuotaRequest]] = {}
    rigid = [job for job in jobs if job.manifest.preemptible is False]
    for job in sorted(rigid, key=lambda job: (-job.wanted.priority, job.order)):
        size, least = held.get(job.name, 0), job.min_slots
        # one that has slots does not grow
        most = max(size, least) if size else max(job.manifest.requested_np, least)
        one = QuotaRequest(job.name, size, least, most, job.manifest.allowed_sizes)
        queues.setdefault(job.manifest.queue, []).append(one)
    found: dict[str, int] = {}
    for name, requests in queues.items():
        quota = cluster.queues[name].quota if name in cluster.queues else 0
        if not cluster.queues:
            quota = sum(one.most for one in requests)
        found |= quota_limits(name, requests, quota)[0]
    return found


def _slots_without(
    hosts: Sequence[HostView], others: Collection[str], limits: LeaseLimits
) -> Counter[_Labels]:
    """Return how many slots of `hosts` the jobs `others` do not hold, by labels."""
    found: Counter[_Labels] = Counter()
    for host in hosts:
        if host.offer is not None:
            entries = host.assigned.jobs.items()
            held = sum(len(entry.devices) for name, entry in entries if name in others)
            # no job that counts asks for other labels
            labels = frozenset(host.offer.labels.items() & limits.shape.labels.items())
            found[labels] += max(0, len(host.offer.numbers) - held)
    return found


def _lacking(wanted: Mapping[_Labels, int], free: Mapping[_Labels, int]) -> int:
    """Return how many of the slots that jobs ask for the hosts do not have."""
    # Sets of labels that overlap without inclusion may make the result larger than it must be.
    left, lacking = dict(free), 0
    for labels in sorted(wanted, key=_order, reverse=True):
        count = wanted[labels]
        for offered in sorted(left, key=_order):
            if labels <= offered:
                used = min(count, left[offered])
                left[offered] -= used
                count -= used
        lacking += count
    return lacking


def _order(labels: _Labels) -> tuple[int, list[tuple[str, str]]]:
    # the same in each process
    return len(labels), sorted(labels)


def _counts(
    job: JobView, cluster: ClusterView, limits: LeaseLimits, own: Mapping[_Labels, int]
) -> bool:
    """Return whether hosts are asked for on behalf of `job`."""
    labels = job.manifest.labels.items()
    if not job.wants_slots or not labels <= limits.shape.labels.items():
        return False
    if tenant_of(job.name, cluster.tenants):
        return False  # lent hosts run without --user
    room = sum(count for offered, count in own.items() if labels <= offered)
    if job.min_slots > room + limits.max_hosts * limits.shape.slots:
        return False
    lacking = cluster.path_checks.of(job.manifest).lacking
    if any((offer := cluster.host_named[host].offer) and offer.lease for host in lacking):
        return False  # another host of the same fleet would lack its files, too
    if job.life.state is not LifeState.QUEUED:
        return True
    return obstacle(job, cluster, math.inf) is None  # a rest until its next try is no obstacle
