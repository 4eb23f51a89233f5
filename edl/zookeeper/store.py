"""Read and write what ZooKeeper holds of one job, as the records of ``edl.records``.

Use a :class:`JobStore`. A method raises CoordinationError in bounded time when ZooKeeper is away,
UnknownJob when there is no such job, and AccessDenied (a kind of UnknownJob) when the job has
another secret than the session. When a method that writes returns, the write is in ZooKeeper.
"""

from __future__ import annotations

import base64
import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from operator import methodcaller
from typing import Any, NamedTuple

from kazoo.client import TransactionRequest
from kazoo.exceptions import BadVersionError, NoNodeError
from kazoo.protocol.states import ZnodeStat

from edl.errors import AccessDenied, AgentExists, CoordinationError, UnknownJob, UsageError
from edl.events import (
    Details,
    EndedDetails,
    Event,
    JobFailedDetails,
    JobFinishedDetails,
    JobRestoredDetails,
    JobStoppedDetails,
    NoTemplateDetails,
    PolicySetDetails,
    SlotDisabledDetails,
    WorkerExitedDetails,
    WorkerFailedDetails,
    WorkerFrozenDetails,
)
from edl.host.process import Process
from edl.http.client import answering, ask_all
from edl.job import decision
from edl.job.borrowing import NO_TERMS, ReclaimTerms, describe_returned, without_reclaimed
from edl.job.decision import DesiredChange, MembershipDecision
from edl.job.placement import NO_DEVICES, DeviceSets, Placement
from edl.job.profile import Curve, ProfileHold
from edl.job.run import LAUNCHER_S, PATIENCE_S, JobEnd, is_newest, may_restore, restore_delay_s
from edl.job.script import answer_of, with_payload
from edl.job.snapshot import Snapshot
from edl.policy.scaling_profile import ScalingProfile
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
    Reclaim,
    Request,
    RequestedBy,
    SlotRecord,
    TrainingStatus,
)
from edl.text import excerpt
from edl.zookeeper import nodes
from edl.zookeeper.election import Election, Leadership, Write, nodes_of
from edl.zookeeper.events import EventNodes
from edl.zookeeper.nodes import ATTEMPTS as LIFECYCLE_ATTEMPTS
from edl.zookeeper.nodes import (
    JobNodes,
    Node,
    Values,
    content,
    create_nodes,
    delete_nodes,
    ensure_shared,
    first_of,
    record,
    record_or_none,
)
from edl.zookeeper.paths import JOBS, JobPaths, candidate_name, sequence
from edl.zookeeper.reads import (
    OnChange,
    children,
    decode,
    delete_node,
    encode,
    exists,
    get,
    ignore_changes,
)
from edl.zookeeper.session import Refused, Session

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Change how many workers are desired on each host: `JobStore.set_desired` for a user, a policy or
# an agent, `place_run` for the leader of a cluster, `JobStore.discover` for horovodrun. The
# assigned numbers that follow from it, and the event that reports it, are written with it.

Choice = Callable[[dict[str, int]], Placement]  # from the workers that are desired on each host


def place_run(nodes: JobNodes, devices: DeviceSets, version: int, why: str, batch: int = 0) -> bool:
    """Let a job have a worker on each of `devices` and none elsewhere, for the cluster's leader."""
    p = nodes.paths
    paths = (p.desired, p.assigned, p.generation, p.status)
    answers = nodes.read(*map(get, paths))
    if None in answers:
        raise nodes.unknown()
    versions = {path: answer[1].version for path, answer in zip(paths, answers, strict=True)}
    found = {path: decode(path, answer[0]) for path, answer in zip(paths, answers, strict=True)}
    if versions[p.assigned] != version:
        return False

    def choose(now: Mapping[str, int]) -> Placement:
        return {**dict.fromkeys(now, 0), **{host: len(own) for host, own in devices.items()}}

    change = _changed(p, found, choose, RequestedBy.CLUSTER, why, devices=devices)
    new, event = _written(p, found, change)
    if change.desired.batch != batch:
        new |= {p.desired: replace(change.desired, batch=batch).to_json()}
    writes = [(path, encode(values), versions[path]) for path, values in new.items()]
    # False: somebody else has changed a record since; the cluster's leader decides again
    return not writes or nodes.try_write(writes, event)


