"""What ZooKeeper holds of one job, read and written as the records of ``core.facts``.

Every method raises CoordinationError in bounded time when ZooKeeper is away, UnknownJob when there
is no such job, and AccessDenied (which is one) when it has another secret than the session.
Writes of the leader are not here but in ``election``, where they are fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError

from edl.coordination import events, lifecycle
from edl.coordination.desired import DesiredNodes
from edl.coordination.lifecycle import job_names, list_jobs, unlock
from edl.coordination.paths import JobPaths, sequence
from edl.coordination.reads import Waker, children, delete, get
from edl.coordination.session import Refused, Session
from edl.coordination.wire import decode, encode
from edl.core.events import Event
from edl.core.job.desired import Change
from edl.core.job.placement import Placement
from edl.core.job.profile import Curve
from edl.core.job.profile_hold import ProfileHold
from edl.core.record import Record
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
from edl.errors import CoordinationError, UnknownJob, UsageError

__all__ = ["JobStore", "job_names", "list_jobs", "unlock"]

ATTEMPTS = 20  # of a compare-and-set; each is lost only to another writer

R = TypeVar("R", bound=Record)


class JobStore:
    """The job ``job_name`` as ZooKeeper has it. Raises ConfigError for an impossible name."""

    def __init__(self, session: Session, job_name: str) -> None:
        self.session = session
        self.name = job_name
        self.paths = JobPaths(job_name)
        self._run: str | None = None  # the start of the job that this process belongs to

    # --- the job as a whole

    def create(self, job: Job, hosts: Mapping[str, int], by_slot: bool = False) -> None:
        """Create the job, or replace one that has ended or whose processes are all dead.

        Args:
            hosts: host -> workers to start with; desired and assigned.
            by_slot: only assigned; its launcher assigns by slot.

        Raises:
            JobExists: a job of that name is alive.
            AccessDenied: the name is taken by a job that the session cannot open.
        """
        self._run = lifecycle.create_job(self.session, self.paths, job, hosts, by_slot)

    def delete(self) -> None:
        """Remove the job with everything in it; nothing happens when there is none."""
        lifecycle.delete_job(self.session, self.paths)

    def snapshot(self, wake: Waker = None) -> Snapshot:
        """Everything at about one time; a node that vanishes meanwhile is absent.

        ``wake`` is called when something of it changes, except status, events, what is discovered
        and what is desired but not assigned: once for each change of a node that was read, from
        kazoo's watch thread, so it must not block. All watches are gone after they fired and after
        a loss of the connection (which fires them): read again then.
        """
        p = self.paths
        listed = self._read(
            # Before what is assigned, which wakes: so a leader that read only the latter anew may
            # not write (see Leadership.carry_out).
            get(p.desired),
            *(get(path, wake) for path in (p.job, p.assigned, p.generation, p.leader)),
            *(get(path) for path in (p.discovered, p.status)),
            *(
                children(path, wake)
                for path in (p.hosts, p.members, p.requests, p.evicted, p.slots)
            ),
        )
        desired, job, assigned, generation, leader, discovered, status = listed[:7]
        hosts, members, requests, evicted, slots = listed[7:]
        groups: list[list[tuple[str, Waker]]] = [
            [(f"{p.hosts}/{name}", None) for name in hosts or ()],
            [(f"{p.members}/{name}", wake) for name in members or ()],
            [(f"{p.requests}/{name}", None) for name in requests or ()],
            [(f"{p.evicted}/{name}", None) for name in evicted or ()],
            [(f"{p.slots}/{name}", None) for name in slots or ()],
        ]
        found = self._read_groups(groups)
        asked = (
            replace(Request.from_json(values), number=sequence(path)) for path, values in found[2]
        )
        return Snapshot(
            job=self._job(job),
            hosts=tuple(sorted((Host.from_json(v) for _, v in found[0]), key=lambda h: h.name)),
            members=tuple(sorted((Member.from_json(v) for _, v in found[1]), key=lambda m: m.id)),
            desired=Desired.from_json(_values(p.desired, desired)),
            assigned=Assigned.from_json(_values(p.assigned, assigned)),
            discovered=_values(p.discovered, discovered),
            generation=_optional(Generation, p.generation, generation),
            leader=_optional(Leader, p.leader, leader),
            requests=tuple(sorted((r for r in asked if not r.done), key=lambda r: r.number)),
            evicted=_evicted(found[3]),
            status=TrainingStatus.from_json(_values(p.status, status)),
            slots=_kept(found[4]),
        )

    def watch_generation(
        self, wake: Waker
    ) -> tuple[Job, Generation | None, Mapping[int, str], Leader | None]:
        """What a worker that does not lead needs: job, generation, the evicted, the leader.

        ``wake``: as in :meth:`snapshot`.
        """
        p = self.paths
        job, generation, leader, evicted = self._read(
            *(get(path, wake) for path in (p.job, p.generation, p.leader)),
            children(p.evicted, wake),
        )
        reasons = self._read_groups([[(f"{p.evicted}/{name}", None) for name in evicted or ()]])[0]
        return (
            self._job(job),
            _optional(Generation, p.generation, generation),
            _evicted(reasons),
            _optional(Leader, p.leader, leader),
        )

    def set_job_state(
        self,
        state: JobState,
        reason: str,
        exit_code: int = 0,
        only_from: tuple[JobState, ...] = (JobState.RUNNING,),
    ) -> bool:
        """Move the job to ``state`` if it is in one of ``only_from``; whether it was."""
        moved = False

        def change(values: dict[str, Any]) -> dict[str, Any]:
            nonlocal moved
            job = Job.from_json(values)
            moved = job.state in only_from
            if not moved:
                return values
            return replace(job, state=state, reason=reason, exit_code=exit_code).to_json()

        self._compare_and_set(self.paths.job, change)
        return moved

    def put_saved(self, directory: str, step: int) -> None:
        """Record that a checkpoint of ``step`` is in ``directory``."""
        saved = {"checkpoint": directory, "saved_step": step}
        self._compare_and_set(self.paths.job, lambda job: {**job, **saved})

    # --- how many workers

    def desire(self, change: Callable[[dict[str, int]], Placement], by: Asker, why: str) -> Change:
        """Let ``change(workers desired by host)`` be desired; what was and is desired.

        An agent's part, and an event that says ``why``, are written with it, all or nothing; so is,
        for a person, that a profile lets it stand. ``change`` gets a copy, may be called again when
        another writer was faster, and may raise to change nothing.

        Args:
            why: a clause, such as "edl scale".
        """
        return DesiredNodes(self.session, self.paths).change(change, by, why)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """Say which slots the driver of horovodrun may use; what is desired.

        ``first`` and the limits are taken only from the first that says so.
        """
        return DesiredNodes(self.session, self.paths).discover(slots, first, min_np, max_np)

    def assign(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Write down what a launcher has said that assigns by slot; ``change`` as above."""

        def changed(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "hosts": change(dict(values["hosts"]))}

        self._compare_and_set(self.paths.assigned, changed)

    @property
    def run(self) -> str:
        """An identity of this start of the job; another start under its name has another one."""
        return self._this_run()

    # --- workers and hosts

    def new_worker_id(self) -> int:
        """An id that no worker of this job had or will have; they grow from 0."""
        try:
            path: str = self.session.call(
                "get a worker id",
                lambda c: c.create_async(f"{self.paths.ids}/w-", ephemeral=True, sequence=True),
                repeat=True,
            )
        except NoNodeError:
            raise self._unknown() from None
        self.session.read_all("get a worker id", [delete(path)])
        return sequence(path)

    def put_member(self, member: Member) -> None:
        """Write the member's node, which lives as long as this session.

        A node left by an earlier session of the same launch is taken over.

        Raises:
            CoordinationError: another launch has that id.
            UnknownJob: the job was replaced by a new one of that name.
        """

        def ours(values: Mapping[str, Any]) -> bool:
            return Member.from_json(values).launch == member.launch

        if not self._put(self.paths.member(member.id), member, ours):
            raise CoordinationError(
                f"worker id {member.id} of job {self.name} belongs to another launch than "
                f"{member.launch!r}; ids must come from new_worker_id()"
            )

    def remove_member(self, worker: int) -> None:
        """Remove a member's node; nothing happens when there is none."""
        self.session.read_all("remove a member", [delete(self.paths.member(worker))])

    def put_host(self, host: Host) -> None:
        """Write the agent's node, which lives as long as this session.

        Raises:
            UsageError: the name belongs to another agent.
            UnknownJob: the job was replaced by a new one of that name.
        """

        owner = host

        def ours(values: Mapping[str, Any]) -> bool:
            nonlocal owner
            owner = Host.from_json(values)
            return (owner.address, owner.pid) == (host.address, host.pid)

        if not self._put(self.paths.host(host.name), host, ours):
            raise UsageError(
                f"host {host.name!r} of job {self.name} belongs to another agent, process "
                f"{owner.pid} at {owner.address}; choose another --host, or, if that agent has "
                "just died, wait until its session ends"
            )

    def ask_host_to_leave(self, name: str) -> bool:
        """Ask the agent of a host to take it out of the job; False: it has no agent.

        A new session of that agent begins without the question.
        """
        try:
            self._compare_and_set(self.paths.host(name), lambda host: {**host, "leaving": True})
        except UnknownJob:
            return False
        return True

    def remove_host(self, name: str) -> None:
        """Remove an agent's node; nothing happens when there is none."""
        self.session.read_all("remove a host", [delete(self.paths.host(name))])

    def put_slot(self, slot: KeptSlot) -> None:
        """Write the node of an edl-worker, which lives as long as this session.

        It takes over what another one has left: the driver has one process in a slot.

        Raises:
            UnknownJob: the job was replaced by a new one of that name.
        """
        self._put(self.paths.slot(slot.host, slot.slot), slot, lambda values: True)

    # --- requests

    def add_request(self, request: Request) -> int:
        """Ask something of the leader; the number under which it answers."""
        data = encode(replace(request, number=-1).to_json())
        try:
            path: str = self.session.call(
                "write a request",
                lambda c: c.create_async(f"{self.paths.requests}/r-", data, sequence=True),
            )
        except NoNodeError:
            raise self._unknown() from None
        return sequence(path)

    def get_request(self, number: int) -> Request:
        """A request, answered (``done``) or not.

        Raises:
            CoordinationError: there is none of that number.
        """
        path = self.paths.request(number)
        answer = self.session.read_all("read a request", [get(path)])[0]
        if answer is None:
            raise CoordinationError(f"job {self.name} has no request number {number}")
        return replace(Request.from_json(decode(path, answer[0])), number=number)

    def remove_request(self, number: int) -> None:
        """Forget a request; nothing happens when there is none."""
        self.session.read_all("remove a request", [delete(self.paths.request(number))])

    def withdraw_request(self, number: int) -> Request | None:
        """Take a request back: then nobody acts on it. Else its answer, which came before."""
        path = self.paths.request(number)
        for _ in range(ATTEMPTS):
            answer = self.session.read_all("read a request", [get(path)])[0]
            if answer is None:
                return None
            request = replace(Request.from_json(decode(path, answer[0])), number=number)
            if request.done:
                return request
            issue = partial(_delete, path=path, version=answer[1].version)
            try:
                self.session.call("withdraw a request", issue)
            except BadVersionError:
                continue
            except NoNodeError:
                pass
            return None
        raise CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    # --- events and status

    def add_event(self, event: Event) -> int:
        """Append to the event log; the event's number."""
        return events.add_event(self.session, self.paths, event)

    def events(self, after: int = -1) -> list[tuple[int, Event]]:
        """The events with a number above ``after``, in order."""
        return events.read_events(self.session, self.paths, after)

    def trim_events(self, keep: int) -> int:
        """Remove all but the newest ``keep`` events; how many were removed."""
        return events.trim_events(self.session, self.paths, keep)

    def forget_evicted(self, workers: Iterable[int]) -> None:
        """Remove what is written about workers that were given up and are gone for good."""
        self.session.read_all(
            "forget the evicted", [delete(self.paths.evicted_worker(w)) for w in workers]
        )

    def put_status(self, status: TrainingStatus) -> None:
        """Write the summary, unfenced; a leader uses :meth:`Leadership.put_status`."""
        try:
            data = encode(status.to_json())
            self.session.call(
                "write the status", lambda c: c.set_async(self.paths.status, data), repeat=True
            )
        except NoNodeError:
            raise self._unknown() from None

    def status(self) -> TrainingStatus:
        """What the leader has written last."""
        answer = self.session.read_all("read the status", [get(self.paths.status)])[0]
        if answer is None:
            raise self._unknown()
        return TrainingStatus.from_json(_values(self.paths.status, answer))

    # --- the profile

    def put_profile(self, curve: Curve) -> None:
        """Keep the newest profile of the job with it; also of one that has ended."""
        self._compare_and_set(self.paths.profile, lambda _: curve.to_json())

    def profile(self) -> Curve | None:
        """The newest profile; None before the first."""
        answer = self._read(get(self.paths.profile))[0]
        if answer is None:
            raise self._unknown()
        return _optional(Curve, self.paths.profile, answer)

    def hold_profile(self, hold: ProfileHold) -> bool:
        """Profile the job from now on, as long as this session lives; False: another one does."""
        return self._put(
            self.paths.profile_hold, hold, lambda values: values["token"] == hold.token
        )

    def profile_hold(self) -> ProfileHold | None:
        """Who profiles the job now, if anybody does."""
        return _optional(
            ProfileHold, self.paths.profile_hold, self._read(get(self.paths.profile_hold))[0]
        )

    def release_profile(self, token: str) -> None:
        """Profile the job no longer; nothing happens when it was another one."""
        hold = self.profile_hold()
        if hold is not None and hold.token == token:
            self.session.read_all("end a profile", [delete(self.paths.profile_hold)])

    # --- how it is done

    def _read(self, *issues: Any) -> list[Any]:
        return self.session.read_all(f"read job {self.name}", issues)

    def _read_groups(
        self, groups: list[list[tuple[str, Waker]]]
    ) -> list[list[tuple[str, dict[str, Any]]]]:
        """Read the nodes of all groups in one go; those that are gone are left out."""
        answers = iter(self._read(*(get(path, wake) for group in groups for path, wake in group)))
        return [
            [
                (path, decode(path, answer[0]))
                for path, answer in [(path, next(answers)) for path, _ in group]
                if answer is not None
            ]
            for group in groups
        ]

    def _job(self, answer: Any) -> Job:
        if answer is None:
            raise self._unknown()
        return Job.from_json(decode(self.paths.job, answer[0]))

    def _unknown(self) -> UnknownJob:
        return lifecycle.unknown_job(self.session, self.paths)

    def _compare_and_set(
        self, path: str, change: Callable[[dict[str, Any]], dict[str, Any]]
    ) -> dict[str, Any]:
        for _ in range(ATTEMPTS):
            answer = self._read(get(path))[0]
            if answer is None:
                raise self._unknown()
            old = decode(path, answer[0])
            new = change(dict(old))
            if new == old:
                return old
            write = partial(_set, path=path, data=encode(new), version=answer[1].version)
            try:
                self.session.call(f"write {path}", write)
            except BadVersionError:
                continue
            except NoNodeError:
                raise self._unknown() from None
            return new
        raise CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    def _put(self, path: str, record: Record, ours: Callable[[Mapping[str, Any]], bool]) -> bool:
        """Write an ephemeral node of this session; False: it belongs to somebody else."""
        data = encode(record.to_json())
        for _ in range(ATTEMPTS):
            answer = self._read(get(path))[0]
            version = None
            if answer is not None:
                if not ours(decode(path, answer[0])):
                    return False
                version = answer[1].version
                if answer[1].ephemeralOwner == self.session.session_id:
                    try:
                        write = partial(_set, path=path, data=data, version=version)
                        self.session.call(f"write {path}", write)
                    except (NoNodeError, BadVersionError):
                        continue
                    return True
            build = partial(self._take, path=path, data=data, version=version)
            try:
                self.session.transact(f"write {path}", build)
            except Refused as refused:
                if refused.index == 0 and isinstance(refused.error, NoNodeError):
                    raise self._unknown() from None
                continue  # it appeared, changed or vanished meanwhile
            return True
        raise CoordinationError(f"{path} was changed by others {ATTEMPTS} times; try again")

    def _take(
        self, transaction: TransactionRequest, path: str, data: bytes, version: int | None
    ) -> None:
        transaction.check(f"{self.paths.run}/{self._this_run()}", -1)
        if version is not None:
            transaction.delete(path, version)
        transaction.create(path, data, ephemeral=True)

    def _this_run(self) -> str:
        """The start of the job that this process belongs to: the first one that it has seen."""
        if self._run is None:
            self._run = lifecycle.current_run(self.session, self.paths)
        if self._run is None:
            raise self._unknown()
        return self._run


def _set(client: Any, path: str, data: bytes, version: int) -> Any:
    return client.set_async(path, data, version)


def _delete(client: Any, path: str, version: int) -> Any:
    return client.delete_async(path, version)


def _values(path: str, answer: Any) -> dict[str, Any]:
    return {} if answer is None else decode(path, answer[0])


def _optional(kind: type[R], path: str, answer: Any) -> R | None:
    values = _values(path, answer)
    return kind.from_json(values) if values else None


def _kept(found: list[tuple[str, dict[str, Any]]]) -> tuple[KeptSlot, ...]:
    slots = (KeptSlot.from_json(values) for _, values in found)
    return tuple(sorted(slots, key=lambda kept: (kept.host, kept.slot)))


def _evicted(found: list[tuple[str, dict[str, Any]]]) -> dict[int, str]:
    reasons = {int(path.rsplit("/", 1)[1]): str(v.get("reason", "")) for path, v in found}
    return dict(sorted(reasons.items()))
