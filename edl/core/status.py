"""Define the status of a job: one schema for `edl status`, its JSON, the client and other viewers.

:func:`job_status` makes a :class:`JobStatus`. `make docs` generates the table of
docs/reference/status-and-events.md from this module.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated

from edl.core.progress import TrainingStatus
from edl.core.record import Record
from edl.core.records import JobState, Reclaim, Stage
from edl.core.snapshot import GONE, Snapshot


@dataclass(frozen=True)
class MemberStatus(Record):
    """The status of one worker process of a job, as `edl status` shows it."""

    id: Annotated[str, "as `w3`"]
    host: Annotated[str, "its host"]
    slot: Annotated[int, "its slot there"]
    device: Annotated[int | None, "its device there, as a number from 0; null: it was given none"]
    pid: Annotated[int, "its process there"]
    port: Annotated[int, "where it answers `/health`"]
    rank: Annotated[int | None, "null: it is no member of the generation"]
    stage: Annotated[Stage, "`preparing`, `ready`, `active`, `leaving` or `finished`"]


@dataclass(frozen=True, kw_only=True)
class JobStatus(TrainingStatus):
    """The status of a job as `edl status` shows it: progress, workers, hosts, desired number.

    :func:`job_status` returns it. It has the fields of a :class:`TrainingStatus` as well. Each
    field is explained in its annotation.
    """

    job: Annotated[str, "its name"]
    state: Annotated[
        JobState,
        "`running`, `paused` (fewer than `min_np` are left), `stopping`, `finished`, `stopped` or "
        "`failed`",
    ]
    exit_code: Annotated[
        int,
        "of a job that has failed, that a signal to `edl run` has stopped, that was preempted, or "
        "that has finished without its last checkpoint; else 0, also after `edl stop`, when `edl "
        "run` ends with 143",
    ]
    command: Annotated[tuple[str, ...], "of each worker"]
    np: Annotated[int, "workers that it began with"]
    min_np: Annotated[int, "fewer do not train"]
    max_np: Annotated[int | None, "more are not started; null: only horovodrun knows"]
    sizes: Annotated[str, "the numbers of workers that it may have, as a text"]
    term: Annotated[int, "of the newest leader"]
    leader: Annotated[str | None, "null when that worker is not in ZooKeeper"]
    generation: Annotated[int, "the newest that a leader has written"]
    world_size: Annotated[int, "workers in that generation; 0 when the job is over"]
    members: Annotated[tuple[MemberStatus, ...], "the workers that are in ZooKeeper, see below"]
    desired: Annotated[
        Mapping[str, int],
        "host -> workers wanted there; none under horovodrun without `edl-discover`",
    ]
    desired_by: Annotated[
        str, "who asked for that: `person`, `cluster`, `launcher`, `profile`, `policy` or `leader`"
    ]
    desired_reason: Annotated[str, "why"]
    borrowed: Annotated[
        Mapping[str, int], "host -> workers wanted there that are in slots borrowed by the job"
    ]
    reclaims: Annotated[
        tuple[Reclaim, ...],
        "what is to be given back: `host`, `slots`, `asked_s` and `by_s` in seconds since 1970, by "
        "the clock of the host where it was asked for",
    ]
    assigned: Annotated[
        Mapping[str, int],
        "host -> workers that its launcher keeps there: as desired, but under horovodrun as its "
        "driver says",
    ]
    devices: Annotated[
        Mapping[str, tuple[int, ...]],
        "host -> the numbers of the devices that it may use there; none: it is not limited to some",
    ]
    hosts: Annotated[Mapping[str, int], "host with an agent -> its slots; none under horovodrun"]
    evicted: Annotated[Mapping[str, str], "worker that was evicted -> why"]
    disabled_slots: Annotated[
        Mapping[str, str], "slot in which no worker is started any more, as `host:1` -> why"
    ]
    zookeeper: Annotated[str, "where this was read"]
    away: Annotated[str, "with `--watch`: why nothing newer can be read now; else empty"] = ""


def job_status(snapshot: Snapshot, zookeeper: str) -> JobStatus:
    """Return the status of the job in `snapshot`, read from the ZooKeeper at this address."""
    job, generation, leader = snapshot.job, snapshot.generation, snapshot.leader
    alive = {member.id for member in snapshot.members}
    leads = leader is not None and leader.worker in alive
    training = {**vars(snapshot.current_status), "reason": _reason(snapshot)}
    return JobStatus(
        **training,
        job=job.name,
        state=JobState.PAUSED if snapshot.paused else job.state,
        exit_code=job.exit_code,
        command=job.spec.command,
        np=job.spec.np,
        min_np=job.sizes.min_np,
        max_np=job.sizes.max_np,
        sizes=str(job.sizes),
        term=leader.term if leader else 0,
        leader=f"w{leader.worker}" if leader and leads else None,
        generation=generation.number if generation else 0,
        world_size=len(generation.members) if generation and not job.state.over else 0,
        members=tuple(
            MemberStatus(
                id=member.name,
                host=member.host,
                slot=member.slot,
                device=member.device,
                pid=member.pid,
                port=member.port,
                rank=generation.rank_of(member.id) if generation else None,
                stage=member.stage,
            )
            for member in snapshot.members
        ),
        desired=dict(snapshot.desired.hosts),
        desired_by=str(snapshot.desired.by),
        desired_reason=snapshot.desired.reason,
        borrowed=dict(snapshot.desired.borrowed),
        reclaims=snapshot.desired.reclaims,
        assigned=dict(snapshot.assigned.hosts),
        devices={} if job.state.over else _devices(snapshot),
        hosts={host.name: host.slots for host in snapshot.hosts},
        evicted={
            f"w{worker}": reason
            for worker, reason in snapshot.evicted.items()
            if not reason.startswith(GONE)  # it has ended, whoever ended it
        },
        disabled_slots=_disabled_slots(snapshot),
        zookeeper=zookeeper,
    )


def _devices(snapshot: Snapshot) -> dict[str, tuple[int, ...]]:
    devices = snapshot.assigned.devices
    return {host: tuple(own) for host, own in sorted(devices.items()) if own}


def _disabled_slots(snapshot: Snapshot) -> dict[str, str]:
    agents = {f"{h.name}:{slot}": why for h in snapshot.hosts for slot, why in h.disabled.items()}
    return agents | {f"{s.host}:{s.slot}": s.disabled for s in snapshot.slots if s.disabled}


def _reason(snapshot: Snapshot) -> str:
    """Return the reason in the job's record, else that no process is there, else the leader's."""
    job = snapshot.job
    if job.state.over or job.reason:
        return job.reason
    if not snapshot.members and job.driver:
        return f"none of its workers is alive now; the driver of horovodrun is at {job.driver}"
    if not snapshot.hosts and not snapshot.members:
        none = "it starts" if snapshot.generation is None else "none of its processes is alive"
        return f"{none}; `edl stop {job.name}` ends it"
    return snapshot.status.reason
