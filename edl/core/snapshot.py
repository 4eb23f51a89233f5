"""Define the snapshot of all records of a job in ZooKeeper, from which edl makes decisions."""

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


@dataclass(frozen=True)
class Snapshot:
    """All records of a job in ZooKeeper, read at about one time.

    Attributes:
        job: the record of the job.
        hosts: the records of the agents, by name of the host.
        members: the records of the workers that are in ZooKeeper, by number.
        desired: the desired number of workers on each host.
        assigned: the number of workers that each launcher keeps on its host.
        discovered: host -> slots, as `edl-discover` has reported them; empty without it.
        generation: the newest generation; None: there is none yet.
        leader: the leader; None: no worker leads.
        requests: the requests that the leader has not answered, by number.
        evicted: the number of each evicted worker -> why.
        status: the progress of the training, as the leader reports it.
        slots: the records of the `edl-worker` processes, by host and slot; empty without
            horovodrun.
        policy: the job's policy.
    """

    job: Job
    hosts: tuple[Host, ...] = ()
    members: tuple[Member, ...] = ()
    desired: Desired = field(default_factory=Desired)
    assigned: Assigned = field(default_factory=Assigned)
    discovered: Mapping[str, int] = field(default_factory=dict)
    generation: Generation | None = None
    leader: Leader | None = None
    requests: tuple[Request, ...] = ()
    evicted: Mapping[int, str] = field(default_factory=dict)
    status: TrainingStatus = field(default_factory=TrainingStatus)
    slots: tuple[SlotRecord, ...] = ()
    policy: JobPolicy = NO_POLICY

    @property
    def paused(self) -> str:
        """A clause that says why a running job has too few workers to train, or an empty text."""
        job, generation = self.job, self.generation
        left = len(generation.members) if generation is not None else 0
        if job.state is not JobState.RUNNING or not left or job.sizes.enough(left):
            return ""
        limit_s = job.spec.settings.elastic_timeout_s
        return (
            f"paused: {workers(left)} {verb(left)} left and min_np is {job.sizes.min_np}; others "
            f"are waited for, at most {limit_s:g} s"
        )

    @cached_property
    def switched(self) -> bool:
        """Whether a member of the newest generation has entered it.

        If so, the ring of that generation was built, with all of its members.
        """
        new = self.generation
        if new is None:
            return False
        seated = frozenset(new.worker_ids)
        return any(m.generation >= new.number and m.id in seated for m in self.members)

    @cached_property
    def ring(self) -> tuple[RingMember, ...]:
        """The members of the ring that holds the job's state, in rank order.

        Until one worker has entered the newest generation, this is the ring before it. It is empty
        before the first generation.
        """
        new = self.generation
        if new is None:
            return ()
        return new.members if self.switched or not new.previous else new.previous

    @property
    def state_owners(self) -> frozenset[int]:
        """The numbers of the workers that may hold the job's state.

        These are the members of the ring and of the ring that is being built.
        """
        members = (*self.ring, *(self.generation.members if self.generation is not None else ()))
        return frozenset(member.id for member in members)

    @property
    def replaced(self) -> frozenset[int]:
        """The numbers of the workers for which a replacement was requested."""
        return frozenset(r.worker for r in self.requests if r.kind == RequestKind.REPLACE)

    @property
    def available(self) -> tuple[Host, ...]:
        """The records of the hosts that have slots.

        These are hosts with an agent and, under horovodrun, hosts that `edl-discover` has reported.
        """
        return (*self.agents, *as_hosts(self.discovered))

    @property
    def agents(self) -> tuple[Host, ...]:
        """The records of the hosts with an agent, with at most as many slots as the job may use.

        If the job's devices are limited on a host, it may use as many slots as it has devices.
        """
        assigned = self.assigned
        return tuple(replace(h, slots=assigned.most_on(h.name, h.slots)) for h in self.hosts)

    def present_in(self, desired: Mapping[str, int]) -> frozenset[str]:
        """Return the names of the hosts that are not gone, given a newer ``desired``.

        ``desired`` maps each host to its desired number of workers. A host for which more workers
        are desired than in this snapshot counts as present, because it has joined after the
        snapshot. The result also has all hosts in :attr:`present`.
        """
        before = self.desired.hosts
        return self.present | {name for name, n in desired.items() if n > before.get(name, 0)}

    @property
    def present(self) -> frozenset[str]:
        """The names of the hosts that are not gone.

        A host is gone when it has no agent, no worker in ZooKeeper and no member in the newest
        generation. A host without a session in ZooKeeper is not gone while it has such a member,
        because all sessions of a host may end at once while its workers train on.
        """
        members = self.generation.members if self.generation else ()
        return frozenset(
            (
                *(h.name for h in self.hosts),
                *(m.host for m in self.members),
                *(s.host for s in members),
            )
        )

    def forgettable(self, keep: int) -> tuple[int, ...]:
        """Return the numbers of evicted workers whose eviction records may be deleted.

        These workers are not in ZooKeeper, and are members neither of the newest generation nor of
        the ring before it. The ``keep`` evicted workers with the largest numbers keep their
        records.
        """
        here = {member.id for member in self.members}
        gone = sorted(
            worker
            for worker in self.evicted
            if worker not in here and not (self.generation and self.generation.knows(worker))
        )
        return tuple(gone[: max(0, len(gone) - keep)])


def as_hosts(discovered: Mapping[str, int]) -> tuple[Host, ...]:
    """Return host records, sorted by name, for ``discovered`` (host -> slots).

    The records have no address, because these hosts have no agent.
    """
    return tuple(Host(name, slots, "") for name, slots in sorted(discovered.items()))
