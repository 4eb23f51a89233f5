"""Serve jobs from two queues by attained service, with preemption, as Tiresias does.

*Attained service* is the time for which a job has had slots, times their number. This is Tiresias
as in the artifact of Pollux (OSDI 2021): discretised least attained service (NSDI 2019), with the
promotion of jobs switched off. A job begins in the first queue. Once it has attained 16 slot-hours,
it goes to the end of the second queue, and stays there. Each queue is in the order in which jobs
entered it. The first queue is served before the second, and each job gets the slots that it
requested. A job that is too large for the slots that are left is overtaken. A job may starve in the
second queue. The policy knows nothing of the remaining work of jobs.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.cluster.placing import compact, first_that_fit, place_slots
from edl.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.spec import setting
from edl.text import counted

# ------------------------------------------------------------
# Serve jobs from two queues by attained service, and give spare slots to the jobs that gain most.
#
# *Attained service* is the time for which a job has had slots, times their number. This is
# Elastic-Tiresias of EDL (Wu et al., IEEE TPDS 33(1), 2022), in the form of the one public
# implementation that names the paper (Voda scheduler, elastic_tiresias.go). Its constants are the
# defaults here:
#
# 1. Queues: a job begins in the first queue and goes to the second when it has attained one
#    slot-hour there. A job of the second queue that has waited 8 times as long as it last ran goes
#    back to the first. A queue is in the order in which its jobs first started. Jobs that never
#    started come last, in the order of submission.
# 2. Basic portion: in this order each job gets the slots that it requested, if so many are left.
# 3. Compaction: while more than 10 jobs have no slots, the jobs of the second queue that have slots
#    have only their minimum.
# 4. Expansion: each slot that is left goes to the job with the largest gain, S(n + 1) - S(n), where
#    S(n) is the job's speedup on n slots over one slot. A job without slots gets its minimum at
#    once, and its gain is S(min) / min. Ties go to the first queue, then to the job that was
#    submitted first. Where no job gains, slots stay free.
#
# The sources say nothing about jobs whose minimum is above 1. Here S counts as linear up to the
# minimum, since the speed with fewer slots is not known. Here a job's attained service counts from
# 0 again after its promotion; the sources differ in that. A job's wait has no bound but the time
# until its promotion.


@dataclass(frozen=True)
class ElasticTiresias:
    """The cluster policy `elastic_tiresias`: two queues by attained service, with elastic jobs."""

    demotion_slot_hours: float = setting(
        1.0, "attained service at which a job goes to the second queue", least=0
    )
    promotion: float = setting(
        8.0, "how many times its last run a job of the second queue waits until it is promoted"
    )
    compaction: int = setting(
        10, "jobs without slots above which those of the second queue have their minimum", least=0
    )

    def __call__(self, cluster: ClusterState) -> Allocation:
        second, served = self._queues(cluster)
        started: Mapping[str, float] = cluster.state.get("started", {})
        order = sorted(
            cluster.jobs, key=lambda job: (job.name in second, started.get(job.name, math.inf))
        )
        fixed = cluster.fixed
        sizes = first_that_fit(order, fixed, cluster.slots, lambda job: job.requested_slots)
        compacted = len(cluster.jobs) - len(sizes) > self.compaction
        if compacted:
            for job in cluster.jobs:
                if job.name in second and job.name in sizes and job.name not in fixed:
                    sizes[job.name] = job.min_slots
        elastic = [job for job in cluster.jobs if job.name not in fixed]
        _expand(elastic, second, sizes, cluster.slots - sum(sizes.values()), cluster.per_node)
        reasons = {}
        for job in cluster.jobs:
            reasons[job.name] = _reason(job, sizes.get(job.name, 0), job.name in second, compacted)
        noted = {"second": sorted(second), "served": served} | _ran(cluster, sizes)
        return Allocation(place_slots(sizes, cluster), reasons, noted)

    def _queues(self, cluster: ClusterState) -> tuple[set[str], dict[str, float]]:
        names = {job.name for job in cluster.jobs}
        second = names.intersection(cluster.state.get("second", ()))
        # what promoted jobs had attained when they were promoted
        served = {
            name: service
            for name, service in cluster.state.get("served", {}).items()
            if name in names
        }
        stopped: Mapping[str, Sequence[float]] = cluster.state.get("stopped", {})
        for job in cluster.jobs:
            name = job.name
            if name not in second:
                attained_slot_s = job.attained_slot_s - served.get(name, 0.0)
                if attained_slot_s > self.demotion_slot_hours * HOUR_S:
                    second.add(name)
            elif name in stopped:
                since_s, ran_s = stopped[name]
                if cluster.now_s - since_s >= self.promotion * ran_s:
                    second.remove(name)
                    served[name] = job.attained_slot_s
        return second, served


def speedup(job: ClusterJob, slots: int, slots_a_node: int) -> float:
    if slots <= job.min_slots:
        return float(slots)
    least_s = job.model.step_s(compact(job.min_slots, slots_a_node), job.batch)
    return job.min_slots * least_s / job.model.step_s(compact(slots, slots_a_node), job.batch)


def _expand(
    jobs: Sequence[ClusterJob],
    second: Collection[str],
    sizes: dict[str, int],
    left: int,
    largest: int,
) -> None:
    def gain(job: ClusterJob) -> float:
        has = sizes.get(job.name, 0)
        if not has:
            return speedup(job, job.min_slots, largest) / job.min_slots
        if has >= job.most_slots(job.batch):
            return 0.0
        return speedup(job, has + 1, largest) - speedup(job, has, largest)

    most = [(-gain(job), job.name in second, at) for at, job in enumerate(jobs)]
    heapq.heapify(most)
    while left and most and most[0][0] < 0:
        _, queue, at = heapq.heappop(most)
        job = jobs[at]
        has = sizes.get(job.name, 0)
        more = 1 if has else job.min_slots
        if more <= left:
            sizes[job.name] = has + more
            left -= more
            heapq.heappush(most, (-gain(job), queue, at))


def _ran(cluster: ClusterState, sizes: Mapping[str, int]) -> dict[str, Any]:
    # Three dictionaries by job name, with times in seconds: `started`, when a job first ran;
    # `began`, since when a running job runs; `stopped`, when a waiting job last stopped, and how
    # long it had run by then.
    started, began, stopped = {}, {}, {}
    for job in cluster.jobs:
        name = job.name
        ran_since_s = cluster.state.get("began", {}).get(name)
        if name in sizes:
            began[name] = cluster.now_s if ran_since_s is None else ran_since_s
        elif ran_since_s is not None:
            stopped[name] = [cluster.now_s, cluster.now_s - ran_since_s]
        elif name in cluster.state.get("stopped", {}):
            stopped[name] = cluster.state["stopped"][name]
        first_s = cluster.state.get("started", {}).get(name, began.get(name))
        if first_s is not None:
            started[name] = first_s
    return {"started": started, "began": began, "stopped": stopped}


def _reason(job: ClusterJob, has: int, demoted: bool, compacted: bool) -> str:
    queue = "queue 2" if demoted else "queue 1"
    if not has:
        requested = counted(job.requested_slots, "slot")
        return f"waits in {queue}: {requested} were requested, and fewer are left"
    slots = counted(has, "slot")
    if has > job.requested_slots:
        why = f"{has - job.requested_slots} beyond its request, where most is gained"
    elif has == job.requested_slots:
        why = "as requested"
    elif compacted and demoted:
        why = f"fewer than the {job.requested_slots} requested, since too many jobs wait"
    else:
        why = f"fewer than the {job.requested_slots} requested, which are not left"
    return f"has {slots} in {queue}: {why}"


# ------------------------------------------------------------
# Give each job the slots that it requested, in the order of a ranking.
#
# Jobs that have slots get fewer while they request more than there is, as after the loss of a node.
# The policies with fixed sizes use `admit`: FIFO, Tiresias, and SRTF (shortest remaining time
# first). They differ only in the ranking.


@dataclass(frozen=True)
class Ranked:
    job: ClusterJob  # its position is that of this object in the sequence
    why: str  # the clause that explains its position in the ranking, for the reason of the decision


def admit(ranking: Sequence[Ranked], cluster: ClusterState, overtaking: bool = True) -> Allocation:
    fixed, left = cluster.fixed, cluster.slots
    # Jobs with slots that request more than there is shrink, so that none is halted for another.
    shrinking = _Shrinking(ranking, cluster)
    sizes: dict[str, int] = {}
    reasons: dict[str, str] = {}
    first_waiting = ""
    # Those that may not be preempted come first, and keep what they have.
    for one in sorted(ranking, key=lambda one: one.job.name not in fixed):
        job = one.job
        wanted, room = fixed.get(job.name) or shrinking.wanted(job, left), left
        if job.name not in cluster.present:
            room = max(0, left - shrinking.reserved)
        if first_waiting and not overtaking and job.name not in cluster.present:
            reasons[job.name] = f"waits behind {first_waiting}: {one.why}"
        elif wanted <= room:
            left -= wanted
            sizes[job.name] = wanted
            reasons[job.name] = f"has {_slots(wanted, job)}: {one.why}"
        else:
            first_waiting = first_waiting or job.name
            needs = f"needs {counted(wanted, 'slot')} and {room} are left"
            reasons[job.name] = f"waits: {one.why}, {needs}"
    return Allocation(place_slots(sizes, cluster), reasons, cluster.state)


class _Shrinking:
    """The slots of jobs that have some, where these jobs request more than the nodes have."""

    def __init__(self, ranking: Sequence[Ranked], cluster: ClusterState) -> None:
        fixed, self._present = cluster.fixed, cluster.present
        jobs = [one.job for one in ranking if one.job.name in self._present.keys() - fixed.keys()]
        left = cluster.slots - sum(fixed.values())
        is_short = sum(job.requested_slots for job in jobs) > left
        self._jobs = {job.name for job in jobs} if is_short else set()
        self._sizes = self._fitting(jobs, left) if is_short else {}
        self._fewest = {job.name: job.min_slots for job in jobs if job.name in self._sizes}
        # the slots that a job without slots may not take now, so that the jobs with slots behind it
        # keep their fewest; 0 before the first job with slots is served
        self.reserved = 0

    def wanted(self, job: ClusterJob, left: int) -> int:
        """Return the slots that a job is to have: what it requests, or fewer if it shrinks."""
        if job.name not in self._jobs:
            return job.requested_slots
        # Called once for each job, in the order in which they are served.
        self._fewest.pop(job.name, None)
        self.reserved = sum(self._fewest.values())
        room = max(left - self.reserved, min(job.min_slots, left))
        goal = self._sizes.get(job.name, job.requested_slots)
        # Above `left` the job has to wait.
        return job.allowed_slots(min(goal, room)) or job.requested_slots

    def _fitting(self, jobs: Sequence[ClusterJob], left: int) -> dict[str, int]:
        found: dict[str, int] = {}
        for job in jobs:
            if job.min_slots <= left:
                found[job.name] = job.min_slots
                left -= job.min_slots
        going_on = [job for job in jobs if job.name in found]
        # then what each has now, and then what it requested
        for grows_back in (False, True):
            for job in going_on:
                has = job.requested_slots if grows_back else slot_count(self._present[job.name])
                goal = min(has, job.requested_slots, found[job.name] + left)
                more = max(0, job.allowed_slots(goal) - found[job.name])
                found[job.name] += more
                left -= more
        return found


def _slots(size: int, job: ClusterJob) -> str:
    if size < job.requested_slots:
        return f"{size} of the {job.requested_slots} slots that it requested"
    return counted(size, "slot")


HOUR_S = 3600.0


@dataclass(frozen=True)
class Tiresias:
    """The cluster policy `tiresias`: two queues by attained service, with preemption."""

    demotion_slot_hours: float = setting(
        16.0, "attained service at which a job goes to the second queue", least=0
    )

    def __call__(self, cluster: ClusterState) -> Allocation:
        by_name = {job.name: job for job in cluster.jobs}
        second = [name for name in cluster.state.get("second", ()) if name in by_name]
        before = set(second)
        limit_slot_s = self.demotion_slot_hours * HOUR_S
        second += [
            job.name
            for job in cluster.jobs
            if job.name not in before and job.attained_slot_s >= limit_slot_s
        ]
        demoted = set(second)
        ranking = [
            Ranked(job, self._why(job, 1)) for job in cluster.jobs if job.name not in demoted
        ]
        ranking += [Ranked(by_name[name], self._why(by_name[name], 2)) for name in second]
        return replace(admit(ranking, cluster), state={"second": second})

    def _why(self, job: ClusterJob, queue: int) -> str:
        attained = f"{job.attained_slot_s / HOUR_S:.2f} slot-hours attained"
        return f"queue {queue}, {attained}, {self.demotion_slot_hours:g} end the first"
