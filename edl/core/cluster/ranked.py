"""Give each job the slots that it requested, in the order of a ranking.

Jobs that have slots get fewer while they request more than there is, as after the loss of a node.
The policies with fixed sizes use :func:`admit`: FIFO, Tiresias, and SRTF (shortest remaining time
first). They differ only in the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.cluster.placing import place_slots
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState, slot_count
from edl.core.plural import counted


@dataclass(frozen=True)
class Ranked:
    """A job in a ranking of jobs."""

    # the job as a policy reads it; its position is that of this object in the sequence
    job: ClusterJob
    why: str  # the clause that explains its position in the ranking, for the reason of the decision


def admit(ranking: Sequence[Ranked], cluster: ClusterState, overtaking: bool = True) -> Allocation:
    """Return the allocation that gives jobs their requested slots in the order of `ranking`."""
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
        """Return the slots of `jobs` by name, `left` in all, if no other job got any."""
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
    """Return the `size` of a job as a text, with what it requested if that is more."""
    if size < job.requested_slots:
        return f"{size} of the {job.requested_slots} slots that it requested"
    return counted(size, "slot")
