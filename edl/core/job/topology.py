"""Compute a worker's place in a ring, in Horovod's terms, from the members of its generation.

The entry point is :func:`topology_of`. All ranks and indices begin at 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.records import RingMember


@dataclass(frozen=True)
class WorkerTopology:
    """A worker's place in a ring: Horovod's six numbers, and the index of its host."""

    rank: int
    size: int
    local_rank: int  # among the workers of its host
    local_size: int
    cross_rank: int  # among the hosts that have a worker with the same local rank
    cross_size: int
    host_index: int  # among the hosts of the ring, in the order of their first ranks


def topology_of(members: Sequence[RingMember], rank: int) -> WorkerTopology:
    """Return the place of one worker in a ring, in Horovod's terms."""
    hosts = list(dict.fromkeys(member.host for member in members))
    by_host = {
        host: [r for r, member in enumerate(members) if member.host == host] for host in hosts
    }
    mine = by_host[members[rank].host]
    local_rank = mine.index(rank)
    peers = [host for host in hosts if len(by_host[host]) > local_rank]
    return WorkerTopology(
        rank=rank,
        size=len(members),
        local_rank=local_rank,
        local_size=len(mine),
        cross_rank=peers.index(members[rank].host),
        cross_size=len(peers),
        host_index=hosts.index(members[rank].host),
    )
