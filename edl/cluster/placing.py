"""Choose the nodes on which each job has its slots, once the numbers of slots are decided.

A job whose number of slots does not change keeps its slots.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from edl.cluster.state import (
    ClusterJob,
    ClusterState,
    Node,
    Placement,
    Placements,
    slot_count,
    total,
)
from edl.errors import UsageError


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


# ------------------------------------------------------------
# Choose the nodes of each job's slots so that jobs that run keep what they have.
#
# A policy decides how many slots each job has, and suggests nodes. For a job that starts, the
# suggestion is followed where it can be. A job that runs is never moved for a better placement: it
# keeps its slots up to its new number, gives them back on nodes that are silent, then where it has
# the fewest, and gets further ones on its own nodes first. So all jobs can always reach their new
# slots: a slot is given back before, and never in exchange for, another one.


Slots = Mapping[str, int]  # node -> number of slots there; no number is 0


@dataclass(frozen=True)
class JobSize:
    """A job whose number of slots is decided, and which needs nodes."""

    name: str
    size: int  # the number of slots
    present: Slots  # node -> the slots that the job has there now
    suggested: Placement  # (node, number of slots) pairs that the policy suggests
    limits: Slots  # node -> the most slots that it may have there; none on others
    fit: Callable[[int], int | None]  # the largest allowed size up to a number of slots, or None


@dataclass
class _Nodes:
    """The free slots of each node, in the order of the nodes; changed as slots are taken."""

    free: dict[str, int]  # node -> the number of its slots that no job has taken yet
    avoided: Slots = field(default_factory=dict)  # node -> slots of jobs that are served later

    def room(self, job: JobSize, placed: Slots, node: str, spare: bool = True) -> int:
        """Return how many slots of `node` a job can get beside those in `placed`."""
        # `spare` leaves slots alone of jobs that are served later.
        free = self.free[node] - (self.avoided.get(node, 0) if spare else 0)
        return max(0, min(free, job.limits.get(node, 0) - placed.get(node, 0)))

    def rooms(self, job: JobSize, placed: Slots, spare: bool) -> dict[str, int]:
        """Return how many slots a job can get, above 0, on its own nodes; if on none, on others."""
        free = [node for node, count in self.free.items() if count > 0]
        for nodes in ([node for node in free if node in placed], free):
            found = ((node, self.room(job, placed, node, spare)) for node in nodes)
            if rooms := {node: count for node, count in found if count}:
                return rooms
        return {}

    def take(self, placed: dict[str, int], node: str, count: int) -> None:
        """Take `count` of the free slots of `node` for a job; there must be so many."""
        if count:
            self.free[node] -= count
            placed[node] = placed.get(node, 0) + count


def place_stably(
    jobs: Sequence[JobSize],
    nodes: Slots,
    avoided: Slots | None = None,
    silent: Collection[str] = (),
) -> dict[str, dict[str, int]]:
    """Return the slots of each job by node, as near as possible to what the jobs have."""
    free = _Nodes(dict(nodes), avoided or {})
    kept: dict[str, dict[str, int]] = {}
    for job in jobs:
        able = {node: min(count, free.free.get(node, 0)) for node, count in job.present.items()}
        able = {node: min(count, job.limits.get(node, 0)) for node, count in able.items()}
        kept[job.name] = {}
        for node, count in trimmed(able, job.size, silent).items():
            free.take(kept[job.name], node, count)
    running = [job for job in jobs if kept[job.name]]
    placed: dict[str, dict[str, int]] = {}
    for job in (*running, *(job for job in jobs if not kept[job.name])):
        slots = kept[job.name]
        suggested = dict(job.suggested)
        # A job without slots gets those that the policy suggests, if all are free.
        fits = all(free.room(job, slots, node) >= count for node, count in suggested.items())
        if not slots and fits and slot_count(job.suggested) == job.size:
            for node, count in suggested.items():
                free.take(slots, node, count)
        _grow(job, slots, free, spare=True)
        _grow(job, slots, free, spare=False)
        fewer = trimmed(slots, job.fit(sum(slots.values())) or 0, silent)
        for node, count in slots.items():
            free.free[node] += count - fewer.get(node, 0)
        if fewer:
            placed[job.name] = fewer
    return placed


def trimmed(slots: Slots, size: int, silent: Collection[str] = ()) -> dict[str, int]:
    """Return `slots` without those beyond `size`, and without nodes that have none."""
    left = {node: count for node, count in slots.items() if count}
    surplus = sum(left.values()) - size
    while surplus > 0:
        last = sorted(left, reverse=True)
        node = min(last, key=lambda name: (name not in silent, left[name]))
        taken = min(surplus, left[node])
        left[node] -= taken
        surplus -= taken
        if not left[node]:
            del left[node]
    return left


def _grow(job: JobSize, placed: dict[str, int], nodes: _Nodes, spare: bool) -> None:
    """Take the slots that `job` lacks: on its own nodes, then on as few others as possible."""
    while (lacking := job.size - sum(placed.values())) > 0:
        room = nodes.rooms(job, placed, spare)
        if not room:
            return

        def rank(node: str, room: Slots = room, lacking: int = lacking) -> tuple[bool, int]:
            # the fewest that are enough, else the most
            enough = room[node] >= lacking
            return not enough, room[node] if enough else -room[node]

        node = min(room, key=rank)
        nodes.take(placed, node, min(lacking, room[node]))


# ------------------------------------------------------------
# Divide the nodes of a cluster into pools of one speed each, the fastest first.
#
# A job is as fast as its slowest node. So policy `edl` places each job within one pool.


@dataclass(frozen=True)
class NodePool:
    """The nodes of one speed."""

    speed: float  # how fast a job is on them, relative to a node of speed 1
    nodes: tuple[Node, ...]  # the nodes, in the order in which they are filled
    free: int  # the number of their slots that no job has which may not be preempted

    @property
    def names(self) -> frozenset[str]:
        """The names of the nodes."""
        return frozenset(node.name for node in self.nodes)

    def place(self, sizes: Mapping[str, int], cluster: ClusterState) -> Placements:
        """Return the placements of jobs within the pool, each on as few nodes as possible."""
        names = self.names
        kept = {
            name: tuple(pair for pair in cluster.present[name] if pair[0] in names)
            for name in cluster.fixed
        }
        own = {
            name: slots
            for name, slots in cluster.present.items()
            if name in sizes and all(node in names for node, _ in slots)
        }
        counts = {name: slot_count(slots) for name, slots in kept.items() if slots}
        within = replace(cluster, nodes=self.nodes, present=own | kept)
        placed = place_packed(counts | dict(sizes), within)
        return {name: placed[name] for name in sizes}


def node_pools(
    cluster: ClusterState, speeds: Mapping[str, float], widest: int
) -> tuple[NodePool, ...]:
    """Return the pools of the nodes of `cluster`, the fastest first."""
    by_speed: dict[float, list[Node]] = {}
    for node in cluster.nodes:
        by_speed.setdefault(speeds.get(node.kind, 1.0), []).append(node)
    fastest_first = sorted(by_speed, reverse=True)
    groups = [(speed, tuple(by_speed[speed])) for speed in fastest_first]
    if len(groups) != 1 and widest > max((total(nodes) for _, nodes in groups), default=0):
        groups = [(1.0, tuple(node for _, nodes in groups for node in nodes))]
    pools = []
    for speed, nodes in groups:
        names = {node.name for node in nodes}
        fixed = (pair for name in cluster.fixed for pair in cluster.present[name])
        free = total(nodes) - sum(count for node, count in fixed if node in names)
        pools.append(NodePool(speed, nodes, free))
    return tuple(pools)


def slowest_pool(placement: Placement, pools: Sequence[NodePool]) -> int | None:
    """Return the place in `pools` of the slowest pool that a job is in; None: it has no slots."""
    nodes = {node for node, _ in placement}
    found = [at for at, pool in enumerate(pools) if nodes & pool.names]
    return max(found) if found else None


def reserve(
    least: Mapping[str, int],
    homes: Mapping[str, int | None],
    pools: Sequence[NodePool],
    rigid: Collection[str],
) -> tuple[dict[str, int], str]:
    """Return in which pool each of some jobs has its fewest slots for certain, and who waits."""
    free, found, waiting = [pool.free for pool in pools], {}, ""
    for name, count in least.items():
        if waiting and name in rigid:
            continue
        own = homes[name]
        order = [*([own] if own is not None else []), *reversed(range(len(pools)))]
        at = next((at for at in order if free[at] >= count), None)
        if at is not None:
            free[at] -= count
            found[name] = at
        else:
            waiting = waiting or name
    return found, waiting


def parse_speeds(text: str) -> dict[str, float]:
    """Return the speed of each kind of node that `text` names, like "h100=4,t4=1"."""
    found = {}
    for part in text.split(",") if text else ():
        kind, _, speed = (word.strip() for word in part.partition("="))
        try:
            found[kind] = float(speed)
        except ValueError:
            found[kind] = 0.0
        if not kind or not 0 < found[kind] < float("inf"):
            raise UsageError(
                f"{part.strip()!r} is no speed of a kind of host; write NAME=SPEED, like "
                "h100=4,t4=1"
            )
    return found
