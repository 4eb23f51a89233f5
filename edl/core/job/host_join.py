"""Compute the desired workers when a host joins a running job (`edl join`).

The entry point is :func:`request_workers`.

In a cluster, hosts are replaced by hosts with other names. The workers desired on a host that is
gone are therefore not counted when a host joins: with at most 4 workers allowed, a new host can get
the 2 workers of a host that is gone.
"""

from __future__ import annotations

from edl.core.job.placement import Placement
from edl.core.snapshot import Snapshot


def request_workers(
    snapshot: Snapshot,
    desired: Placement,
    host: str,
    np: int,
    got: int | None = None,
    late: bool = False,
) -> dict[str, int]:
    """Return the desired workers by host after a joining host has asked for ``np`` workers in all.

    The host keeps the workers that are desired on it, and gets as many more, up to ``np``, as the
    job's allowed sizes and its devices on that host permit. Nothing is written to ZooKeeper. A host
    that asks again only gets workers that were desired on hosts that are gone: a worker that `edl
    scale` or `edl drain` has removed is not added again. If such a removal has left the host fewer
    than it had, ``desired`` is returned unchanged. Hosts that are gone have 0 workers in the
    result. If the host does not get all, other hosts that still wait get workers together with it,
    as far as the job may have the sum: with 2 workers and `--sizes 2,4`, two hosts that ask for 1
    each get 1 each.

    Args:
        snapshot: the state of the job in ZooKeeper.
        desired: the number of workers desired on each host; it may be newer than the one in
            ``snapshot``.
        host: the host that asks.
        np: how many workers the host asks for, the ones that it has included.
        got: how many workers were desired on ``host`` after it asked last; None: it never asked.
        late: whether all hosts of a new job have had the time to register. If False, and the job
            has no ring yet, a host without an agent does not count as gone.

    Returns:
        The number of desired workers by host.
    """
    has = desired.get(host, 0)
    if withdrawn(has, got):
        return dict(desired)
    np = snapshot.assigned.most_on(host, np)
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
    """Return whether workers were taken from a host since it asked for them.

    If True, the caller must not ask for them again. It is False for a host that never asked.

    Args:
        has: how many workers are desired on the host now.
        got: how many were desired there after it asked last; None: it never asked.
    """
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Return whether no workers are desired on any present host other than ``host``.

    Neither workers on ``host`` nor its own presence count. A host is present if it has an agent, a
    worker in ZooKeeper or a member of the newest generation. ``snapshot`` is the state of the job
    in ZooKeeper.
    """
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.desired.hosts.items() if name in others)
