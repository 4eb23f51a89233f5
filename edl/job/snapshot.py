"""Define the snapshot of all records of a job in ZooKeeper, from which edl makes decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edl.records import (
    NO_POLICY,
    Assigned,
    Desired,
    Generation,
    Host,
    Job,
    JobPolicy,
    JobState,
    Leader,
    Member,
    Request,
    RequestKind,
    RingMember,
    SlotRecord,
    TrainingStatus,
)
from edl.text import verb, workers

GONE = "its process is gone"  # the beginning of each proof that a process has ended by itself


@dataclass(frozen=True)
class Snapshot:
    """All records of a job in ZooKeeper, read at about one time."""

    job: Job
    hosts: tuple[Host, ...] = ()  # the agents, by name of their host
    members: tuple[Member, ...] = ()  # the workers with a session, by id
    desired: Desired = field(default_factory=Desired)
    assigned: Assigned = field(default_factory=Assigned)
    discovered: Mapping[str, int] = field(default_factory=dict)  # slots, by `edl-discover`
    generation: Generation | None = None  # the newest one, whether its ring is built or not
    leader: Leader | None = None
    requests: tuple[Request, ...] = ()  # not answered yet, by number
    evicted: Mapping[int, str] = field(default_factory=dict)  # why, by worker id
    status: TrainingStatus = field(default_factory=TrainingStatus)
    slots: tuple[SlotRecord, ...] = ()  # the `edl-worker` processes, under horovodrun
    policy: JobPolicy = NO_POLICY

    @property
    def paused(self) -> str:
        """A clause that says that a running job waits for workers; empty: it does not."""
        job, generation = self.job, self.generation
        left = len(generation.members) if generation is not None else 0
        if job.state is not JobState.RUNNING or not left or job.sizes.enough(left):
            return ""
        limit_s = job.spec.settings.elastic_timeout_s
        return (
            f"paused: {workers(left)} {verb(left)} left and min_np is {job.sizes.min_np}; others "
            f"are waited for, at most {limit_s:g} s"
        )

    @property
    def current_status(self) -> TrainingStatus:
        """The progress as the leader has reported it, with a speed of 0 if no worker is alive."""
        return self.status if self.members else replace(self.status, samples_per_s=0.0)

    @cached_property
    def switched(self) -> bool:
        """Whether a member of the newest generation has entered it, so that its ring was built."""
        new = self.generation
        if new is None:
            return False
        seated = frozenset(new.worker_ids)
        return any(m.generation >= new.number and m.id in seated for m in self.members)

    @cached_property
    def ring(self) -> tuple[RingMember, ...]:
        """The ring that holds the job's state: before a planned switch still the former one."""
        new = self.generation
        if new is None:
            return ()
        return new.members if self.switched or not new.previous else new.previous

    @property
    def released(self) -> frozenset[int]:
        """The newcomers that have left the ring as its other members have agreed."""
        reports = [m.broken for m in self.members if reports_broken(m, self.generation)]
        return frozenset(worker for report in reports if report for worker in report.gone)

    @property
    def is_broken(self) -> bool:
        # An evicted worker that was cut off may be back for a moment, with the report of an old
        # ring.
        reported = {member.id: member for member in self.members if member.id not in self.evicted}
        return any(reports_broken(reported.get(m.id), self.generation) for m in self.ring)

    @property
    def newest_members(self) -> tuple[RingMember, ...]:
        """The members of the newest generation; none before the first one."""
        return self.generation.members if self.generation is not None else ()

    @property
    def state_owners(self) -> frozenset[int]:
        """The numbers of the workers that may hold the job's state."""
        return frozenset(member.id for member in (*self.ring, *self.newest_members))

    @property
    def replaced(self) -> frozenset[int]:
        return frozenset(r.worker for r in self.requests if r.kind == RequestKind.REPLACE)

    @property
    def participants(self) -> tuple[int, ...]:
        """The workers that take part in an exchange before the training, in rank order."""
        # A member without a session counts: an answer without its payload would be kept for ever.
        ring = () if self.generation is None else self.generation.worker_ids
        return tuple(worker for worker in ring if worker not in self.evicted)

    @property
    def available(self) -> tuple[Host, ...]:
        """The hosts that have slots for the job: the agents, and those of `edl-discover`."""
        return (*self.agents, *as_hosts(self.discovered))

    @property
    def agents(self) -> tuple[Host, ...]:
        """The records in `hosts`, with at most as many slots as the job has devices there."""
        assigned = self.assigned
        return tuple(replace(h, slots=assigned.most_on(h.name, h.slots)) for h in self.hosts)

    def present_in(self, desired: Mapping[str, int]) -> frozenset[str]:
        """Return the hosts that are not gone, with those that have joined in a newer `desired`."""
        before = self.desired.hosts
        return self.present | {name for name, n in desired.items() if n > before.get(name, 0)}

    @property
    def present(self) -> frozenset[str]:
        """The hosts with an agent, a worker or a member of the newest generation, so not gone."""
        # All sessions of a host may end at once while its workers train on.
        hosts = {host.name for host in self.hosts} | {member.host for member in self.members}
        return frozenset(hosts | {member.host for member in self.newest_members})

    def forgettable(self, keep: int) -> tuple[int, ...]:
        here = {member.id for member in self.members}
        gone = sorted(
            worker
            for worker in self.evicted
            if worker not in here and not (self.generation and self.generation.knows(worker))
        )
        return tuple(gone[: max(0, len(gone) - keep)])


def since(known: float | None, holds: bool, now: float) -> float | None:
    """Return since when a fact holds, which did since `known`; None if it does not."""
    return (now if known is None else known) if holds else None


def as_hosts(discovered: Mapping[str, int]) -> tuple[Host, ...]:
    # These hosts have no agent, so no address and no process id.
    return tuple(Host(name, slots, "") for name, slots in sorted(discovered.items()))


def reports_broken(member: Member | None, generation: Generation | None) -> bool:
    if member is None or member.broken is None or generation is None:
        return False
    if member.broken.generation >= generation.number:
        return True
    # A planned generation that was decided while the ring broke has not repaired it.
    return bool(generation.previous) and 0 < member.generation <= member.broken.generation
