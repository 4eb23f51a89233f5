"""What ZooKeeper holds of one job, read and written as the records of ``core.records``.

Every method raises CoordinationError in bounded time when ZooKeeper is away, UnknownJob when there
is no such job, and AccessDenied (which is one) when it has another secret than the session.
Writes of the leader are not here but in ``decisions``, where they are fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from edl.coordination import desired, lifecycle
from edl.coordination.events import EventNodes
from edl.coordination.job_copy import JobCopy
from edl.coordination.nodes import JobNodes, Node, content, record, record_or_none
from edl.coordination.paths import sequence
from edl.coordination.policy import PolicyNodes
from edl.coordination.profile import ProfileNode
from edl.coordination.reads import OnChange, children, get, ignore_changes
from edl.coordination.registrations import HostNodes, MemberNodes, SlotNodes
from edl.coordination.requests import RequestNodes
from edl.coordination.session import Session
from edl.coordination.wire import decode
from edl.core.events import Event
from edl.core.excerpt import excerpt
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms
from edl.core.job.desired import Change
from edl.core.job.placement import Placement
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
    Reclaim,
    Request,
    RequestedBy,
    SlotRecord,
    Snapshot,
)
from edl.errors import AccessDenied, UnknownJob


class WorkerView(NamedTuple):
    """What a worker of a job has to know of it; ``evicted``: worker -> why it was evicted."""

    job: Job
    generation: Generation | None
    evicted: Mapping[int, str]
    leader: Leader | None
    policy: JobPolicy


class JobStore:
    """The job ``job_name`` as ZooKeeper has it. Raises ConfigError for an impossible name.

    What belongs to the job as a whole is read and written here; ``members``, ``hosts``, ``slots``,
    ``requests``, ``events``, ``profile`` and ``policy`` hold the rest.
    """

    def __init__(self, session: Session, job_name: str) -> None:
        self.session = session
        self.name = job_name
        self.nodes = JobNodes(session, job_name)
        self.paths = self.nodes.paths
        self.copy = JobCopy(self.paths)
        self.members = MemberNodes(self.nodes)
        self.hosts = HostNodes(self.nodes)
        self.slots = SlotNodes(self.nodes)
        self.requests = RequestNodes(self.nodes)
        self.events = EventNodes(self.nodes)
        self.profile = ProfileNode(self.nodes)
        self.policy = PolicyNodes(self.nodes)

    @property
    def incarnation(self) -> tuple[int, int]:
        """Changes whenever ZooKeeper may have lost the nodes that this process has written."""
        return self.session.epoch, self.copy.written_again

    def create(
        self,
        job: Job,
        hosts: Mapping[str, int],
        by_slot: bool = False,
        policy: JobPolicy = NO_POLICY,
    ) -> None:
        """Create the job, or replace one that has ended or whose processes are all dead.

        Args:
            hosts: host -> workers to start with; desired and assigned.
            by_slot: only assigned; its launcher assigns by slot.

        Raises:
            JobExists: a job of that name is alive.
            AccessDenied: the name is taken by a job that the session cannot open.
        """
        run = lifecycle.create_job(self.session, self.paths, job, hosts, by_slot, policy)
        self.nodes.belong_to(run)

    def delete(self) -> None:
        """Remove the job with everything in it; nothing happens when there is none."""
        lifecycle.delete_job(self.session, self.paths)

    def snapshot(self, wake: OnChange = None) -> Snapshot:
        """Everything at about one time; a node that vanishes meanwhile is absent.

        ``wake`` is called when something of it changes, except status, events, what is discovered
        and what is desired but not assigned: once for each change of a node that was read, from
        kazoo's connection thread, so it must not block. A loss of the connection calls it, too:
        read again then. With it only those are read that are new or have changed since.
        """
        p = self.paths
        parents = (p.hosts, p.members, p.requests, p.evicted, p.slots)
        # What is desired comes before what is assigned, which wakes: so a leader that read only
        # the latter anew may not write (see DecisionWriter.carry_out).
        quiet = (p.desired, p.discovered, p.status)
        watched = tuple(path for path in p.describing if path not in quiet)
        single = (*quiet, *watched)
        listed = self.nodes.read(
            *map(get, quiet),
            *(get(path, wake) for path in watched),
            *(children(path, wake) for path in parents),
        )
        found = dict(zip(single, listed, strict=False))
        groups = [
            [f"{parent}/{name}" for name in names or ()]
            for parent, names in zip(parents, listed[len(single) :], strict=True)
        ]
        hosts, members, requests, evicted, slots = self.nodes.read_groups(*groups, wake=wake)
        self.copy.keep({path: found[path] for path in p.describing}, evicted)
        asked = (replace(record(Request, node), number=sequence(node[0])) for node in requests)
        return Snapshot(
            job=self._job(found[p.job]),
            hosts=tuple(sorted((record(Host, n) for n in hosts), key=lambda host: host.name)),
            members=tuple(sorted((record(Member, n) for n in members), key=lambda m: m.id)),
            desired=Desired.from_json(content(p.desired, found[p.desired])),
            assigned=Assigned.from_json(content(p.assigned, found[p.assigned])),
            discovered=content(p.discovered, found[p.discovered]),
            generation=record_or_none(Generation, p.generation, found[p.generation]),
            leader=record_or_none(Leader, p.leader, found[p.leader]),
            requests=tuple(sorted((r for r in asked if not r.done), key=lambda r: r.number)),
            evicted=_evicted(evicted),
            status=TrainingStatus.from_json(content(p.status, found[p.status])),
            slots=_kept(slots),
            policy=record_or_none(JobPolicy, p.policy, found[p.policy]) or NO_POLICY,
        )

    def watch_generation(self, wake: OnChange) -> WorkerView:
        """What a worker that does not lead needs; ``wake``: as in :meth:`snapshot`, for that."""
        p = self.paths
        news = (p.job, p.generation, p.leader, p.policy)
        wakers = {path: wake if path in news else ignore_changes for path in p.describing}
        *answers, names = self.nodes.read(
            *(get(path, waker) for path, waker in wakers.items()), children(p.evicted, wake)
        )
        [evicted] = self.nodes.read_groups([f"{p.evicted}/{n}" for n in names or ()], wake=wake)
        told = dict(zip(p.describing, answers, strict=True))
        self.copy.keep(told, evicted)
        return WorkerView(
            self._job(told[p.job]),
            record_or_none(Generation, p.generation, told[p.generation]),
            _evicted(evicted),
            record_or_none(Leader, p.leader, told[p.leader]),
            record_or_none(JobPolicy, p.policy, told[p.policy]) or NO_POLICY,
        )

    def was_lost(self, error: UnknownJob) -> bool:
        """Whether ZooKeeper has lost the job, or has it again: it was not removed nor replaced.

        Nobody removes a job that has not ended, as far as this process has read it.
        """
        job = self.copy.job
        if job is None or job.state.over or isinstance(error, AccessDenied):
            return False
        return lifecycle.current_run(self.session, self.paths) in (None, self.nodes.run)

    def write_again(self, event: Event) -> bool:
        """Write a job that ZooKeeper has lost, as this process has read it last, with ``event``.

        False: somebody else has written a job of its name, this one perhaps.
        """
        return self.copy.write(self.session, self.nodes.run, event)

    def set_job_state(
        self,
        state: JobState,
        reason: str,
        exit_code: int = 0,
        finished_in: int = 0,
        only_from: tuple[JobState, ...] = (JobState.RUNNING,),
    ) -> bool:
        """Move the job to ``state`` if it is in one of ``only_from``; whether it was.

        See :class:`edl.core.records.JobEnd`. An ``exit_code`` of 0 leaves the one of a job that
        stops as it is.
        """
        moved = False

        def change(values: dict[str, Any]) -> dict[str, Any]:
            nonlocal moved
            job = Job.from_json(values)
            moved = job.state in only_from
            if not moved:
                return values
            code = exit_code if state is JobState.FINISHED else exit_code or job.exit_code
            return replace(
                job,
                state=state,
                reason=excerpt(reason),
                exit_code=code,
                finished_in=finished_in,
                ended=time.time() if state.over else 0.0,
            ).to_json()

        self.nodes.compare_and_set(self.paths.job, change)
        return moved

    def status(self) -> TrainingStatus:
        """What the leader has written last."""
        answer = self.nodes.read(get(self.paths.status))[0]
        if answer is None:
            raise self.nodes.unknown()
        return TrainingStatus.from_json(content(self.paths.status, answer))

    def put_saved(self, directory: str, step: int) -> None:
        """Record that a checkpoint of ``step`` is in ``directory``."""
        saved = {"checkpoint": directory, "saved_step": step}
        self.nodes.compare_and_set(self.paths.job, lambda job: {**job, **saved})

    # --- how many workers

    def set_desired(
        self, change: desired.Choice, by: RequestedBy, why: str, terms: LeaseTerms = NO_LEASE_TERMS
    ) -> Change:
        """Let ``change(workers desired by host)`` be desired; what was and is desired.

        An agent's part, and an event that says ``why``, are written with it, all or nothing; so is,
        for a person, that a profile lets it stand. ``change`` gets a copy, may be called again when
        another writer was faster, and may raise to change nothing.

        Args:
            why: a clause, such as "edl scale".
            terms: whether slots are borrowed, or to be given back.
        """
        return desired.set_desired(self.nodes, change, by, why, terms)

    def record_returned(self, done: Reclaim) -> None:
        """Write down that borrowed slots were given back, with its event."""
        desired.record_returned(self.nodes, done)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """Say which slots the driver of horovodrun may use; what is desired.

        ``first`` and the limits are taken only from the first that says so.
        """
        return desired.discover(self.nodes, slots, first, min_np, max_np)

    def assign(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Write down what a launcher has said that assigns by slot; ``change`` as above."""

        def changed(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "hosts": change(dict(values["hosts"]))}

        self.nodes.compare_and_set(self.paths.assigned, changed)

    def _job(self, answer: Any) -> Job:
        if answer is None:
            raise self.nodes.unknown()
        return record(Job, (self.paths.job, answer[0]))


def _kept(found: Iterable[Node]) -> tuple[SlotRecord, ...]:
    slots = (record(SlotRecord, node) for node in found)
    return tuple(sorted(slots, key=lambda kept: (kept.host, kept.slot)))


def _evicted(found: Iterable[Node]) -> dict[int, str]:
    values = ((int(node[0].rsplit("/", 1)[1]), decode(*node)) for node in found)
    return {worker: str(value.get("reason", "")) for worker, value in sorted(values)}
