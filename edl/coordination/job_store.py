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
    """The records of a job that a worker reads while it does not lead.

    :meth:`JobStore.watch_generation` returns one.

    Attributes:
        job: The record of the job.
        generation: The newest generation; None before the first one.
        evicted: The reason of each eviction, by the id of the evicted worker.
        leader: The leader of the newest term; None before the first one.
        policy: The policy of the job; an empty one if it has none.
    """

    job: Job
    generation: Generation | None
    evicted: Mapping[int, str]
    leader: Leader | None
    policy: JobPolicy


class JobStore:
    """The nodes of one job in ZooKeeper, read and written as records.

    This object reads and writes what belongs to the job as a whole. Its attributes ``members``
    (workers), ``hosts`` (agents), ``slots`` (edl-workers), ``requests``, ``events``, ``profile``,
    ``policy`` and ``script_exchange`` each read and write one kind of node; ``copy`` keeps what
    this process last read.

    Args:
        session: The ZooKeeper session to read and write with.
        job_name: The name of the job, which need not exist yet.

    Raises:
        ConfigError: ``job_name`` cannot be the name of a job.
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
        self.script_exchange = ScriptMessageNode(self.nodes)

    @property
    def incarnation(self) -> tuple[int, int]:
        """A pair that changes when ZooKeeper may have lost the nodes that this process wrote.

        It is (the number of sessions that this process has opened, how often the job was written
        again after ZooKeeper had lost it).
        """
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
        """Create the job, or replace one that has ended or whose processes are all dead.

        This process then belongs to the new start of the job: its changes of records are refused
        once the job is started again.

        Args:
            job: The record of the job.
            hosts: The number of workers to start on each host, as desired and assigned.
            by_slot: Whether the launcher assigns workers by slot (horovodrun's driver does). Then
                ``hosts`` are the assigned numbers only, and none are desired yet.
            policy: The policy of the job.
            devices: The devices that the job may use, by host, and none on other hosts. Empty: the
                job is not limited to devices.
            run: The token of this start of the job; None to make one up. If the present start has
                it already, nothing in ZooKeeper is changed.
            batch: The global batch that the job's cluster has chosen, in samples; 0: the job
                chooses it.

        Raises:
            JobExists: a process of a job of that name lives, or that job is reserved and has not
                ended.
            AccessDenied: the name is taken by a job that the session cannot open.
            CoordinationError: ZooKeeper is away, or the session's secret is not that of this job.
        """
        assigned = Assigned(hosts, by_slot, devices)
        run = lifecycle.create_job(self.session, self.paths, job, assigned, policy, run, batch)
        self.nodes.belong_to(run)

    def delete(self) -> None:
        """Remove all nodes of the job, alive or not; do nothing if there is no such job.

        Processes are not ended.

        Raises:
            CoordinationError: ZooKeeper is away, or processes of the job keep writing into it.
        """
        lifecycle.delete_job(self.session, self.paths)

    def snapshot(self, wake: OnChange = None) -> Snapshot:
        """Read the nodes of the job at about one time, and return them as records.

        Nodes that are removed during the read, answered requests, events, the profile, and what the
        job has learned are left out.

        Args:
            wake: Called once for each node that was read and then changes, except status, the
                discovered slots, the desired workers and what a script has exchanged; a new event
                does not call it. A loss of the connection calls it, too: read again then. It runs
                on kazoo's connection thread, so it must not block. If it is given, the nodes that
                it is called for are read only if they are new or have changed since the last
                snapshot. None sets no watch, and all nodes are read.

        Raises:
            UnknownJob: the job does not exist.
            CoordinationError: ZooKeeper is away.
        """
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
        """Read and watch the nodes that a worker needs while it does not lead.

        They are fewer than the nodes that :meth:`snapshot` reads.

        Args:
            wake: Called on kazoo's connection thread, so it must not block, when the job, its
                generation, leader or policy or the evictions change, or the connection is lost;
                call this method again then.

        Returns:
            The records in these nodes.

        Raises:
            UnknownJob: the job does not exist, or the process belongs to an earlier start of it.
            CoordinationError: ZooKeeper is away.
        """
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
        """Return whether ZooKeeper has lost the job, so that this process may write it again.

        The answer is False if this process never read the job, if the job had ended when this
        process last read it (it may have been removed), or if a new job has its name. It is True
        also if another process has written the lost job again already.

        Args:
            error: The error of the read that did not find the job.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        job = self.copy.job
        if job is None or job.state.over or isinstance(error, AccessDenied):
            return False
        return lifecycle.current_run(self.session, self.paths) in (None, self.nodes.run)

    def write_again(self, event: Event) -> bool:
        """Write a job that ZooKeeper has lost, as this process last read it, and append ``event``.

        Call it only after :meth:`was_lost` has returned True.

        Args:
            event: The event that reports that the job was written again.

        Returns:
            True if this call wrote the job; False if another process was faster, with this job or
            with a new job of its name.

        Raises:
            CoordinationError: ZooKeeper is away; the job may have been written or not.
        """
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
        """Move the job to ``state`` if it is in one of the states ``only_from``.

        Args:
            state: The new state; if it is an end, the time of the end is recorded.
            reason: Why the job changes its state, for people; shortened if it is long.
            exit_code: The exit code that `edl run` is to return. If it is 0 and ``state`` is not
                FINISHED, the job keeps the code it has.
            finished_in: The generation of the ring that has trained to the end; 0: none has.
            only_from: The states from which the job may be moved.
            end_within_s: Within how many seconds the job is to save everything and end, because
                it is preempted; 0: the job keeps the bound that it has, if any.
            event: An event to append to the log in the same transaction, if the job is moved.

        Returns:
            True if the job was in one of ``only_from``, and so was moved; False if nothing was
            changed.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the job's record.
        """
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
        """Return the training summary that the leader wrote last; before that, the default one.

        Raises:
            UnknownJob: the job does not exist.
            CoordinationError: ZooKeeper is away.
        """
        answer = self.nodes.read(get(self.paths.status))[0]
        if answer is None:
            raise self.nodes.unknown()
        return TrainingStatus.from_json(content(self.paths.status, answer))

    def put_saved(self, directory: str, step: int, only_later: bool = False) -> None:
        """Record in the job where its newest checkpoint is, in place of the one recorded before.

        Args:
            directory: The directory of the checkpoint.
            step: The training step at which it was taken.
            only_later: Whether to change nothing if the recorded checkpoint is of ``step`` or a
                later one. A job that resumes from an earlier one, because the newest is damaged,
                has to record it.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the job's record.
        """
        saved = {"checkpoint": directory, "saved_step": step}

        def change(values: dict[str, Any]) -> dict[str, Any]:
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
        """Set how many workers are desired on each host, and log an event that says why.

        The assigned workers (unless the launcher assigns by slot) and the event are written in the
        same transaction. If a person asks for the change, a running `edl profile` leaves the job at
        that size when it ends, and the job's policy does not change the size for the policy's
        ``hold_s`` seconds.

        Args:
            change: Gets a copy of the present desired numbers of workers by host; returns the new
                ones. It is called again when another process wrote meanwhile, and may raise an
                error to change nothing.
            by: Who asks for the change.
            why: A clause such as "edl scale", which begins the sentence of the event.
            terms: Whether the slots of added workers are borrowed, and by when the slots of removed
                workers must be free.
            devices: The devices that the job may use, by host; other hosts keep theirs.

        Returns:
            The change: the desired numbers before and after it. Its truth value is False if nothing
            changed; then no event was written.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the numbers.
        """
        return desired.set_desired(self.nodes, change, by, why, terms, devices)

    def record_returned(self, done: Reclaim, after_s: float) -> None:
        """Remove a demand to give borrowed slots back, which was fulfilled, and log an event.

        Nothing is written if the job has no such demand.

        Args:
            done: The demand that was fulfilled: the host, the number of its slots, and its times.
            after_s: For how long the caller has seen the demand, in seconds.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the numbers.
        """
        desired.record_returned(self.nodes, done, after_s)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """Record the slots that horovodrun may use; at the first call for a job, desire ``first``.

        Args:
            slots: The number of slots of each host; they replace those that were recorded before.
            first: The number of workers to desire on each host; used only if the desired numbers
                name no host yet.
            min_np: The smallest number of workers, written into the job's record if ``first`` is
                used.
            max_np: The largest number of workers, written in the same case; None keeps the job's
                present one.

        Returns:
            The desired numbers of workers by host after the call.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the numbers.
        """
        return desired.discover(self.nodes, slots, first, min_np, max_np)

    def assign(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Replace the numbers of workers that a launcher that assigns by slot keeps on each host.

        Args:
            change: Gets a copy of the present assigned numbers of workers by host; returns the new
                ones. It is called again when another process wrote meanwhile, and may raise an
                error to change nothing.

        Raises:
            UnknownJob: the job does not exist, or has been started again.
            CoordinationError: ZooKeeper is away, or others keep changing the numbers.
        """

        def changed(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "hosts": change(dict(values["hosts"]))}

        self.nodes.compare_and_set(self.paths.assigned, changed)

    def _job(self, answer: Any) -> Job:
        """Return the record of the job in ``answer``, the data and stat of the job's node as read.

        Raises:
            UnknownJob: ``answer`` is None, because there is no such node.
        """
        if answer is None:
            raise self.nodes.unknown()
        return record(Job, (self.paths.job, answer[0]))


def _slot_records(found: Iterable[Node]) -> tuple[SlotRecord, ...]:
    """Return the slot records in the nodes ``found``, sorted by host and slot."""
    slots = (record(SlotRecord, node) for node in found)
    return tuple(sorted(slots, key=lambda kept: (kept.host, kept.slot)))


def _evicted(found: Iterable[Node]) -> dict[int, str]:
    """Return the reason of each eviction in the nodes ``found``, by the id of the worker."""
    values = ((int(node[0].rsplit("/", 1)[1]), decode(*node)) for node in found)
    return {worker: str(value.get("reason", "")) for worker, value in sorted(values)}
