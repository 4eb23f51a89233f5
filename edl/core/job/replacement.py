"""Where the replacement of one worker comes to: on another host if there is room, else beside it.

Both are one switch: the leader holds the worker until its replacement is ready
(:mod:`edl.core.job.resize`), and its agent starts that one meanwhile.
"""

from __future__ import annotations

from collections.abc import Collection

from edl.core.job.placement import Placement
from edl.core.records import Host, Request, Snapshot


def replacement(
    now: Snapshot, worker: int, avoided: Collection[str]
) -> tuple[str, Placement] | None:
    """Host of the replacement of ``worker``, and what is desired then; None: there is no room.

    ``avoided``: hosts that are slow themselves.
    """
    member = (
        next((s for s in now.generation.members if s.id == worker), None)
        if now.generation
        else None
    )
    if member is None or now.assigned.by_slot:
        return None
    desired = dict(now.desired.hosts)
    free = {host.name: _free(host, desired.get(host.name, 0)) for host in now.hosts}
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
    """What is desired when nobody has come to replace the worker of ``request``."""
    desired, generation = dict(now.desired.hosts), now.generation
    members = generation.members if generation is not None else ()
    member = next((member for member in members if member.id == request.worker), None)
    if member is None or request.host == member.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(member.host, 0) + 1, desired[request.host] - 1
    return {**desired, member.host: source, request.host: target}


def _free(host: Host, desired: int) -> int:
    return 0 if host.leaving else host.slots - len(host.disabled) - desired
