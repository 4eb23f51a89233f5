"""Divide the nodes of a cluster into pools of one speed each, the fastest first.

A job is as fast as its slowest node. So policy ``edl`` places each job within one pool.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

from edl.core.cluster.placing import place_packed
from edl.core.cluster.state import (
    ClusterState,
    Node,
    Placement,
    Placements,
    slot_count,
    total,
)
from edl.errors import UsageError


@dataclass(frozen=True)
class NodePool:
    """The nodes of one speed."""

    speed: float  # how fast a job is on them, relative to a node of speed 1
    nodes: tuple[Node, ...]  # the nodes, in the order in which they are filled
    free: int  # the number of their slots that no job has which may not be preempted

    @property
    def names(self) -> frozenset[str]:
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
    return tuple(NodePool(speed, nodes, _free(nodes, cluster)) for speed, nodes in groups)


def _free(nodes: Sequence[Node], cluster: ClusterState) -> int:
    """Return the number of slots of `nodes` that no job has which may not be preempted."""
    names = {node.name for node in nodes}
    fixed = (pair for name in cluster.fixed for pair in cluster.present[name])
    return total(nodes) - sum(count for node, count in fixed if node in names)


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
