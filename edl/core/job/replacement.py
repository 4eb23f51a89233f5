"""Choose the host on which one worker is replaced: another host if it has room, else the same.

The entry point is :func:`replacement`; :func:`taken_back` undoes its result.

In both cases there is one switch: the leader keeps the worker until its replacement is ready
(:mod:`edl.core.job.resize`), which the agent of the chosen host starts meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from edl.core.job.placement import Placement
from edl.core.records import Host, Request
from edl.core.snapshot import Snapshot


def replacement(
    now: Snapshot, worker: int, avoided: Collection[str]
) -> tuple[str, Placement] | None:
    """Return the host for the replacement of ``worker``, and the workers to desire for it.

    It is the other host with the most free slots, by name if several have as many, and the worker's
    own host only if no other one has a free slot. Nothing is written to ZooKeeper.

    Args:
        now: the state of the job in ZooKeeper.
        worker: the id of the worker to replace.
        avoided: the names of hosts that are not chosen, because they are slow themselves; the
            worker's own host may be one.

    Returns:
        the pair (the host's name, the number of desired workers by host, unchanged if the host is
        the worker's own); None if no host has a free slot, if ``worker`` is no member of the ring,
        if fewer workers are desired on its host than are in the ring there, so that one leaves it
        anyway, or if the launcher assigns by slot.
    """
    members = now.generation.members if now.generation is not None else ()
    member = next((member for member in members if member.id == worker), None)
    if member is None or now.assigned.by_slot:
        return None
    desired = dict(now.desired.hosts)
    if desired.get(member.host, 0) < sum(other.host == member.host for other in members):
        return None
    free = {host.name: _free(host, desired.get(host.name, 0)) for host in now.agents}
    open_ = [name for name in free if free[name] > 0 and name not in avoided]
    if not open_:
        return None
    target = min(open_, key=lambda name: (name == member.host, -free[name], name))
    if target != member.host:
        desired |= {
            member.host: desired.get(member.host, 0) - 1,
            target: desired.get(target, 0) + 1,
        }
    return target, desired


def taken_back(now: Snapshot, request: Request) -> Placement:
    """Return the desired workers by host after a replacement is given up, as no worker started.

    The worker is wanted on its own host again. The desired workers stay as they are if the worker
    has left the ring, if its replacement was to start on its own host, or if no worker is desired
    on the replacement's host any more. Nothing is written to ZooKeeper.

    Args:
        now: the state of the job in ZooKeeper.
        request: the request to replace a worker, which names the worker and the host of the
            replacement.
    """
    desired, generation = dict(now.desired.hosts), now.generation
    members = generation.members if generation is not None else ()
    member = next((member for member in members if member.id == request.worker), None)
    if member is None or request.host == member.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(member.host, 0) + 1, desired[request.host] - 1
    return {**desired, member.host: source, request.host: target}


def _free(host: Host, desired: int) -> int:
    """Return how many slots of ``host`` are free when ``desired`` workers are wanted there.

    It is 0 if the host is about to leave; disabled slots are not free. It is negative if more
    workers are wanted than the host has slots that are not disabled.
    """
    return 0 if host.leaving else host.slots - len(host.disabled) - desired