def _changed(
    p: JobPaths,
    found: Mapping[str, Values],
    choose: Choice,
    by: RequestedBy,
    why: str,
    terms: ReclaimTerms = NO_TERMS,
    devices: DeviceSets = NO_DEVICES,
) -> DesiredChange:
    before = Desired.from_json(found[p.desired])
    hosts = choose(dict(before.hosts))
    assigned = Assigned.from_json(found[p.assigned])
    return decision.set_desired(before, assigned, hosts, by, why, time.time(), terms, devices)


def _written(
    p: JobPaths, found: Mapping[str, Values], change: DesiredChange
) -> tuple[dict[str, Values], Event | None]:
    if not change:
        return {}, None
    follows = {} if change.assigned is None else {p.assigned: change.assigned.to_json()}
    event = Event(time.time(), *_place(p, found), str(change), change.details)
    return {p.desired: change.desired.to_json(), **follows}, event


def _place(p: JobPaths, found: Mapping[str, Values]) -> tuple[int, int]:
    return found[p.generation].get("number", 0), found[p.status].get("step", 0)


# ------------------------------------------------------------
# Keep what one process last read of a job, and write the job again into an empty ZooKeeper.
#
# ZooKeeper forgets a job when its disk is lost, when it runs in a container without a disk, or when
# somebody removes the tree. The workers train on, but every command is told that there is no such
# job. So the job's own processes write it again (`write`): its record, policy and profile, the
# desired numbers of workers, the decisions of the leader, the evictions, and what an unchanged
# script's workers have exchanged, which newcomers need. Each process then adds its own nodes, as
# after a lost session. Events, requests, the status, and what the job has learned of its sizes are
# lost.

NUMBERS = 10**6  # event numbers and worker ids for each writing; no later one was used before


class JobCopy:
    """A copy of a job's describing nodes and evictions, as this process last read them."""

    def __init__(self, paths: JobPaths) -> None:
        self._paths = paths
        self._fixed: dict[str, bytes] = {}
        self._evicted: dict[str, bytes] = {}

    def keep(self, fixed: Mapping[str, Any], evicted: Iterable[tuple[str, bytes]]) -> None:
        # With a node missing, the job is lost or being removed: the copy stays.
        if None not in fixed.values():
            self._fixed = {path: answer[0] for path, answer in fixed.items()}
            self._evicted = dict(evicted)

    @property
    def job(self) -> Job | None:
        data = self._fixed.get(self._paths.job)
        return None if not data else Job.from_json(decode(self._paths.job, data))

    @property
    def generation(self) -> Generation | None:
        data = self._fixed.get(self._paths.generation)
        return None if not data else Generation.from_json(decode(self._paths.generation, data))

    @property
    def written_again(self) -> int:
        """How often, as of the copy, the job had been written into an empty ZooKeeper; 0: never."""
        return self._first_event() // NUMBERS

    @property
    def evicted(self) -> frozenset[int]:
        return frozenset(int(path.rsplit("/", 1)[1]) for path in self._evicted)

    def write(self, session: Session, run: str, event: Event) -> bool:
        """Create the job's nodes again from the copy and append an event, in one transaction."""
        ensure_shared(session, "write a job", JOBS)
        build = partial(self._build, run=run, event=event)
        try:
            session.transact(f"write job {self._paths.name} again", build)
        except Refused:
            return False
        return True

    def _build(self, transaction: TransactionRequest, run: str, event: Event) -> None:
        # The copy does not know all ids and event numbers that were used. A worker that has not
        # joined a ring yet keeps its own.
        paths = self._paths
        first = encode({"first": self._first_event() + NUMBERS})
        contents = {**self._fixed, paths.ids: first, paths.events: first}
        create_nodes(transaction, paths, run, contents)
        for path, data in self._evicted.items():
            transaction.create(path, data)
        transaction.create(f"{paths.events}/e-", encode(event.to_json()), sequence=True)

    def _first_event(self) -> int:
        """Return the number at which the event log began, as of the copy; 0 in a job never lost."""
        data = self._fixed.get(self._paths.events, b"")
        return int(decode(self._paths.events, data).get("first", 0))


