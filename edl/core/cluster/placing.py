"""Which slots make up a size: a job keeps those it has, or is put on the emptiest nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from edl.core.cluster.state import ClusterJob, ClusterState, Placement, Placements, size


def place(sizes: Mapping[str, int], cluster: ClusterState) -> Placements:
    """Slots for each job, so many as ``sizes`` says.

    Who has that many already keeps them. The others are placed in the order of ``sizes``, on the
    node with most free slots first, ties by the order of the nodes (as Pollux' artifact does for
    Tiresias and Optimus). So a job of a node's size is spread where no node is empty.

    Args:
        sizes: job -> slots; together not more than the nodes have.
    """
    free, placed = _kept(sizes, cluster)
    for job, wanted in sizes.items():
        if wanted and job not in placed:
            placed[job] = _take(free, wanted)
    return placed


def pack(sizes: Mapping[str, int], cluster: ClusterState) -> Placements:
    """As :func:`place`, but each on as few nodes as there still can be, the largest first.

    What fits into a node is put where least stays free, ties to those that the job is on already;
    else the emptiest node is filled, and the rest is placed likewise.
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
    """The slots of each job that gets as many as ``wanted`` says, one after the other.

    Who does not fit is passed over.

    Args:
        fixed: of jobs whose number may not change; they come before all others.
        slots: of all nodes.
    """
    sizes = dict(fixed)
    left = slots - sum(fixed.values())
    for job in jobs:
        if job.name not in sizes and wanted(job) <= left:
            sizes[job.name] = wanted(job)
            left -= wanted(job)
    return sizes


def compact(slots: int, per_node: int) -> tuple[int, ...]:
    """So many slots on as few nodes as there can be: all full but the last."""
    full, rest = divmod(slots, per_node)
    return (per_node,) * full + ((rest,) if rest else ())


def _kept(
    sizes: Mapping[str, int], cluster: ClusterState
) -> tuple[dict[str, int], dict[str, Placement]]:
    """Slots that stay free on each node, and who keeps which."""
    free = {node.name: node.slots for node in cluster.nodes}
    placed: dict[str, Placement] = {}
    for job, wanted in sizes.items():
        slots = cluster.present.get(job, ())
        if wanted and size(slots) == wanted and all(free.get(at, 0) >= n for at, n in slots):
            placed[job] = slots
            for at, count in slots:
                free[at] -= count
    return free, placed


def _take(free: dict[str, int], wanted: int) -> Placement:
    taken: list[tuple[str, int]] = []
    while wanted:
        at = max(free, key=lambda node: free[node])
        count = min(free[at], wanted)
        assert count, f"{wanted} slots too many were given"
        taken.append((at, count))
        free[at] -= count
        wanted -= count
    return tuple(taken)
