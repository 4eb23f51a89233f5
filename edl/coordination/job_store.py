"""Read and write what ZooKeeper holds of one job, as the records of ``core.records``.

Use a :class:`JobStore`. If its docstring names no other case, a method raises CoordinationError in
bounded time when ZooKeeper is away, UnknownJob when there is no such job, and AccessDenied (a kind
of UnknownJob) when the job has another secret than the session. When a method that writes returns,
the write is in ZooKeeper. The writes of the leader are not here but in ``decisions``, where they
are fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from edl.coordination import desired, lifecycle
from edl.coordination.events import EventNodes
from edl.coordination.job_copy import JobCopy
from edl.coordination.nodes import JobNodes, Node, Values, content, record, record_or_none
from edl.coordination.paths import sequence
from edl.coordination.policy import PolicyNodes
from edl.coordination.profile import ProfileNode
from edl.coordination.reads import OnChange, children, exists, get, ignore_changes
from edl.coordination.registrations import HostNodes, MemberNodes, SlotNodes
from edl.coordination.requests import RequestNodes
from edl.coordination.script_exchange import ScriptMessageNode
from edl.coordination.session import Session
from edl.coordination.wire import decode
from edl.core.events import Event
from edl.core.excerpt import excerpt
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms
from edl.core.job.desired import DesiredChange
from edl.core.job.device_sets import NO_DEVICES, DeviceSets
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
)
from edl.core.snapshot import Snapshot
from edl.errors import AccessDenied, UnknownJob


class WorkerView(NamedTuple):
    """The records of a job that a worker reads while it does not lead."""

    job: Job
    generation: Generation | None  # None before the first one
    evicted: Mapping[int, str]  # the reason of each eviction, by worker
    leader: Leader | None  # of the newest term; None before the first one
    policy: JobPolicy


class JobStore:
    """The nodes of one job in ZooKeeper, read and written as records."""

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
        self.script_exchange = ScriptMessageNode(self.nodes)

    @property
    def incarnation(self) -> tuple[int, int]:
        """A pair that changes when ZooKeeper may have lost the nodes that this process wrote."""
        return self.session.epoch, self.copy.written_again

    def create(
        self,
        job: Job,
        hosts: Mapping[str, int],
        by_slot: bool = False,
        policy: JobPolicy = NO_POLICY,
        devices: DeviceSets = NO_DEVICES,
        run: str | None = None,
        batch: int = 0,
    ) -> None:
        """Create the job, or replace one that has ended or whose processes are all dead."""
        assigned = Assigned(hosts, by_slot, devices)
        run = lifecycle.create_job(self.session, self.paths, job, assigned, policy, run, batch)
        self.nodes.belong_to(run)

    def delete(self) -> None:
        """Remove all nodes of the job, alive or not; do nothing if there is no such job."""
        lifecycle.delete_job(self.session, self.paths)

    def snapshot(self, wake: OnChange = None) -> Snapshot:
        """Read the nodes of the job at about one time, and return them as records."""
        # `wake` is called on kazoo's connection thread, so it must not block. Without it all nodes
        # are read; with it, those that it watches only if they are new or have changed.
        p = self.paths
        parents = (p.hosts, p.members, p.requests, p.evicted, p.slots)
        # What is desired comes before what is assigned, which wakes: so a leader that read only
        # the latter anew may not write (see DecisionWriter.carry_out).
        quiet = (p.desired, p.discovered, p.status)
        watched = tuple(path for path in p.describing if path not in (*quiet, p.script))
        single = (*quiet, p.script, *watched)
        listed = self.nodes.read(
            *map(get, quiet),
            get(p.script, wake and ignore_changes),
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
            slots=_slot_records(slots),
            policy=record_or_none(JobPolicy, p.policy, found[p.policy]) or NO_POLICY,
        )

    def watch_generation(self, wake: OnChange) -> WorkerView:
        """Read and watch the nodes that a worker needs while it does not lead."""
        # `wake` is called on kazoo's connection thread, so it must not block.
        p, fence = self.paths, self.nodes.fence
        news = (p.job, p.generation, p.leader, p.policy)
        wakers = {path: wake if path in news else ignore_changes for path in p.describing}
        # The start is read last: if it is there, all before it belongs to it.
        *answers, names, start = self.nodes.read(
            *(get(path, waker) for path, waker in wakers.items()),
            children(p.evicted, wake),
            exists(fence or p.run, wake),
        )
        if start is None:
            raise self.nodes.unknown()
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
        """Return whether ZooKeeper has lost the job, so that this process may write it again."""
        job = self.copy.job
        # Never read; or it had ended, so that somebody may have removed it.
        if job is None or job.state.over or isinstance(error, AccessDenied):
            return False
        return lifecycle.current_run(self.session, self.paths) in (None, self.nodes.run)

    def write_again(self, event: Event) -> bool:
        """Write a job that ZooKeeper has lost, as this process last read it, and append `event`."""
        return self.copy.write(self.session, self.nodes.run, event)

    def set_job_state(
        self,
        state: JobState,
        reason: str,
        exit_code: int = 0,
        finished_in: int = 0,
        only_from: tuple[JobState, ...] = (JobState.RUNNING,),
        end_within_s: float = 0.0,
        event: Event | None = None,
    ) -> bool:
        """Move the job to `state` if it is in one of the states `only_from`."""
        # `end_within_s`: of a preemption, to save everything and end; 0: as it was. `exit_code` 0
        # likewise.
        moved = False

        def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            nonlocal moved
            job = Job.from_json(found[self.paths.job])
            moved = job.state in only_from
            if not moved:
                return found, None
            code = exit_code if state is JobState.FINISHED else exit_code or job.exit_code
            new = replace(
                job,
                state=state,
                reason=excerpt(reason),
                exit_code=code,
                finished_in=finished_in,
                ended=time.time() if state.over else 0.0,
                end_within_s=end_within_s or job.end_within_s,
            )
            return {self.paths.job: new.to_json()}, event

        self.nodes.change_together((self.paths.job,), change)
        return moved

    def status(self) -> TrainingStatus:
        """Return the training summary that the leader wrote last; before that, the default one."""
        answer = self.nodes.read(get(self.paths.status))[0]
        if answer is None:
            raise self.nodes.unknown()
        return TrainingStatus.from_json(content(self.paths.status, answer))

    def put_saved(self, directory: str, step: int, only_later: bool = False) -> None:
        """Record in the job where its newest checkpoint is, in place of the one recorded before."""
        saved = {"checkpoint": directory, "saved_step": step}

        def change(values: dict[str, Any]) -> dict[str, Any]:
            # A job that resumes from an earlier one, as the newest is damaged, has to record that.
            if only_later and Job.from_json(values).saved_step >= step:
                return values
            return {**values, **saved}

        self.nodes.compare_and_set(self.paths.job, change)

    # --- how many workers

    def set_desired(
        self,
        change: desired.Choice,
        by: RequestedBy,
        why: str,
        terms: LeaseTerms = NO_LEASE_TERMS,
        devices: DeviceSets = NO_DEVICES,
    ) -> DesiredChange:
        """Set how many workers are desired on each host, and log an event that says why."""
        return desired.set_desired(self.nodes, change, by, why, terms, devices)

    def record_returned(self, done: Reclaim, after_s: float) -> None:
        """Remove a demand to give borrowed slots back, which was fulfilled, and log an event."""
        desired.record_returned(self.nodes, done, after_s)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """Record the slots that horovodrun may use; at the first call for a job, desire `first`."""
        return desired.discover(self.nodes, slots, first, min_np, max_np)

    def assign(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Replace the numbers of workers by host, for a launcher that assigns by slot."""

        def changed(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "hosts": change(dict(values["hosts"]))}

        self.nodes.compare_and_set(self.paths.assigned, changed)

    def _job(self, answer: Any) -> Job:
        if answer is None:
            raise self.nodes.unknown()
        return record(Job, (self.paths.job, answer[0]))


def _slot_records(found: Iterable[Node]) -> tuple[SlotRecord, ...]:
    slots = (record(SlotRecord, node) for node in found)
    return tuple(sorted(slots, key=lambda kept: (kept.host, kept.slot)))


def _evicted(found: Iterable[Node]) -> dict[int, str]:
    values = ((int(node[0].rsplit("/", 1)[1]), decode(*node)) for node in found)
    return {worker: str(value.get("reason", "")) for worker, value in sorted(values)}
