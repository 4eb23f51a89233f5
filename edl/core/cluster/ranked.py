"""Fixed sizes in an order: what FIFO, SRTF and Tiresias share, who differ in the order only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.cluster.placing import place
from edl.core.cluster.state import Allocation, ClusterJob, ClusterState
from edl.core.plural import counted


@dataclass(frozen=True)
class Ranked:
    """A job and the clause that says why it stands where it does."""

    job: ClusterJob
    why: str


def admit(ranking: Sequence[Ranked], cluster: ClusterState, overtaking: bool = True) -> Allocation:
    """Give each job the slots that it requested, in the order of the ranking, while they last.

    Those that may not be preempted come before all others, and keep what they have.

    Args:
        overtaking: a job for which too few slots are left does not stop those behind it.
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
    return Allocation(place(sizes, cluster), reasons, cluster.state)