# ------------------------------------------------------------
# Exchange messages of an unchanged script before its training: `ScriptMessageNode`.
#
# The ring cannot be used: if a worker dies, it is repaired only where the training has a state.

MOST_BYTES = 2**18  # of all messages before the training; ZooKeeper refuses a node above 1 MiB


class ScriptMessageNode:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def send(
        self, number: int, worker: int, payload: bytes, members: Sequence[int]
    ) -> list[bytes] | None:
        """Send a message; return those of all workers, or None if some have not sent theirs."""
        text = base64.b85encode(payload).decode()

        def change(values: dict[str, Any]) -> dict[str, Any]:
            changed = with_payload(values, number, worker, text, members)
            if _size(changed) > MOST_BYTES:
                raise UsageError(
                    f"the script sends more than {MOST_BYTES // 1024} KiB by collectives before "
                    "its training, which edl keeps for workers that join later; send less: models "
                    "and optimizers by hvd.broadcast_parameters and hvd.broadcast_optimizer_state"
                )
            return changed

        return _decoded(self._nodes.compare_and_set(self._nodes.paths.script, change), number)

    def read(self, number: int) -> list[bytes] | None:
        """Return the messages of the exchange `number`, in rank order; None: not all are there."""
        path = self._nodes.paths.script
        return _decoded(content(path, self._nodes.read(get(path))[0]), number)


def _decoded(values: Mapping[str, Any], number: int) -> list[bytes] | None:
    texts = answer_of(values, number)
    return None if texts is None else [base64.b85decode(text) for text in texts]


def _size(values: Mapping[str, Any]) -> int:
    return sum(
        sum(map(len, one["answer"] if "answer" in one else one["sent"].values()))
        for one in values["exchanges"]
    )


# ------------------------------------------------------------
# Read and write the policy of a job, and what the job has learned of its numbers of workers.


class PolicyNodes:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def get(self) -> JobPolicy:
        path = self._nodes.paths.policy
        return record_or_none(JobPolicy, path, self._nodes.existing(path)) or JobPolicy()

    def change(self, change: Callable[[JobPolicy], JobPolicy], why: str) -> JobPolicy:
        p = self._nodes.paths

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            before = JobPolicy.from_json(found[p.policy])
            after = change(before)
            details = PolicySetDetails(after.is_on, after.source, after.text)
            event = Event(time.time(), *_place(p, found), why, details)
            return {p.policy: after.to_json()}, event

        found = self._nodes.change_together((p.policy, p.generation, p.status), changed)
        return JobPolicy.from_json(found[p.policy])

    def propose(self, policy: JobPolicy) -> JobPolicy:
        """Make `policy`, which the training script asks for, the job's policy unless it has one."""
        return self.change(
            lambda now: now if now.text else policy, f"the script has a policy: {policy.source}"
        )

    def learned(self) -> ScalingProfile:
        path = self._nodes.paths.learned
        answer = self._nodes.read(get(path))[0]
        return record_or_none(ScalingProfile, path, answer) or ScalingProfile()

    def put_learned(self, learned: ScalingProfile) -> None:
        path = self._nodes.paths.learned

        def change(found: dict[str, Any]) -> dict[str, Any]:
            # The present start has measured a size itself, or was given these before.
            return found if found.get("seen") else learned.to_json()

        self._nodes.compare_and_set(path, change)


class ProfileNode:
    """The nodes of one job that hold its profile and its hold, the right to profile the job."""

    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, curve: Curve) -> None:
        self._nodes.compare_and_set(self._nodes.paths.profile, lambda _: curve.to_json())

    def get(self) -> Curve | None:
        path = self._nodes.paths.profile
        return record_or_none(Curve, path, self._nodes.existing(path))

    def hold(self, hold: ProfileHold) -> bool:
        """Take the right to profile the job for as long as this session lives."""
        path = self._nodes.paths.profile_hold
        return self._nodes.put_ephemeral(path, hold, lambda held: held["token"] == hold.token)

    def held(self) -> ProfileHold | None:
        path = self._nodes.paths.profile_hold
        return record_or_none(ProfileHold, path, self._nodes.read(get(path))[0])

    def release(self, token: str) -> None:
        hold = self.held()
        if hold is not None and hold.token == token:
            node = self._nodes.paths.profile_hold
            self._nodes.session.read_all("end a profile", [delete_node(node)])


