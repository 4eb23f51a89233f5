"""What a host that comes to a running job adds to the plan, when it brings workers of its own.

Hosts of a cluster come and go under ever new names. So the share of a host that is gone is free
for those that come, and the sizes of the job are not eaten up by the dead.
"""

from __future__ import annotations

from collections.abc import Mapping

from edl.core.records import Snapshot


def arrive(
    snapshot: Snapshot,
    plan: Mapping[str, int],
    host: str,
    np: int,
    got: int | None = None,
    late: bool = False,
) -> dict[str, int]:
    """The plan with ``np`` workers on ``host``, or as many as the sizes of the job leave room for.

    What ``host`` had already, it keeps. Who asks again only gets what is taken from hosts that are
    gone: what somebody has given up on purpose (`edl scale`, `edl drain`) is not for the asking.

    Args:
        plan: newer than that of ``snapshot``, perhaps.
        got: workers that the plan had for ``host`` when it asked before; None: it never did.
        late: all have had the time to register, also the one that has just created the job. Before
            the first ring the others are not gone until then.
    """
    has = plan.get(host, 0)
    if withdrawn(has, got):
        return dict(plan)
    starting = snapshot.generation is None and not late
    there = snapshot.present_in(plan) | {host} | (set(plan) if starting else set())
    kept = {name: count for name, count in sorted(plan.items()) if name in there}
    gone = {name: count for name, count in sorted(plan.items()) if name not in there}
    if got is not None:
        np = min(np, has + sum(gone.values()))
    room = snapshot.job.sizes.room(sum(kept.values()) - has, np, has)
    return {**dict.fromkeys(gone, 0), **kept, host: room}


def withdrawn(has: int, got: int | None) -> bool:
    """Whether somebody has taken from a host's place: it has to stop asking."""
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Whether the plan wants no worker on any other host than ``host`` that is there."""
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.plan.items() if name in others)
