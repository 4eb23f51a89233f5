"""What a host that comes to a running job makes desired, when it brings workers of its own.

Hosts of a cluster come and go under ever new names. So the share of a host that is gone is free
for those that come, and the sizes of the job are not eaten up by the dead.
"""

from __future__ import annotations

from edl.core.job.placement import Placement
from edl.core.records import Snapshot


def request_workers(
    snapshot: Snapshot,
    desired: Placement,
    host: str,
    np: int,
    got: int | None = None,
    late: bool = False,
) -> dict[str, int]:
    """The placement with ``np`` workers on ``host``, or as many as the job's sizes leave room for.

    What ``host`` had already, it keeps. Who asks again only gets what is taken from hosts that are
    gone: what somebody has asked to be rid of (`edl scale`, `edl drain`) is not for the asking.
    Where it does not get all, hosts that wait likewise get theirs with it, if the job may have as
    many as all of them together bring: 1 and 1 more, of 2 workers and `--sizes 2,4`.

    Args:
        desired: newer than that of ``snapshot``, perhaps.
        got: workers that were wanted on ``host`` when it asked before; None: it never did.
        late: all have had the time to register, also the one that has just created the job. Before
            the first ring the others are not gone until then.
    """
    has = desired.get(host, 0)
    if withdrawn(has, got):
        return dict(desired)
    starting = snapshot.generation is None and not late
    there = snapshot.present_in(desired) | {host} | (set(desired) if starting else set())
    new = {name: count if name in there else 0 for name, count in sorted(desired.items())}
    if got is not None:
        np = min(np, has + sum(desired.values()) - sum(new.values()))
    sizes, others = snapshot.job.sizes, sum(new.values()) - has
    new[host] = sizes.room(others, np, has)
    if new[host] < np:
        asked = {one.name: one.requested_np for one in snapshot.hosts} | {host: np}
        wait = {name: max(0, n - new.get(name, 0)) for name, n in asked.items()}
        more = sizes.room(sum(new.values()), sum(wait.values()))
        for name in (host, *sorted(wait)):
            added = min(more, wait.pop(name, 0))
            new[name] = new.get(name, 0) + added
            more -= added
    return new


def withdrawn(has: int, got: int | None) -> bool:
    """Whether somebody has taken from a host's place: it has to stop asking."""
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Whether no worker is wanted on any other host than ``host`` that is there."""
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.desired.hosts.items() if name in others)
