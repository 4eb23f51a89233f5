"""Give admitted jobs weighted fair shares of the slots, in powers of two, as VirtualFlow does.

:class:`VirtualFlow` is the policy: the scheduler of VirtualFlow (Or et al., MLSys 2022;
andrewor14/models, deploy/scheduler.py). A job's weight is its priority (1, 5 or 10 there), its
demand is the number of slots that it requested.

Shares of a set of jobs:

1. Each job has the fraction weight / sum of weights of the slots, rounded down to a power of two,
   at least 1. While the sum is too large, shares are halved, the lightest job first.
2. Jobs whose share reaches their demand get their demand and are done; the others share what is
   left by rule 1. If no job has reached its demand, each gets its share.
3. Slots that are left are used to double shares, up to the demand, the heaviest job first.

Admission: the waiting jobs are admitted, heaviest first, then in the order of submission, up to the
first job that does not fit, or that would lower the share of a heavier running job. A job that was
admitted keeps slots until its end, so the wait of a light job has no bound while heavier jobs
arrive.

These rules are edl's own: a minimum above 1 is kept (a share is at least the next power of two, or
the demand). A job that may not be preempted keeps what it has. If nodes were lost and the slots
left are too few, the lightest running jobs lose theirs and wait again.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from edl.cluster.placing import place_slots
from edl.cluster.state import Allocation, ClusterJob, ClusterState
from edl.text import counted


@dataclass(frozen=True)
class VirtualFlow:
    """The cluster policy `virtualflow`: weighted fair shares in powers of two."""

    def __call__(self, cluster: ClusterState) -> Allocation:
        fixed, slots = cluster.fixed, cluster.slots
        running = _survivors(_running(cluster), fixed, slots)
        admitted, sizes = list(running), weighted_shares(running, fixed, slots) or {}
        let_in = {job.name for job in running}
        # up to the first that does not fit, or would lower the share of a heavier job
        heaviest = _by_weight(job for job in cluster.jobs if job.name not in let_in)
        held_by = ""
        for job in heaviest:
            then = weighted_shares([*admitted, job], fixed, slots)
            if then is None:
                held_by = f"{job.name} does not fit"
                break
            poorer = [
                one.name
                for one in running
                if one.weight > job.weight and then[one.name] < sizes[one.name]
            ]
            if poorer:
                held_by = f"{job.name} would lower the share of {poorer[0]}"
                break
            admitted.append(job)
            sizes = then
        weights = sum(job.weight for job in admitted)
        reasons = {}
        for job in cluster.jobs:
            weight = f"weight {job.weight:g}"
            if job.name in sizes:
                has = counted(sizes[job.name], "slot")
                reasons[job.name] = f"has {has} of {slots}: {weight} of {weights:g}"
            else:
                reasons[job.name] = f"waits with {weight}: {held_by}"
        order = [job.name for job in admitted]
        return Allocation(place_slots(sizes, cluster), reasons, {"order": order})


def weighted_shares(
    jobs: Sequence[ClusterJob], fixed: Mapping[str, int], slots: int
) -> dict[str, int] | None:
    """Return the slots of each job in proportion to weights, in powers of two; None: too few."""
    sizes = dict(fixed)
    sharing = [job for job in jobs if job.name not in fixed]
    left = slots - sum(fixed.values())
    if sum(map(_least, sharing)) > left:
        return None
    while sharing:
        given = _round(sharing, left)
        content = [job for job in sharing if given[job.name] >= job.requested_slots]
        for job in content or sharing:
            sizes[job.name] = min(given[job.name], job.requested_slots)
            left -= sizes[job.name]
        sharing = [job for job in sharing if job.name not in sizes]
    for job in _by_weight(jobs):
        while job.name not in fixed and sizes[job.name] <= min(
            left, job.requested_slots - sizes[job.name]
        ):
            left -= sizes[job.name]
            sizes[job.name] *= 2
    return sizes


def _round(jobs: Sequence[ClusterJob], slots: int) -> dict[str, int]:
    """Return the share of each job by its weight, rounded down to a power of two, by name."""
    weights = sum(job.weight for job in jobs)
    given = {job.name: max(_least(job), _power_below(slots * job.weight / weights)) for job in jobs}
    excess = sum(given.values()) - slots
    for job in sorted(jobs, key=lambda job: job.weight):
        while excess > 0 and given[job.name] // 2 >= _least(job):
            given[job.name] //= 2
            excess -= given[job.name]
    return given


def _least(job: ClusterJob) -> int:
    power = 1 << (job.min_slots - 1).bit_length()
    return min(power, job.requested_slots)


def _power_below(share: float) -> int:
    return 1 << (max(1, int(share)).bit_length() - 1)


def _by_weight(jobs: Iterable[ClusterJob]) -> list[ClusterJob]:
    return sorted(jobs, key=lambda job: -job.weight)


def _running(cluster: ClusterState) -> list[ClusterJob]:
    """Return the jobs in `cluster` that have slots, in the order in which they were admitted."""
    have = {job.name: job for job in cluster.jobs if job.name in cluster.present}
    known = [have.pop(name) for name in cluster.state.get("order", ()) if name in have]
    return known + _by_weight(have.values())


def _survivors(
    running: Sequence[ClusterJob], fixed: Mapping[str, int], slots: int
) -> list[ClusterJob]:
    left = slots - sum(fixed.values())
    kept = set(fixed)
    for job in _by_weight(running):
        if job.name not in fixed and _least(job) <= left:
            left -= _least(job)
            kept.add(job.name)
    return [job for job in running if job.name in kept]
