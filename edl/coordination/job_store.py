"""What ZooKeeper holds of one job, read and written as the records of ``core.records``.

Every method raises CoordinationError in bounded time when ZooKeeper is away, UnknownJob when there
is no such job, and AccessDenied (which is one) when it has another secret than the session.
Writes of the leader are not here but in ``election``, where they are fenced.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from edl.coordination import desired, lifecycle
from edl.coordination.events import EventNodes
from edl.coordination.nodes import JobNodes, Node, content, record, record_or_none
from edl.coordination.paths import sequence
from edl.coordination.profile import ProfileNode
from edl.coordination.reads import Waker, children, get
from edl.coordination.registrations import HostNodes, MemberNodes, SlotNodes
from edl.coordination.requests import RequestNodes
from edl.coordination.session import Session
from edl.coordination.wire import decode
from edl.core.excerpt import excerpt
from edl.core.job.desired import Change
from edl.core.job.placement import Placement
from edl.core.records import (
    Asker,
    Assigned,
    Desired,
    Generation,
    Host,
    Job,
    JobState,
    KeptSlot,
    Leader,
    Member,
    Request,
    Snapshot,
    TrainingStatus,
)


class JobStore:
    """The job ``job_name`` as ZooKeeper has it. Raises ConfigError for an impossible name.

    What belongs to the job as a whole is read and written here; ``members``, ``hosts``, ``slots``,
    ``requests``, ``events`` and ``profile`` hold the rest.
    """

    def __init__(self, session: Session, job_name: str) -> None:
        self.session = session
        self.name = job_name
        self.nodes = JobNodes(session, job_name)
        self.paths = self.nodes.paths
        self.members = MemberNodes(self.nodes)
        self.hosts = HostNodes(self.nodes)
        self.slots = SlotNodes(self.nodes)
        self.requests = RequestNodes(self.nodes)
        self.events = EventNodes(self.nodes)
        self.profile = ProfileNode(self.nodes)

    def create(self, job: Job, hosts: Mapping[str, int], by_slot: bool = False) -> None:
        """Create the job, or replace one that has ended or whose processes are all dead.

        Args:
            hosts: host -> workers to start with; desired and assigned.
            by_slot: only assigned; its launcher assigns by slot.

        Raises:
            JobExists: a job of that name is alive.
            AccessDenied: the name is taken by a job that the session cannot open.
        """
        run = lifecycle.create_job(self.session, self.paths, job, hosts, by_slot)
        self.nodes.belong_to(run)

    def delete(self) -> None:
        """Remove the job with everything in it; nothing happens when there is none."""
        lifecycle.delete_job(self.session, self.paths)

    def snapshot(self, wake: Waker = None) -> Snapshot:
        """Everything at about one time; a node that vanishes meanwhile is absent.

        ``wake`` is called when something of it changes, except status, events, what is discovered
        and what is desired but not assigned: once for each change of a node that was read, from
        kazoo's connection thread, so it must not block. A loss of the connection calls it, too:
        read again then. With it only those are read that are new or have changed since.
        """
        p = self.paths
        parents = (p.hosts, p.members, p.requests, p.evicted, p.slots)
        listed = self.nodes.read(
            # Before what is assigned, which wakes: so a leader that read only the latter anew may
            # not write (see Leadership.carry_out).
            get(p.desired),
            *(get(path, wake) for path in (p.job, p.assigned, p.generation, p.leader)),
            *(get(path) for path in (p.discovered, p.status)),
            *(children(path, wake) for path in parents),
        )
        wanted, job, assigned, generation, leader, discovered, status = listed[:7]
        groups = [
            [f"{parent}/{name}" for name in names or ()]
            for parent, names in zip(parents, listed[7:], strict=True)
        ]
        hosts, members, requests, evicted, slots = self.nodes.read_groups(*groups, wake=wake)
        asked = (replace(record(Request, node), number=sequence(node[0])) for node in requests)
        return Snapshot(
            job=self._job(job),
            hosts=tuple(sorted((record(Host, n) for n in hosts), key=lambda host: host.name)),
            members=tuple(sorted((record(Member, n) for n in members), key=lambda m: m.id)),
            desired=Desired.from_json(content(p.desired, wanted)),
            assigned=Assigned.from_json(content(p.assigned, assigned)),
            discovered=content(p.discovered, discovered),
            generation=record_or_none(Generation, p.generation, generation),
            leader=record_or_none(Leader, p.leader, leader),
            requests=tuple(sorted((r for r in asked if not r.done), key=lambda r: r.number)),
            evicted=_evicted(evicted),
            status=TrainingStatus.from_json(content(p.status, status)),
            slots=_kept(slots),
        )

    def watch_generation(
        self, wake: Waker
    ) -> tuple[Job, Generation | None, Mapping[int, str], Leader | None]:
        """What a worker that does not lead needs: job, generation, the evicted, the leader.

        ``wake``: as in :meth:`snapshot`.
        """
        p = self.paths
        job, generation, leader, evicted = self.nodes.read(
            *(get(path, wake) for path in (p.job, p.generation, p.leader)),
            children(p.evicted, wake),
        )
        nodes = [f"{p.evicted}/{name}" for name in evicted or ()]
        return (
            self._job(job),
            record_or_none(Generation, p.generation, generation),
            _evicted(self.nodes.read_groups(nodes, wake=wake)[0]),
            record_or_none(Leader, p.leader, leader),
        )

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

    def desire(self, change: desired.Choice, by: Asker, why: str) -> Change:
        """Let ``change(workers desired by host)`` be desired; what was and is desired.

        An agent's part, and an event that says ``why``, are written with it, all or nothing; so is,
        for a person, that a profile lets it stand. ``change`` gets a copy, may be called again when
        another writer was faster, and may raise to change nothing.

        Args:
            why: a clause, such as "edl scale".
        """
        return desired.desire(self.nodes, change, by, why)

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


def _kept(found: Iterable[Node]) -> tuple[KeptSlot, ...]:
    slots = (record(KeptSlot, node) for node in found)
    return tuple(sorted(slots, key=lambda kept: (kept.host, kept.slot)))


def _evicted(found: Iterable[Node]) -> dict[int, str]:
    values = ((int(node[0].rsplit("/", 1)[1]), decode(*node)) for node in found)
    return {worker: str(value.get("reason", "")) for worker, value in sorted(values)}
