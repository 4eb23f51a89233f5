"""Choose the nodes on which each job has its slots, once the numbers of slots are decided.

A job whose number of slots does not change keeps its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edl.core.cluster.state import ClusterJob, ClusterState, Placement, Placements, slot_count


def place_slots(sizes: Mapping[str, int], cluster: ClusterState) -> Placements:
    """Return the placement of each job, with ``sizes`` as numbers of slots, on the emptiest nodes.

    A job that already has that many slots keeps them. The other jobs are placed in the order of
    ``sizes``, each on the node with the most free slots first; ties go by the order of the nodes
    (as Pollux' artifact does for Tiresias and Optimus). So a job that needs as many slots as a node
    has is spread over several nodes if no node is empty.

    Args:
        sizes: the number of slots of each job, by its name; together not more than the nodes have.
        cluster: the nodes, and the slots that jobs have now.
    """
    free, placed = _kept(sizes, cluster)
    for job, wanted in sizes.items():
        if wanted and job not in placed:
            placed[job] = _take(free, wanted)
    return placed


def place_packed(sizes: Mapping[str, int], cluster: ClusterState) -> Placements:
    """Return the placement of each job, with as many slots as ``sizes`` says, on few nodes.

    A job that already has that many slots keeps them. The other jobs are placed by size, the
    largest first. A job that fits into one node gets the node where the fewest slots stay free;
    ties go to a node that the job is on already. A job that fits into no node fills the emptiest
    node, and the rest of its slots is placed in the same way.

    Args:
        sizes: the number of slots of each job, by its name; together not more than the nodes have.
        cluster: the nodes, and the slots that jobs have now.
    """
    free, placed = _kept(sizes, cluster)
    for job in sorted((job for job in sizes if job not in placed), key=lambda job: -sizes[job]):
        before = dict(cluster.present.get(job, ()))
        taken: list[tuple[str, int]] = []
        wanted = sizes[job]
        while wanted:
            most = max(free.values())
            enough = [count for count in free.values() if count >= wanted]
            best = min(enough) if enough else most
            at = min((node for node in free if free[node] == best), key=lambda n: n not in before)
            count = min(best, wanted)
            assert count, f"{wanted} slots too many were given"
            taken.append((at, count))
            free[at] -= count
            wanted -= count
        if taken:
            placed[job] = tuple(taken)
    return placed


def first_that_fit(
    jobs: Iterable[ClusterJob],
    fixed: Mapping[str, int],
    slots: int,
    wanted: Callable[[ClusterJob], int],
) -> dict[str, int]:
    """Allocate slots to jobs in the order of ``jobs``, skipping each job that does not fit.

    Args:
        jobs: the jobs that may get slots, in the order in which they are served.
        fixed: the slots of jobs whose number may not change, by job name; they come before all
            others.
        slots: the number of slots of all nodes together.
        wanted: returns the number of slots that a job gets if so many are left.

    Returns:
        The number of slots by job name; a job that was skipped is not in it.
    """
    sizes = dict(fixed)
    left = slots - sum(fixed.values())
    for job in jobs:
        if job.name not in sizes and wanted(job) <= left:
            sizes[job.name] = wanted(job)
            left -= wanted(job)
    return sizes


def compact(slots: int, per_node: int) -> tuple[int, ...]:
    """Return the slots on each node when ``slots`` slots lie on as few nodes as possible.

    Each node has ``per_node`` slots; all nodes but the last are full: (4, 4, 2) for 10 slots on
    nodes of 4.
    """
    full, rest = divmod(slots, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def _kept(
    sizes: Mapping[str, int], cluster: ClusterState
) -> tuple[dict[str, int], dict[str, Placement]]:
    """Find the jobs that keep their present slots."""
    free = {node.name: node.slots for node in cluster.nodes}
    placed: dict[str, Placement] = {}
    for job, wanted in sizes.items():
        slots = cluster.present.get(job, ())
        if wanted and slot_count(slots) == wanted and all(free.get(at, 0) >= n for at, n in slots):
            placed[job] = slots
            for at, count in slots:
                free[at] -= count
    return free, placed


def _take(free: dict[str, int], wanted: int) -> Placement:
    """Remove `wanted` slots from `free`, and return them as a placement."""
    taken: list[tuple[str, int]] = []
    while wanted:
        at = max(free, key=lambda node: free[node])
        count = min(free[at], wanted)
        assert count, f"{wanted} slots too many were given"
        taken.append((at, count))
        free[at] -= count
        wanted -= count
    return tuple(taken)
