"""Define the snapshot of all records of a job in ZooKeeper, from which edl makes decisions.

:meth:`edl.coordination.job_store.JobStore.snapshot` reads a :class:`Snapshot`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

from edl.core.plural import verb, workers
from edl.core.progress import TrainingStatus
from edl.core.records import (
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
)

GONE = "its process is gone"  # the beginning of each proof that a process has ended by itself


@dataclass(frozen=True)
class Snapshot:
    """All records of a job in ZooKeeper, read at about one time."""

    job: Job  # the record of the job
    hosts: tuple[Host, ...] = ()  # the records of the agents, sorted by the names of their hosts
    # the records of the workers that are in ZooKeeper (with a session), sorted by number
    members: tuple[Member, ...] = ()
    desired: Desired = field(default_factory=Desired)  # the desired number of workers on each host
    # the number of workers that each launcher keeps on its host
    assigned: Assigned = field(default_factory=Assigned)
    # host -> slots, as `edl-discover` has reported them; empty without it
    discovered: Mapping[str, int] = field(default_factory=dict)
    # the newest generation, whether its ring is built or not; None: there is none yet
    generation: Generation | None = None
    leader: Leader | None = None  # the record of the leader; None: no worker leads
    # the requests that the leader has not answered, sorted by number
    requests: tuple[Request, ...] = ()
    # the number of each evicted worker -> why
    evicted: Mapping[int, str] = field(default_factory=dict)
    # the progress of the training, as the leader has reported it
    status: TrainingStatus = field(default_factory=TrainingStatus)
    # the records of the `edl-worker` processes, sorted by host and slot; empty without horovodrun
    slots: tuple[SlotRecord, ...] = ()
    policy: JobPolicy = NO_POLICY  # the job's policy; an empty one if the job has none

    @property
    def paused(self) -> str:
        """A clause that says that a running job waits for workers."""
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
        """Whether at least one member of the newest generation has entered it; False without one"""
        new = self.generation
        if new is None:
            return False
        seated = frozenset(new.worker_ids)
        return any(m.generation >= new.number and m.id in seated for m in self.members)

    @cached_property
    def ring(self) -> tuple[RingMember, ...]:
        """The members of the ring that holds the job's state, in rank order."""
        new = self.generation
        if new is None:
            return ()
        return new.members if self.switched or not new.previous else new.previous

    @property
    def state_owners(self) -> frozenset[int]:
        """The numbers of the workers that may hold the job's state."""
        members = (*self.ring, *(self.generation.members if self.generation is not None else ()))
        return frozenset(member.id for member in members)

    @property
    def replaced(self) -> frozenset[int]:
        """The numbers of the workers for which a replacement is requested, not yet answered."""
        return frozenset(r.worker for r in self.requests if r.kind == RequestKind.REPLACE)

    @property
    def available(self) -> tuple[Host, ...]:
        """The records of the hosts that have slots for the job."""
        return (*self.agents, *as_hosts(self.discovered))

    @property
    def agents(self) -> tuple[Host, ...]:
        """Copies of the records in `hosts`, with at most as many slots as the job may use."""
        assigned = self.assigned
        return tuple(replace(h, slots=assigned.most_on(h.name, h.slots)) for h in self.hosts)

    def present_in(self, desired: Mapping[str, int]) -> frozenset[str]:
        """Return the names of the hosts that are not gone, given a newer `desired`."""
        before = self.desired.hosts
        return self.present | {name for name, n in desired.items() if n > before.get(name, 0)}

    @property
    def present(self) -> frozenset[str]:
        """The names of the hosts that are not gone."""
        # A host without a session in ZooKeeper is not gone while it has such a member, because all
        # sessions of a host may end at once while its workers train on.
        members = self.generation.members if self.generation else ()
        return frozenset(
            (
                *(h.name for h in self.hosts),
                *(m.host for m in self.members),
                *(s.host for s in members),
            )
        )

    def forgettable(self, keep: int) -> tuple[int, ...]:
        """Return the numbers of evicted workers whose eviction records may be deleted, ascending"""
        here = {member.id for member in self.members}
        gone = sorted(
            worker
            for worker in self.evicted
            if worker not in here and not (self.generation and self.generation.knows(worker))
        )
        return tuple(gone[: max(0, len(gone) - keep)])


def as_hosts(discovered: Mapping[str, int]) -> tuple[Host, ...]:
    """Return host records, sorted by name, for `discovered` (host -> slots)."""
    # The records have an empty address and no process id, because these hosts have no agent.
    return tuple(Host(name, slots, "") for name, slots in sorted(discovered.items()))
