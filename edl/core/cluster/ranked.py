"""Give each job the slots that it requested, in the order of a ranking.

The policies with fixed sizes use :func:`admit`: FIFO, Tiresias, and SRTF (shortest remaining time
first). They differ only in the ranking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.cluster.placing import place_slots
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.plural import counted


@dataclass(frozen=True)
class Ranked:
    """A job in a ranking of jobs.

    Attributes:
        job: the job as a policy reads it; its position is that of this object in the sequence.
        why: the clause that explains its position in the ranking, for the reason of the decision.
    """

    job: ClusterJob
    why: str


def admit(ranking: Sequence[Ranked], cluster: ClusterState, overtaking: bool = True) -> Allocation:
    """Return the allocation that gives jobs their requested slots in the order of ``ranking``.

    Jobs are served while slots last. Jobs that have slots and may not be preempted are served
    before all others, and keep what they have.

    Args:
        ranking: all jobs of the cluster; the first is served first.
        cluster: the state of the cluster; its policy state is passed on unchanged.
        overtaking: whether the jobs behind a job for which too few slots are left may get slots.
    """
    fixed, left = cluster.fixed, cluster.slots
    sizes: dict[str, int] = {}
    reasons: dict[str, str] = {}
    first_waiting = ""
    for one in sorted(ranking, key=lambda one: one.job.name not in fixed):
        job = one.job
        wanted = fixed.get(job.name, job.requested_slots)
        if first_waiting and not overtaking:
            reasons[job.name] = f"waits behind {first_waiting}: {one.why}"
        elif wanted <= left:
            left -= wanted
            sizes[job.name] = wanted
            reasons[job.name] = f"has {counted(wanted, 'slot')}: {one.why}"
        else:
            first_waiting = first_waiting or job.name
            needs = f"needs {counted(wanted, 'slot')} and {left} are left"
            reasons[job.name] = f"waits: {one.why}, {needs}"
    return Allocation(place_slots(sizes, cluster), reasons, cluster.state)
