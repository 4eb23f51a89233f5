"""Say whether the hosts of a job that has not begun can have enough workers for its first ring.

A job may be created for several hosts before any agent runs there. The leader starts the first ring
when all workers of these hosts are ready, or after a time limit with at least ``min_np`` of them
(:func:`edl.core.job.membership.decide`). With fewer it would wait for ever for a host that does not
come, so the agents end such a job (:mod:`edl.core.host.job_end`). :func:`has_too_few_places` says
whether the hosts of a job have too few workers to begin, and :func:`why_too_few` gives the reason
as a sentence.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from edl.core.plural import counted, workers
from edl.core.records import JobState
from edl.core.snapshot import Snapshot


def has_too_few_places(snapshot: Snapshot) -> bool:
    """Return whether a job cannot begin on its present hosts with any number that it may have."""
    if snapshot.generation is not None or snapshot.job.state is not JobState.RUNNING:
        return False
    if snapshot.assigned.by_slot:  # horovodrun's driver finds hosts
        return False
    return snapshot.job.sizes.below(sum(_places(snapshot).values())) is None


def why_too_few(snapshot: Snapshot, within_s: float) -> str:
    """Return the sentence with which a job fails because its hosts have too few workers."""
    here, places = sum(_workers(snapshot).values()), _places(snapshot)
    sizes = snapshot.job.sizes
    least = sizes.above(sizes.min_np) or sizes.min_np
    slots = {host.name: host.slots for host in snapshot.hosts}
    lacking = {
        host: n for host, n in sorted(snapshot.assigned.hosts.items()) if n > places.get(host, 0)
    }
    absent = [host for host in lacking if host not in slots]
    parts = [f"no agent of host {', '.join(absent)}"] if absent else []
    parts += [
        f"host {host} has {counted(slots[host], 'slot')} for {workers(n)}"
        for host, n in lacking.items()
        if host in slots
    ]
    who = f"{here} of at least {workers(least)}"
    return f"{who} came within {within_s:g} s: {'; '.join(parts) or 'no host has more workers'}"


def _workers(snapshot: Snapshot) -> Mapping[str, int]:
    return Counter(m.host for m in snapshot.members if m.id not in snapshot.evicted)


def _places(snapshot: Snapshot) -> dict[str, int]:
    """Return how many workers each host can have at most: those there, or what its agent starts."""
    here, slots = _workers(snapshot), {host.name: host.slots for host in snapshot.hosts}
    return {
        host: max(here.get(host, 0), min(snapshot.assigned.hosts.get(host, 0), slots.get(host, 0)))
        for host in sorted({*here, *snapshot.assigned.hosts})
    }
