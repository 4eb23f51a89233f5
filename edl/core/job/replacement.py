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
    """Return the host for the replacement of `worker`, and the workers to desire for it, if any."""
    members = now.generation.members if now.generation is not None else ()
    member = next((member for member in members if member.id == worker), None)
    if member is None or now.assigned.by_slot:
        return None
    desired = dict(now.desired.hosts)
    # A worker leaves this host anyway.
    if desired.get(member.host, 0) < sum(other.host == member.host for other in members):
        return None
    free = {host.name: _free(host, desired.get(host.name, 0)) for host in now.agents}
    # Hosts that are slow themselves are avoided; the worker's own one may be among them.
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
    """Return the desired workers by host after a replacement did not start and is given up."""
    desired, generation = dict(now.desired.hosts), now.generation
    members = generation.members if generation is not None else ()
    member = next((member for member in members if member.id == request.worker), None)
    if member is None or request.host == member.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(member.host, 0) + 1, desired[request.host] - 1
    return {**desired, member.host: source, request.host: target}


def _free(host: Host, desired: int) -> int:
    return 0 if host.leaving else host.slots - len(host.disabled) - desired