class RequestNodes:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def add(self, request: Request) -> int:
        data = encode(replace(request, number=-1).to_json())
        parent = self._nodes.paths.requests
        try:
            path: str = self._nodes.session.call(
                "write a request",
                lambda c: c.create_async(f"{parent}/r-", data, sequence=True),
            )
        except NoNodeError:
            raise self._nodes.unknown() from None
        return sequence(path)

    def get(self, number: int) -> Request:
        request, _ = self._read(number)
        if request is None:
            raise CoordinationError(f"job {self._nodes.paths.name} has no request number {number}")
        return request

    def cancel(self, number: int) -> Request | None:
        """Withdraw the request with the number `number`, so that the leader does not act on it."""
        path = self._nodes.paths.request(number)
        for _ in range(LIFECYCLE_ATTEMPTS):
            request, version = self._read(number)
            if request is None or request.done:
                return request
            issue = methodcaller("delete_async", path, version)
            try:
                self._nodes.session.call("withdraw a request", issue)
            except BadVersionError:
                continue
            except NoNodeError:
                pass
            return None
        raise self._nodes.changed_too_often(path)

    def _read(self, number: int) -> tuple[Request | None, int]:
        path = self._nodes.paths.request(number)
        answer = self._nodes.session.read_all("read a request", [get(path)])[0]
        if answer is None:
            return None, -1
        request = Request.from_json(decode(path, answer[0]))
        return replace(request, number=number), answer[1].version


# ------------------------------------------------------------
# Write and remove the ephemeral nodes of the processes of a job: workers, agents, edl-workers.


class MemberNodes:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def new_id(self) -> int:
        """Return a worker id that no other worker of this start of the job has; ids grow from 0."""
        session, ids = self._nodes.session, self._nodes.paths.ids
        answer = self._nodes.existing(ids)
        try:
            path: str = session.call(
                "get a worker id",
                lambda c: c.create_async(f"{ids}/w-", ephemeral=True, sequence=True),
                repeat=True,
            )
        except NoNodeError:
            raise self._nodes.unknown() from None
        session.read_all("get a worker id", [delete_node(path)])
        return first_of(ids, answer) + sequence(path)

    def put(self, member: Member) -> None:
        paths, ours = self._nodes.paths, partial(_is_of, member.attempt_id)
        if not self._nodes.put_ephemeral(paths.member(member.id), member, ours):
            raise CoordinationError(
                f"worker id {member.id} of job {paths.name} belongs to another launch than "
                f"{member.attempt_id!r}; ids must come from MemberNodes.new_id()"
            )

    def remove(self, worker: int, attempt_id: str) -> None:
        """Remove the nodes of a dead worker: no candidate waits until its session ends."""
        session, paths = self._nodes.session, self._nodes.paths
        run, own = f"{paths.run}/{self._nodes.run}", paths.member(worker)
        for _ in range(LIFECYCLE_ATTEMPTS):
            member, candidates = session.read_all(
                "read a member", [get(own), children(paths.election)]
            )
            if member is not None and not _is_of(attempt_id, decode(own, member[0])):
                return
            nodes = [] if member is None else [own]
            names = nodes_of(candidates or (), candidate_name(worker))
            nodes += [f"{paths.election}/{name}" for name in names]
            if not nodes:
                return
            try:
                session.transact("remove a member", partial(delete_nodes, nodes=nodes, check=run))
            except Refused as refused:
                if refused.is_missing(0):
                    return  # the job was started again
                continue  # one of the nodes has gone meanwhile
            return
        raise self._nodes.changed_too_often(own)

    def forget_evicted(self, workers: Iterable[int]) -> None:
        """Remove the eviction records of workers whose processes do not exist any more."""
        evicted = [self._nodes.paths.evicted_worker(worker) for worker in workers]
        self._nodes.session.read_all("forget the evicted", [delete_node(path) for path in evicted])


def _is_of(attempt_id: str, values: Mapping[str, Any]) -> bool:
    return Member.from_json(values).attempt_id == attempt_id


