"""All that is known of a job, as plain values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from edl.core.records import Snapshot


def summary(snapshot: Snapshot, zookeeper: str) -> dict[str, Any]:
    """What `edl status --json` prints."""
    job, generation, leader = snapshot.job, snapshot.generation, snapshot.leader
    alive = {member.id for member in snapshot.members}
    leads = leader.worker if leader is not None and leader.worker in alive else None
    told: Mapping[str, Any] = snapshot.status
    running = not job.state.over
    return {
        "job": job.name,
        "state": str(job.state),
        "reason": _reason(snapshot),
        "term": leader.term if leader else 0,
        "generation": generation.number if generation else 0,
        "leader": None if leads is None else f"w{leads}",
        "world_size": len(generation.seats) if generation and running else 0,
        "np": job.spec.np,
        "min_np": job.sizes.min_np,
        "max_np": job.sizes.max_np,
        "sizes": str(job.sizes),
        "step": told.get("step", 0),
        "epoch": told.get("epoch", 0),
        "epoch_done": told.get("epoch_done", 0),
        "epoch_total": told.get("epoch_total", 0),
        "samples_per_s": told.get("samples_per_s", 0.0),
        "members": [
            {
                "id": member.name,
                "host": member.host,
                "pid": member.pid,
                "rank": generation.rank_of(member.id) if generation else None,
                "stage": str(member.stage),
            }
            for member in snapshot.members
        ],
        "plan": dict(snapshot.plan),
        "hosts": {host.name: host.slots for host in snapshot.hosts},
        "exit_code": job.exit_code,
        "command": list(job.spec.command),
        "given_up": {f"w{worker}": reason for worker, reason in snapshot.evicted.items()},
        "slots_given_up": _slots_given_up(snapshot),
        "zookeeper": zookeeper,
        "away": "",  # with --watch: why ZooKeeper does not answer
    }


def _slots_given_up(snapshot: Snapshot) -> dict[str, str]:
    """Slots in which no worker is started any more, as ``host:slot``, and why."""
    told = {f"{h.name}:{slot}": why for h in snapshot.hosts for slot, why in h.given_up.items()}
    return told | {f"{s.host}:{s.slot}": s.given_up for s in snapshot.slots if s.given_up}


def _reason(snapshot: Snapshot) -> str:
    job = snapshot.job
    if job.state.over or job.reason:
        return job.reason
    if not snapshot.members and job.driver:
        return f"none of its workers is alive now; the driver of horovodrun is at {job.driver}"
    if not snapshot.hosts and not snapshot.members:
        return f"none of its processes is alive; `edl stop {job.name}` ends it"
    return str(snapshot.status.get("reason", ""))
