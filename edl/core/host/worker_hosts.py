"""Find the hosts on which the workers of a job have run: their logs are there.

:func:`worker_hosts` gives the host of each worker, :func:`addresses` the address of each host.
"""

from __future__ import annotations

from collections.abc import Iterable

from edl.core.events import EndedDetails, Event
from edl.core.snapshot import Snapshot


def worker_hosts(now: Snapshot, events: Iterable[Event]) -> dict[str, str]:
    """Return the host of each worker of a job, also of workers that have ended."""
    hosts = {
        event.details.worker: event.details.host
        for event in events
        if isinstance(event.details, EndedDetails) and event.details.worker is not None
    }
    hosts |= {f"w{one.id}": one.host for one in now.ring}
    return hosts | {member.name: member.host for member in now.members}


def addresses(now: Snapshot) -> dict[str, str]:
    """Return the address of each host that has an agent or a worker, by the name of the host."""
    of_workers = {member.host: member.address for member in now.members}
    return of_workers | {host.name: host.address for host in now.hosts}