class HostNodes:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, host: Host, is_dead: Callable[[Host], bool] = lambda _: False) -> None:
        # Else an agent that slept could declare a device that another job has got meanwhile.
        owner = host

        def ours(values: Mapping[str, Any]) -> bool:
            nonlocal owner
            owner = Host.from_json(values)
            return owner.is_same_agent(host) or is_dead(owner)

        def devices_are_granted() -> Mapping[str, int]:
            if not host.devices:
                return {}
            answer = self._nodes.existing(paths.assigned)
            assigned = Assigned.from_json(content(paths.assigned, answer))
            if not all(assigned.grants(host.name, device) for device in host.devices):
                raise CoordinationError(
                    f"the devices of job {paths.name} on host {host.name} were changed; nothing "
                    "was written: read the job again"
                )
            return {paths.assigned: answer[1].version}

        paths = self._nodes.paths
        if not self._nodes.put_ephemeral(paths.host(host.name), host, ours, devices_are_granted):
            raise AgentExists(host.name, paths.name, owner.pid, owner.address)

    def ask_to_leave(self, name: str) -> bool:
        # Lost if the session of the agent ends, as the agent then writes its node anew.
        node = self._nodes.paths.host(name)
        try:
            self._nodes.compare_and_set(node, lambda host: {**host, "leaving": True})
        except UnknownJob:
            return False
        return True


class SlotNodes:
    def __init__(self, nodes: JobNodes) -> None:
        self._nodes = nodes

    def put(self, slot: SlotRecord) -> None:
        node = self._nodes.paths.slot(slot.host, slot.slot)
        # horovodrun's driver has one process in a slot: the node of an earlier one is replaced.
        self._nodes.put_ephemeral(node, slot, lambda values: True)


# ------------------------------------------------------------
# Elect the leader of a job, and write what it decides about the job.
#
# `job_election` gives the election, and a `DecisionWriter` writes during one term. Each write is
# fenced by the leader's term: it is refused when the term is over (see `election`). A membership
# decision is written as a whole: the generation, the desired and assigned numbers of workers,
# evictions, answers to requests and events are one transaction. It is refused if somebody else has
# changed the generation, or a record that it would overwrite, since the leader read them.

ATTEMPTS = 10  # each is lost only to another writer of the same nodes
Answer = tuple[bytes, ZnodeStat]  # data and stat of a node that exists


def job_election(nodes: JobNodes, worker: int) -> Election:
    return Election(
        nodes.session,
        nodes.paths.election,
        candidate_name(worker),
        leader_path=nodes.paths.leader,
        record={"worker": worker},
        missing=nodes.unknown,
        fence=nodes.fence,
    )


