"""Read and write what ZooKeeper holds of a cluster: jobs, hosts and what users want of them.

Clients and controllers use it, by a :class:`ClusterStore`. What only the leading controller writes
is in ``writer``, what only `edl host` writes in ``host_registration``, and the submission of
jobs in ``submission``. Every method that reads or writes raises CoordinationError in
bounded time when ZooKeeper is away.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kazoo.client import TransactionRequest
from kazoo.exceptions import NodeExistsError, NoNodeError

from edl.coordination.access import Access
from edl.coordination.cluster.format import check_settings
from edl.coordination.cluster.jobs import PASSES, JobReader, StoredJob, in_threes
from edl.coordination.cluster.nodes import ClusterNodes
from edl.coordination.election import Election, candidate_of
from edl.coordination.events import EventLogNodes
from edl.coordination.nodes import Values, content, record, record_or_none
from edl.coordination.paths import sequence
from edl.coordination.reads import OnChange, children, exists, get, ignore_changes
from edl.coordination.session import Refused
from edl.coordination.wire import encode
from edl.core.cluster.events import ClusterEvent, ClusterEventKind
from edl.core.cluster.goals import check_change, deleted, describe_change
from edl.core.cluster.job_life import JobLife, LifeResult, LifeState
from edl.core.cluster.lease_records import LeaseTable
from edl.core.cluster.measured_throughput import MeasuredThroughput
from edl.core.cluster.records import (
    AllocationRecord,
    ClusterRecord,
    HostAssignment,
    HostOffer,
    HostReport,
    JobReasons,
    QueueRecord,
    Wanted,
)
from edl.core.cluster.view import HostView
from edl.errors import FEW, CoordinationError, UnknownCluster, UsageError, nearest

MOST_JOBS = 10_000  # in one cluster, the ended ones included; ZooKeeper has all in memory
FEW_PASSES, PASSES_S = 5, 0.5  # so many are enough if they take so long: jobs are submitted


@dataclass(frozen=True)
class ClusterSnapshot:
    """All that a plan needs of a cluster's nodes, as :meth:`ClusterStore.snapshot` has read them.

    Attributes:
        settings: the policy and the time limits of the cluster.
        allocation: the policy's last decision; the default before the first.
        allocation_version: the version of the node ``allocation``, which a write of it must name.
        jobs: the jobs, in the order of submission.
        hosts: the hosts, in the order of their names, each with the version of its ``assigned``.
        secrets: the names of the secrets that users have given to the cluster.
        leader: the JSON object that describes the leader of the newest term, with its ``term``;
            empty before the first.
        queues: the queues by name; empty: the cluster has none.
    """

    settings: ClusterRecord
    allocation: AllocationRecord
    allocation_version: int
    jobs: tuple[StoredJob, ...]
    hosts: tuple[HostView, ...]
    leader: Mapping[str, Any]
    secrets: frozenset[str] = frozenset()
    queues: Mapping[str, QueueRecord] = field(default_factory=dict)


class ClusterStore:
    """The nodes of one cluster in ZooKeeper, read and written as records.

    Args:
        nodes: The nodes of the cluster, from :func:`edl.coordination.cluster.nodes.open_cluster`.
        by: Who writes, for the event log: a user and a machine.
        on_change: Called when something changes that a :meth:`snapshot` of this object has read, or
            when the connection is lost: call :meth:`snapshot` again then. It runs on kazoo's
            connection thread, so it must not block. None: nobody is called.

    Attributes:
        events: The event log of the cluster.
        by: Who writes, for the event log; it may be changed.
    """

    def __init__(self, nodes: ClusterNodes, by: str = "", on_change: OnChange = None) -> None:
        self.nodes = nodes
        self.paths = nodes.paths
        self.events = EventLogNodes(nodes, ClusterEvent)
        self.by = by
        self._on_change = on_change
        self._changes = 0
        self._jobs = JobReader(nodes, self._changed)

    def check_administrator(self, what: str) -> None:
        """Raise a UsageError if this store is a tenant's, who may not do ``what``, a verb."""

    # --- reading

    def snapshot(self) -> ClusterSnapshot:
        """Read the cluster as it is at one time; only what has changed since the last call is read.

        Whatever changes while it is read is read again, up to ``PASSES`` (20) times, or fewer if
        they take long. If others write without a pause, the last pass may have values of somewhat
        different times. What only the leader writes is of one time even then, if this process is
        the leader.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        began_s = time.monotonic()
        for number in range(PASSES):
            before = self._changes
            found = self._pass()
            if self._changes == before:  # no watch has fired, so all of it is still so
                break
            if number >= FEW_PASSES and time.monotonic() - began_s >= PASSES_S:
                break
        return found

    def look(self) -> ClusterSnapshot:
        """Read the cluster once, without watches, as a client does that looks at it.

        What others change meanwhile may be of somewhat different times.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        return self._pass(watch=False)

    def settings(self) -> ClusterRecord:
        """Read and return the settings of the cluster: its policy and time limits.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        path = self.paths.cluster
        answer = self.nodes.read(get(path))[0]
        if answer is None:
            raise self.nodes.unknown()
        return record(ClusterRecord, (path, answer[0]))

    def jobs(self) -> tuple[StoredJob, ...]:
        """Read the jobs of the cluster, ended ones too, and return them in the order of submission.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        names = self.nodes.read(children(self.paths.jobs))[0]
        if names is None:
            raise self.nodes.unknown()
        return self._jobs.read(names)

    def job(self, name: str) -> StoredJob:
        """Read the job called ``name``, which may have ended, and return it.

        Raises:
            UnknownJob: the cluster has no such job.
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        found = self._jobs.read([name])
        if not found:
            raise self.nodes.unknown_job(name)
        return found[0]

    def full_name(self, job: str) -> str:
        """Return the name under which the cluster has the job that a user calls ``job``."""
        return job

    def has_job(self, name: str) -> bool:
        """Return whether the cluster has a job called ``name``, also an ended one.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        return self.nodes.read(exists(self.paths.manifest(name)))[0] is not None

    def log_access(self, job: str) -> Access:
        """Return the name and the secret that sign requests for the logs of ``job``."""
        access = self.nodes.session.access
        assert access is not None
        return access

    def secret(self, job: str) -> str | None:
        """Return the secret of the runs of ``job``; None before its first run, and without the job.

        Args:
            job: The name of the job.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        path = self.paths.secret(job)
        secret = content(path, self.nodes.read(get(path))[0]).get("secret")
        return None if secret is None else str(secret)

    def secrets_and_measured(
        self, jobs: Iterable[str], watch: bool = True
    ) -> tuple[dict[str, str], dict[str, MeasuredThroughput]]:
        """Return the secrets of the runs of ``jobs``, and what former runs have measured.

        See :meth:`edl.coordination.cluster.jobs.JobReader.secrets_and_measured`.
        """
        return self._jobs.secrets_and_measured(jobs, watch)

    def hosts(self) -> tuple[HostView, ...]:
        """Return the hosts of the cluster, in the order of their names.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        names = self.nodes.read(children(self.paths.hosts))[0]
        if names is None:
            raise self.nodes.unknown()
        return self._hosts(names, None)

    def queues(self) -> dict[str, QueueRecord]:
        """Return the queues of the cluster by name, sorted; empty if it has none.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        return self._queues(self.nodes.read(children(self.paths.queues))[0] or (), None)

    def reasons(self) -> JobReasons:
        """Return what the leader says of each job; before its first plan, the default.

        It is read again only when it has changed: in a large cluster it is large.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        path = self.paths.reasons
        answer = self.nodes.read(get(path, ignore_changes))[0]
        found = record_or_none(JobReasons, path, answer)
        return JobReasons() if found is None else found

    def leases(self) -> tuple[LeaseTable, int]:
        """Read and return the record of the leases, and the version of its node.

        Before the first lease it is the default record, with the version -1.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        path = self.paths.leases
        answer = self.nodes.read(get(path))[0]
        if answer is None:
            return LeaseTable(), -1
        return record(LeaseTable, (path, answer[0])), answer[1].version

    def _changed(self) -> None:
        """Count a change of a node that was read, and call ``on_change``, if it is not None.

        It runs on kazoo's connection thread.
        """
        self._changes += 1
        if self._on_change is not None:
            self._on_change()

    def _pass(self, watch: bool = True) -> ClusterSnapshot:
        """Read each node once; with ``watch``, unchanged ones come from the session's cache.

        Raises:
            UnknownCluster: the cluster does not exist.
        """
        p, wake = self.paths, self._changed if watch else None
        single = (p.cluster, p.allocation, p.leader)
        *values, jobs, hosts, secrets, queues = self.nodes.read(
            *(get(path, wake) for path in single),
            *(children(path, wake) for path in (p.jobs, p.hosts, p.secrets, p.queues)),
        )
        if None in (*values, jobs, hosts):
            raise self.nodes.unknown()
        cluster, allocation, leader = values
        return ClusterSnapshot(
            settings=record(ClusterRecord, (p.cluster, cluster[0])),
            allocation=record(AllocationRecord, (p.allocation, allocation[0])),
            allocation_version=allocation[1].version,
            jobs=self._jobs.watched(jobs) if watch else self._jobs.read(jobs),
            hosts=self._hosts(hosts, wake),
            leader=content(p.leader, leader),
            secrets=frozenset(secrets or ()),
            queues=self._queues(queues or (), wake),
        )

    def _queues(self, names: Iterable[str], wake: OnChange) -> dict[str, QueueRecord]:
        """Return the queues called ``names`` that exist, by name, sorted.

        ``wake`` is called when one of the nodes changes; None: they are not watched.
        """
        paths = {name: self.paths.queue(name) for name in sorted(names)}
        if not paths:
            return {}
        answers = self.nodes.read(*(get(path, wake) for path in paths.values()))
        return {
            name: record(QueueRecord, (path, answer[0]))
            for (name, path), answer in zip(paths.items(), answers, strict=True)
            if answer is not None
        }

    def _hosts(self, names: Iterable[str], wake: OnChange) -> tuple[HostView, ...]:
        """Return the hosts called ``names`` that exist, sorted by name.

        Args:
            names: The names of the hosts, in any order.
            wake: Called when one of the nodes changes. None: the nodes are not watched.
        """
        p, known = self.paths, sorted(names)
        parts = [(p.assigned(name), p.report(name)) for name in known]
        reads = (
            (children(p.host(name), wake), *(get(path, wake) for path in part))
            for name, part in zip(known, parts, strict=True)
        )
        answers = self.nodes.read(*(read for three in reads for read in three))
        threes = list(in_threes(answers))
        offering = [
            n for n, three in zip(known, threes, strict=True) if "offer" in (three[0] or ())
        ]
        [offers] = self.nodes.read_groups([p.offer(name) for name in offering], wake=wake)
        offered = dict(offers)
        found = []
        for name, part, (nodes, assigned, report) in zip(known, parts, threes, strict=True):
            if nodes is not None and assigned and report:
                path = p.offer(name)
                found.append(
                    HostView(
                        name,
                        offer=record(HostOffer, (path, offered[path])) if path in offered else None,
                        drained="drained" in nodes,
                        assigned=record(HostAssignment, (part[0], assigned[0])),
                        version=assigned[1].version,
                        report=record_or_none(HostReport, part[1], report),
                    )
                )
        return tuple(found)

    # --- what users want

    def change_wanted(self, job: str, change: Callable[[Wanted], Wanted]) -> Wanted:
        """Change what users want of ``job``, log it, and return what is wanted afterwards.

        The change and its event are one transaction. If ``change`` returns an equal record, nothing
        is written, so a repeated call does no harm.

        Args:
            job: The name of the job.
            change: Gets what is wanted; returns what shall be wanted. It is called again when
                another process wrote meanwhile, and may raise an error to change nothing.

        Raises:
            UnknownJob: the cluster has no such job.
            UsageError: the job has ended or is being deleted, and ``change`` returns another goal
                than ``Goal.GONE``. To delete such a job is allowed.
            CoordinationError: ZooKeeper is away, or others keep changing the job.
        """
        return self._change_wanted(job, lambda before, _: change(before))

    def delete_job(self, job: str) -> Wanted:
        """Let ``job`` end for good or, if it has ended, let its records be removed.

        The change is logged. A repeated call does no harm.

        Returns:
            What is wanted of the job afterwards; ``removed`` says whether its records will go.

        Raises:
            UnknownJob: the cluster has no such job.
            CoordinationError: ZooKeeper is away, or others keep changing the job.
        """
        return self._change_wanted(job, deleted)

    def _change_wanted(self, job: str, change: Callable[[Wanted, JobLife], Wanted]) -> Wanted:
        """Change what users want of ``job``, as :meth:`change_wanted` does.

        ``change`` gets the state of the job, too. The errors are the same.
        """
        wanted, life = self.paths.wanted(job), self.paths.life(job)

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before, state = Wanted.from_json(found[wanted]), JobLife.from_json(found.get(life, {}))
            after = change(before, state)
            check_change(job, state, before, after)
            event = self.event(ClusterEventKind.WANTED, describe_change(before, after), job=job)
            return {wanted: after.to_json()}, event

        try:
            return Wanted.from_json(self.nodes.change_together((wanted, life), changed)[wanted])
        except UnknownCluster:
            raise self.nodes.unknown_job(job) from None

    def change_settings(self, change: Callable[[ClusterRecord], ClusterRecord]) -> ClusterRecord:
        """Change how the cluster decides, such as its policy, log it, and return the new settings.

        The change and its event are one transaction. If the settings stay the same, nothing is
        written.

        Args:
            change: Gets the settings and returns the new ones. It is called again when another
                process wrote meanwhile, and may raise an error to change nothing.

        Raises:
            UnknownCluster: the cluster does not exist.
            UnsupportedFormat: its records have a format that this edl does not write.
            CoordinationError: ZooKeeper is away, or others keep changing the settings.
        """
        path = self.paths.cluster

        def changed(found: Mapping[str, Values]) -> tuple[Mapping[str, Values], ClusterEvent]:
            before = found[path]
            settings = ClusterRecord.from_json(before)
            check_settings(self.paths.name, settings)
            after = change(settings).to_json()
            news = [f"{name} is {after[name]}" for name in after if after[name] != before.get(name)]
            return {path: after}, self.event(ClusterEventKind.POLICY, ", ".join(news))

        return ClusterRecord.from_json(self.nodes.change_together((path,), changed)[path])

    def set_drained(self, host: str, drained: bool) -> bool:
        """Say whether a host shall be without jobs, and log it; the leader acts on it later.

        Args:
            host: The name of the host.
            drained: True: the host gets no slots of jobs any more, and jobs give back those that
                they have there. False: it may have jobs again.

        Returns:
            True if this call has changed it; False if it was so already, and nothing was written.

        Raises:
            UsageError: the cluster has no such host.
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away, or the newest identity of the session is not the
                cluster's.
        """
        self.nodes.check_session()
        path = self.paths.drained(host)
        reason = f"host {host} is drained" if drained else f"host {host} may have jobs again"
        event = self.event(ClusterEventKind.DRAIN, reason, host=host)

        def build(transaction: TransactionRequest) -> None:
            if drained:
                transaction.create(path)
            else:
                transaction.delete(path)
            self.add_event(transaction, event)

        names, there = self.nodes.read(children(self.paths.hosts), exists(path))
        if names is None:
            raise self.nodes.unknown()
        if host not in names:
            raise UsageError(
                f"{self.nodes.what} has no host named {host!r}{_known_hosts(host, names)}"
            )
        if (there is not None) is drained:
            return False
        try:
            self.nodes.session.transact(f"drain {host}", build)
        except Refused as refused:
            if isinstance(refused.error, NodeExistsError | NoNodeError):
                return False  # another process was faster
            raise CoordinationError(f"{path} could not be written: {refused.error}") from refused
        return True

    def election(self, candidate: str, about: Mapping[str, Any]) -> Election:
        """Return the election of the cluster's leader, in which a controller is the candidate.

        Nothing is written before :meth:`Election.enter` is called.

        Args:
            candidate: The name of the controller, unique among controllers, without a slash.
            about: The JSON object that describes the controller, for the node of the leader.

        Raises:
            CoordinationError: the newest identity of the session is not the cluster's.
        """
        self.nodes.check_session()
        return Election(
            self.nodes.session,
            self.paths.election,
            candidate,
            leader_path=self.paths.leader,
            record=about,
            missing=self.nodes.unknown,
        )

    def controllers(self) -> list[str]:
        """Return the names of the controllers that stand for election, the leader first.

        Raises:
            UnknownCluster: the cluster does not exist.
            CoordinationError: ZooKeeper is away.
        """
        names = self.nodes.read(children(self.paths.election))[0]
        if names is None:
            raise self.nodes.unknown()
        return [candidate_of(name) for name in sorted(names, key=sequence)]

    def add_event(self, transaction: TransactionRequest, event: ClusterEvent) -> None:
        """Add to ``transaction`` a write that appends ``event`` to the cluster's event log."""
        transaction.create(f"{self.paths.events}/e-", encode(event.to_json()), sequence=True)

    def event(
        self,
        kind: ClusterEventKind,
        reason: str,
        job: str = "",
        host: str = "",
        state: LifeState | None = None,
        result: LifeResult | None = None,
        slots: Mapping[str, int] | None = None,
    ) -> ClusterEvent:
        """Return an event with the time now and this object's ``by``; write nothing.

        Args:
            kind: The kind of the event.
            reason: What has happened, and why, in a sentence.
            job: The name of the job that it is about; empty: none.
            host: The name of the host that it is about; empty: none.
            state: The state that the job has entered; None: it is another kind of event.
            result: How the job has ended; None: it has not.
            slots: Host -> slots that the job has; None: it is another kind of event.
        """
        return ClusterEvent(time.time(), kind, reason, job, host, self.by, state, result, slots)


def _known_hosts(host: str, names: Sequence[str]) -> str:
    """Return the end of an error message about ``host``, which the cluster does not have.

    It says which hosts (``names``) the cluster has, or those with the most similar names.
    """
    if not names:
        return "; start one with `edl host`"
    if len(names) <= FEW:
        return f"; its hosts: {', '.join(sorted(names))}"
    return f"; the nearest of {len(names)}: {', '.join(nearest(host, sorted(names)))}"
