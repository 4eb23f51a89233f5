"""What a host that comes to a running job adds to the plan, when it brings workers of its own.

Hosts of a cluster come and go under ever new names. So the share of a host that is gone is free
for those that come, and `max_np` is not eaten up by the dead.
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.facts import Snapshot


def arrive(
    snapshot: Snapshot, plan: Mapping[str, int], host: str, np: int, late: bool = False
) -> dict[str, int]:
    """The plan with ``np`` workers on ``host``, or as many as `max_np` leaves room for.

    What ``host`` had already, it keeps.

    Args:
        late: all have had the time to register, also the one that has just created the job. Before
            the first ring the others are not gone until then.
    """
    starting = snapshot.generation is None and not late
    there = _there(snapshot) | {host} | (set(plan) if starting else set())
    kept = {name: count for name, count in sorted(plan.items()) if name in there}
    gone = {name: 0 for name in sorted(plan) if name not in there}
    others = sum(count for name, count in kept.items() if name != host)
    wanted = min(np, max(0, snapshot.job.max_np - others))
    return {**gone, **kept, host: max(kept.get(host, 0), wanted)}


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Whether the plan wants no worker on any other host than ``host`` that is there."""
    others = _there(snapshot) - {host}
    return not any(count for name, count in snapshot.plan.items() if name in others)


def _there(snapshot: Snapshot) -> set[str]:
    """The hosts that are not gone.

    A host is gone when it has no agent, no worker in ZooKeeper and no seat in the ring: all three,
    for sessions may end, all at once, while the ring goes on.
    """
    seats = snapshot.generation.seats if snapshot.generation else ()
    agents = {host.name for host in snapshot.hosts}
    return agents | {one.host for one in snapshot.members} | {seat.host for seat in seats}