class DecisionWriter:
    def __init__(self, nodes: JobNodes, leadership: Leadership) -> None:
        self._nodes = nodes
        self._leadership = leadership

    @property
    def term(self) -> int:
        return self._leadership.term

    def carry_out(self, decision: MembershipDecision, events: Sequence[Event] = ()) -> None:
        for _ in range(ATTEMPTS):
            writes = self._writes(decision)
            if not writes:
                return
            try:
                self._leadership.try_commit([*writes, *map(self._logged, events)])
            except Refused:
                continue  # what we have just read has changed
            return
        raise CoordinationError(
            f"a decision of term {self.term} could not be written: what it changes was changed "
            f"by others {ATTEMPTS} times"
        )

    def put_event(self, event: Event) -> None:
        self._leadership.commit([self._logged(event)])

    def put_status(self, status: TrainingStatus) -> None:
        self._leadership.commit([Write(self._nodes.paths.status, status.to_json())])

    def put_policy(self, before: JobPolicy, policy: JobPolicy, event: Event) -> None:
        path = self._nodes.paths.policy
        answer = self._nodes.existing(path)
        if JobPolicy.from_json(decode(path, answer[0])) != before:
            raise CoordinationError("the job has another policy meanwhile; decide again")
        write = Write(path, policy.to_json(), answer[1].version)
        self._leadership.commit([write, self._logged(event)])

    def put_learned(self, learned: ScalingProfile) -> None:
        self._leadership.commit([Write(self._nodes.paths.learned, learned.to_json())])

    def _logged(self, event: Event) -> Write:
        return Write(f"{self._nodes.paths.events}/e-", event.to_json(), sequence=True)

    def _writes(self, decision: MembershipDecision) -> list[Write]:
        paths = self._nodes.paths
        registered = [paths.member(worker) for worker in sorted(decision.registered)]
        evicted = {worker: paths.evicted_worker(worker) for worker in decision.evict}
        answered = [paths.request(request.number) for request in decision.answers]
        sizes = (paths.generation, paths.desired, paths.assigned)
        reads = [*map(get, sizes), *map(exists, [*evicted.values(), *answered, *registered])]
        found = self._nodes.session.read_all("read what a decision changes", reads)
        generation, desired, assigned, *stats = found
        if None in (generation, desired, assigned):
            raise self._nodes.unknown()
        present = iter([stat is not None for stat in stats])
        writes = []
        if (new := decision.generation) is not None:
            current = decode(paths.generation, generation[0])
            number = Generation.from_json(current).number if current else 0
            if new.number != number + 1 or new.term != self.term:
                raise CoordinationError(
                    f"generation {new.number} of term {new.term} cannot follow generation {number} "
                    f"in term {self.term}; decide again on a fresh snapshot"
                )
            writes.append(Write(paths.generation, new.to_json(), generation[1].version))
        if change := decision.change:
            # Others may have changed only the devices or the batch, with the numbers as they were.
            now = Desired.from_json(decode(paths.desired, desired[0]))
            if not change.starts_from(now, Assigned.from_json(decode(paths.assigned, assigned[0]))):
                raise CoordinationError("others have changed the desired workers; decide again")
            writes.append(Write(paths.desired, change.desired.to_json(), desired[1].version))
            if change.assigned is not None:
                writes.append(Write(paths.assigned, change.assigned.to_json(), assigned[1].version))
        for worker, reason in decision.evict.items():
            if not next(present):  # else it is evicted already
                eviction = {"reason": reason, "term": self.term}
                writes.append(Write(evicted[worker], eviction, create=True))
        for answer in decision.answers:
            if next(present):
                writes.append(Write(paths.request(answer.number), answer.to_json()))
            elif answer.accepted:  # the decision grants what its requester has withdrawn
                raise CoordinationError("a request was withdrawn meanwhile; decide again")
        for request in decision.asks:
            numberless = replace(request, number=-1).to_json()  # ZooKeeper numbers it
            writes.append(Write(f"{paths.requests}/r-", numberless, sequence=True))
        if writes and not all(present):
            raise CoordinationError("a worker has left as agreed meanwhile; decide again")
        return [*(Write(path, {}, check=True) for path in registered if writes), *writes]


