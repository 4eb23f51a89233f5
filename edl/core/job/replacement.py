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
    seat = (
        next((s for s in now.generation.seats if s.id == worker), None) if now.generation else None
    )
    if seat is None or now.assigned.by_slot:
        return None
    desired = dict(now.desired.hosts)
    free = {host.name: _free(host, desired.get(host.name, 0)) for host in now.hosts}
    open_ = [name for name in free if free[name] > 0 and name not in avoided]
    if not open_:
        return None
    target = min(open_, key=lambda name: (name == seat.host, -free[name], name))
    if target != seat.host:
        desired |= {seat.host: desired.get(seat.host, 0) - 1, target: desired.get(target, 0) + 1}
    return target, desired


def taken_back(now: Snapshot, request: Request) -> Placement:
    """What is desired when nobody has come to replace the worker of ``request``."""
    desired, generation = dict(now.desired.hosts), now.generation
    seats = generation.seats if generation is not None else ()
    seat = next((seat for seat in seats if seat.id == request.worker), None)
    if seat is None or request.host == seat.host or not desired.get(request.host, 0):
        return desired
    source, target = desired.get(seat.host, 0) + 1, desired[request.host] - 1
    return {**desired, seat.host: source, request.host: target}


def _free(host: Host, desired: int) -> int:
    return 0 if host.leaving else host.slots - len(host.given_up) - desired
