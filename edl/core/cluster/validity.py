"""Check the decision of a cluster policy against the rules that hold for every policy.

Each decision is checked before it is carried out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from edl.core.cluster.state import Allocation, ClusterJob, ClusterState, Node, slot_count


def violation(decision: Allocation, cluster: ClusterState) -> str | None:
    """Return the first rule that `decision` breaks, as a sentence; None: it breaks none."""
    known = {job.name: job for job in cluster.jobs}
    wrong = _slots(decision, known, cluster.nodes) or _batches(decision, known)
    if wrong is not None:
        return wrong
    for job in cluster.pinned:
        if decision.placements.get(job.name) != cluster.present[job.name]:
            return f"{job.name} may not be preempted, and would lose its slots"
    silent = [job.name for job in cluster.jobs if not decision.reasons.get(job.name)]
    return f"{silent[0]} is given no reason" if silent else None


def _slots(
    decision: Allocation, known: Mapping[str, ClusterJob], nodes: Sequence[Node]
) -> str | None:
    """Return the first rule about slots that `decision` breaks, as a sentence; None: none."""
    slots = {node.name: node.slots for node in nodes}
    used: Counter[str] = Counter()
    for name, placement in decision.placements.items():
        job, given = known.get(name), slot_count(placement)
        if job is None:
            return f"{name} has slots and is no job"
        if not job.min_slots <= given <= job.max_slots:
            return f"{name} has {given} slots; it may have {job.min_slots} to {job.max_slots}"
        batch = decision.batches.get(name, job.batch)
        most = job.most_slots(batch)
        if given > most:
            return f"{name} has {given} slots; at most {most} can share its batch of {batch}"
        for node, count in placement:
            used[node] += count
            if count < 1:
                return f"{name} has {count} slots on node {node}"
    for node, count in used.items():
        if count > slots.get(node, 0):
            return f"{count} slots of node {node} are given, and it has {slots.get(node, 0)}"
    return None


def _batches(decision: Allocation, known: Mapping[str, ClusterJob]) -> str | None:
    """Return the first rule about batches that `decision` breaks, as a sentence; None: none."""
    for name, batch in decision.batches.items():
        job = known.get(name)
        if job is None:
            return f"{name} has a batch and is no job"
        smallest, largest = job.batches
        if not smallest <= batch <= largest:
            return f"{name} trains with a batch of {batch}; it may be {smallest} to {largest}"
    return None
