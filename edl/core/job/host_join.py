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
    got: int | None = None,  # how many were desired on `host` after it asked last; None: it did not
    late: bool = False,  # all hosts of a new job have had the time to register
) -> dict[str, int]:
    """Return the desired workers by host after a joining host has asked for `np` workers in all."""
    has = desired.get(host, 0)
    if withdrawn(has, got):
        return dict(desired)
    np = snapshot.assigned.most_on(host, np)
    starting = snapshot.generation is None and not late
    there = snapshot.present_in(desired) | {host} | (set(desired) if starting else set())
    new = {name: count if name in there else 0 for name, count in sorted(desired.items())}
    # A host that asks again gets only workers that were desired on hosts that are gone: a worker
    # that a person has removed is not added again.
    if got is not None:
        np = min(np, has + sum(desired.values()) - sum(new.values()))
    sizes, others = snapshot.job.sizes, sum(new.values()) - has
    new[host] = sizes.room(others, np, has)
    # Other hosts that still wait get workers together with it, as far as the job may have the sum:
    # with 2 workers and `--sizes 2,4`, two hosts that ask for 1 each get 1 each.
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
    """Return whether workers were taken from a host since it asked for them: it must not again."""
    return got is not None and has < got


def is_last(snapshot: Snapshot, host: str) -> bool:
    """Return whether no workers are desired on any present host other than `host`."""
    others = snapshot.present - {host}
    return not any(count for name, count in snapshot.desired.hosts.items() if name in others)