class WorkerView(NamedTuple):
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
        run = nodes.create_job(self.session, self.paths, job, assigned, policy, run, batch)
        self.nodes.belong_to(run)

    def delete(self) -> None:
        nodes.delete_job(self.session, self.paths)

    def snapshot(self, wake: OnChange = None) -> Snapshot:
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
            slots=tuple(
                sorted((record(SlotRecord, n) for n in slots), key=lambda s: (s.host, s.slot))
            ),
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
        return nodes.current_run(self.session, self.paths) in (None, self.nodes.run)

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
        answer = self.nodes.existing(self.paths.status)
        return TrainingStatus.from_json(content(self.paths.status, answer))

    def put_saved(self, directory: str, step: int, only_later: bool = False) -> None:
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
        choose: Choice,
        by: RequestedBy,
        why: str,
        terms: ReclaimTerms = NO_TERMS,
        devices: DeviceSets = NO_DEVICES,
    ) -> DesiredChange:
        """Set how many workers are desired on each host, and log an event that says why."""
        p, hold = self.paths, self.paths.profile_hold
        made: list[DesiredChange] = []

        def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            made.append(_changed(p, found, choose, by, why, terms, devices))
            new, event = _written(p, found, made[-1])
            # A running `edl profile` then leaves the job at that size.
            if by is RequestedBy.PERSON and found.get(hold):
                new |= {hold: {**found[hold], "asked": True}}
            if by is RequestedBy.PERSON and made[-1] and found.get(p.policy):
                held = JobPolicy.from_json(found[p.policy]).held(time.time())
                new |= {p.policy: held.to_json()}
            return new, event

        read = (p.desired, p.assigned, p.generation, p.status, hold, p.policy)
        self.nodes.change_together(read, change)
        return made[-1]

    def record_returned(self, done: Reclaim, after_s: float) -> None:
        """Remove a demand to give borrowed slots back, which was fulfilled, and log an event."""
        p = self.paths

        def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            before = Desired.from_json(found[p.desired])
            after = without_reclaimed(before, [done])
            if after == before:
                return {}, None
            details, reason = describe_returned(done, after_s)
            event = Event(time.time(), *_place(p, found), reason, details)
            return {p.desired: after.to_json()}, event

        self.nodes.change_together((p.desired, p.generation, p.status), change)

    def discover(
        self, slots: Mapping[str, int], first: Placement, min_np: int, max_np: int | None
    ) -> Desired:
        """Record the slots that horovodrun may use; at the first call for a job, desire `first`."""
        p = self.paths

        def change(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], Event | None]:
            begins = _changed(
                p, found, lambda now: now or first, RequestedBy.LAUNCHER, "the job starts"
            )
            new, event = _written(p, found, begins)
            if begins:
                job = Job.from_json(found[p.job])
                sizes = replace(job.sizes, min_np=min_np, max_np=max_np or job.sizes.max_np)
                new |= {p.job: replace(job, spec=replace(job.spec, sizes=sizes)).to_json()}
            return {**new, p.discovered: dict(slots)}, event

        read = (p.desired, p.assigned, p.generation, p.status, p.job, p.discovered)
        return Desired.from_json(self.nodes.change_together(read, change)[p.desired])

    def assign(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        """Replace the numbers of workers by host, for a launcher that assigns by slot."""

        def changed(values: dict[str, Any]) -> dict[str, Any]:
            return {**values, "hosts": change(dict(values["hosts"]))}

        self.nodes.compare_and_set(self.paths.assigned, changed)

    def _job(self, answer: Any) -> Job:
        if answer is None:
            raise self.nodes.unknown()
        return record(Job, (self.paths.job, answer[0]))


def _evicted(found: Iterable[Node]) -> dict[int, str]:
    values = ((int(node[0].rsplit("/", 1)[1]), decode(*node)) for node in found)
    return {worker: str(value.get("reason", "")) for worker, value in sorted(values)}


# ------------------------------------------------------------
# Write what a launcher or a client has observed: the end of the job, and what workers did.
#
# `conclude` records the end of the job, with an event; the other functions write one event each,
# except `worker_that_ended`, which reads one. Each writes before it returns, and writes again if it
# is called again. While ZooKeeper is away it raises a CoordinationError; if ZooKeeper does not have
# the job, an UnknownJob. An event gets the time of the call, the generation of `snapshot` (0 if
# there is none), and the newest step that the job's records or its events name.


def conclude(store: JobStore, outcome: JobEnd, snapshot: Snapshot) -> None:
    # Nothing is written if the state has changed since the snapshot.
    state, before = outcome.state, snapshot.job.state
    event = _event(store, _ENDS[state](), outcome.reason, snapshot)
    store.set_job_state(state, outcome.reason, outcome.exit_code, only_from=(before,), event=event)


_ENDS: Mapping[JobState, type[Details]] = {
    JobState.FINISHED: JobFinishedDetails,
    JobState.FAILED: JobFailedDetails,
    JobState.STOPPED: JobStoppedDetails,
}


def worker_ended(
    store: JobStore, process: Process, host: str, snapshot: Snapshot, output_tail: str = ""
) -> None:
    failed = process.failed or process.deserted
    details = (WorkerFailedDetails if failed else WorkerExitedDetails)(
        worker=None if process.worker is None else process.name,
        host=host,
        slot=process.slot,
        exit_code=process.exit_code,
        termination_message=process.termination_message,
        output_tail=output_tail,
    )
    _add(store, details, process.ending_text(host), snapshot)


def slot_disabled(store: JobStore, host: str, slot: int, reason: str, snapshot: Snapshot) -> None:
    _add(store, SlotDisabledDetails(host, slot), reason, snapshot)


def no_template(store: JobStore, host: str, why: str, snapshot: Snapshot) -> None:
    reason = f"host {host} starts each worker anew, which takes longer than from a template: {why}"
    _add(store, NoTemplateDetails(host), reason, snapshot)


def worker_that_ended(event: Event) -> int | None:
    if not isinstance(event.details, EndedDetails) or event.details.worker is None:
        return None
    return int(event.details.worker[1:])


def worker_frozen(
    store: JobStore, process: Process, host: str, stacks: str, snapshot: Snapshot
) -> None:
    """Record as an event that a worker does not answer or is suspended; nothing is done to it."""
    # `stacks` is a file on that host; empty: the worker is suspended.
    reason = f"{process.name} on {host} does not answer; where its threads are: {stacks}"
    if not stacks:
        reason = f"{process.name} on {host} is killed: {process.why}"
    _add(store, WorkerFrozenDetails(process.name, host, process.slot, stacks), reason, snapshot)


def _add(store: JobStore, details: Details, reason: str, snapshot: Snapshot) -> None:
    store.events.add(_event(store, details, reason, snapshot))


def _event(store: JobStore, details: Details, reason: str, snapshot: Snapshot) -> Event:
    generation = snapshot.generation.number if snapshot.generation else 0
    # The status is up to a second old, and a worker may have told of a later step meanwhile.
    step = max(snapshot.status.step, store.events.newest_step())
    return Event(time.time(), generation, step, reason, details)


# ------------------------------------------------------------
# Write a job again that ZooKeeper has lost. The workers of the ring try first, in the order of
# their ranks, and a launcher writes only when no worker answers; `job.run` has the rules.

LOST = "ZooKeeper has lost the job; training goes on, and its processes write it again"


class LostJob(ABC):
    """The procedure by which one process of a job writes the job again after ZooKeeper lost it."""

    def __init__(self, store: JobStore, say: Callable[[str], None], probe_timeout_s: float) -> None:
        self._store = store
        self._say = say
        self._probe_timeout_s = probe_timeout_s
        self._since: float | None = None

    def is_back(self) -> None:
        self._since = None

    def handle(self, error: UnknownJob, name: str, step: int) -> bool:
        """Write the lost job again if it is this process's turn; return whether to go on trying."""
        try:
            if not self._store.was_lost(error):
                return False
            now = time.monotonic()
            if self._since is None:
                self._since = now
                self._say(LOST)
            missed_s, generation = now - self._since, self._store.copy.generation
            trains = self._trains(generation)
            if self._writes(generation, missed_s, trains):
                number = 0 if generation is None else generation.number
                reason = f"ZooKeeper had lost the job and its events; {name} wrote it again"
                event = Event(time.time(), number, step, reason, JobRestoredDetails(name))
                if self._store.write_again(event):
                    return True
            return trains or missed_s < PATIENCE_S
        except CoordinationError as away:
            logger.info("%s", away)
            return True

    @abstractmethod
    def _trains(self, generation: Generation | None) -> bool:
        """Return whether the ring still trains, as far as this process can know."""

    @abstractmethod
    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        """Return whether it is this process's turn to write the job into ZooKeeper again."""


class WorkersLostJob(LostJob):
    """The procedure for a worker: the workers try in rank order to write the lost job again."""

    own = -1  # The id of this worker, which the caller sets; -1 until it has one

    def _trains(self, generation: Generation | None) -> bool:
        return may_restore(self.own, generation, self._store.copy.evicted)

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        if not trains or missed_s < restore_delay_s(self.own, generation):
            return False
        members = () if generation is None else (*generation.members, *generation.previous)
        others = {
            member.id: (member.address, member.port) for member in members if member.id != self.own
        }
        run = self._store.nodes.run
        newest = (
            int(health.report.get("newest_generation", 0))
            for worker, health in ask_all(others, self._probe_timeout_s).items()
            if health.answer(run).name == f"w{worker}"
        )
        return is_newest(generation, newest)


class LaunchersLostJob(LostJob):
    """The procedure for a launcher: it writes a lost job again only if no worker answers."""

    # Workers come first: a live one may have read newer nodes of the job.
    # Whether this launcher may write the job. The agent that `edl host` keeps for one start of a
    # job may not: its copy may be older than the stop and the removal of the job.
    writes = True

    def _trains(self, generation: Generation | None) -> bool:
        members = () if generation is None else generation.members
        return bool(answering(members, self._store.nodes.run, self._probe_timeout_s))

    def _writes(self, generation: Generation | None, missed_s: float, trains: bool) -> bool:
        return self.writes and missed_s >= LAUNCHER_S and not trains
