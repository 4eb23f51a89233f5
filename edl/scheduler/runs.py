"""Read the runs of a cluster's jobs, and carry out what the plan orders of them.

A run is an ordinary edl job, whose nodes only its secret opens. So a session that reads or writes
runs proves the secrets of jobs, one after another, and no node of the cluster may be created in it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from edl.coordination.access import Access
from edl.coordination.desired import place_run
from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import delete_ended
from edl.coordination.nodes import JobNodes, content, record, record_or_none
from edl.coordination.paths import JobPaths
from edl.coordination.reads import OnChange, Read, acl, children, exists, get, ignore_changes
from edl.coordination.session import Session
from edl.core.cluster.manifest import JobManifest
from edl.core.cluster.orders import CreateRun, Order, PlaceRun, StopRun
from edl.core.cluster.run_records import RunRecords
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Generation, Host, Job, JobState
from edl.errors import AccessDenied, UnknownJob, UsageError

logger = logging.getLogger(__name__)

PASSES = 20  # over nodes that others change meanwhile


class RunReader:
    """A reader of the runs of jobs, which reads again only what has changed.

    Args:
        session: The session to read with, which is that in which the leader writes into runs.
        on_change: Called when something has changed that a plan follows from; it runs on the
            connection thread, so it must not block. None: nobody is called.
    """

    def __init__(self, session: Session, on_change: OnChange = None) -> None:
        self._session = session
        self._on_change = on_change
        self._changes = 0
        self._opened: dict[str, tuple[int, str]] = {}  # job -> (czxid of its root, secret)
        self._closed: dict[str, tuple[int, str]] = {}  # the same of jobs with another secret

    def read(self, secrets: Mapping[str, str]) -> dict[str, RunRecords]:
        """Return the present runs of jobs, as they are at one time; jobs without one are left out.

        The record ``assigned`` of each job is read before the records of its agents, as
        :mod:`edl.core.cluster.view` demands.

        Args:
            secrets: The secret of each job to read, by name. A job in ZooKeeper that has another
                secret is a stranger's, and left out.

        Raises:
            CoordinationError: ZooKeeper is away.
            AccessDenied: a stranger has taken the name of a job at this moment; read again.
        """
        found: dict[str, RunRecords] = {}
        for _ in range(PASSES):
            before = self._changes
            found = self._pass(secrets)
            if self._changes == before:  # no watch has fired, so all of it is still so
                break
        return found

    def _changed(self) -> None:
        """Count a change of what was read, and tell ``on_change``; on the connection thread."""
        self._changes += 1
        if self._on_change is not None:
            self._on_change()

    def _read(self, *reads: Any) -> list[Any]:
        return self._session.read_all("read runs of jobs", reads)

    def _pass(self, secrets: Mapping[str, str]) -> dict[str, RunRecords]:
        """Read the runs once, those nodes that are watched and have not changed from the cache."""
        names = self._open(secrets)
        jobs = [JobPaths(name) for name in names]
        reads = [self._reads(paths) for paths in jobs]
        answers = iter(self._read(*(read for one in reads for read in one)))
        groups = [[next(answers) for _ in one] for one in reads]
        agents = [
            [get(f"{paths.hosts}/{name}", self._changed) for name in sorted(group[-1] or ())]
            for paths, group in zip(jobs, groups, strict=True)
        ]
        answers = iter(self._read(*(read for one in agents for read in one)))
        found = {}
        for paths, group, own in zip(jobs, groups, agents, strict=True):
            hosts = [(read.path, next(answers)) for read in own]
            run = _records(paths, group, hosts)
            if run is not None:
                found[paths.name] = run
        return found

    def _reads(self, paths: JobPaths) -> list[Read]:
        """Return the reads of a job's nodes but for those of its agents, in the order of use."""
        wake, quiet = self._changed, ignore_changes
        return [
            get(paths.job, wake),
            children(paths.run, wake),
            get(paths.assigned, wake),
            get(paths.generation, wake),
            get(paths.status, quiet),
            get(paths.learned, quiet),
            children(paths.hosts, wake),
        ]

    def _open(self, secrets: Mapping[str, str]) -> list[str]:
        """Return the names of the jobs that exist and that their secrets open, and prove these."""
        names = sorted(secrets)
        stats = self._read(*(exists(JobPaths(name).root, self._changed) for name in names))
        marks = {
            name: (stat.czxid, secrets[name])
            for name, stat in zip(names, stats, strict=True)
            if stat is not None
        }
        new = [
            name
            for name, mark in marks.items()
            if mark not in (self._opened.get(name), self._closed.get(name))
        ]
        known = [Access(name, secrets[name]) for name in new]
        self._session.identify(*known)
        acls = self._session.read_open("read ACLs", [acl(JobPaths(name).root) for name in new])
        for access, answer in zip(known, acls, strict=True):
            opens = answer is not None and access.opens(answer[0])
            kept = self._opened if opens else self._closed
            kept[access.job] = marks[access.job]
        return [name for name, mark in marks.items() if self._opened.get(name) == mark]


def _records(
    paths: JobPaths, answers: list[Any], hosts: list[tuple[str, Any]]
) -> RunRecords | None:
    """Return the records of a run from the answers to the reads of its job's nodes.

    Args:
        paths: The paths of the job.
        answers: The answers to :meth:`RunReader._reads`, in that order.
        hosts: The path of each agent's node, and the answer to its read.

    Returns:
        The records; None if the job was removed meanwhile.
    """
    job, runs, assigned, generation, status, learned, _ = answers
    tokens = [name for name in runs or () if f"{paths.run}/{name}" != paths.creator]
    if not tokens or None in (job, assigned):
        return None
    return RunRecords(
        token=tokens[0],
        job=record(Job, (paths.job, job[0])),
        assigned=Assigned.from_json(content(paths.assigned, assigned)),
        version=assigned[1].version,
        generation=record_or_none(Generation, paths.generation, generation),
        status=TrainingStatus.from_json(content(paths.status, status)),
        learned=ScalingProfile.from_json(content(paths.learned, learned)),
        agents=tuple(record(Host, (path, answer[0])) for path, answer in hosts if answer),
    )


class RunWriter:
    """The writer of the runs of a cluster's jobs, during one term of the leader.

    Args:
        session: A session all of whose transactions are fenced by the term
            (:class:`edl.coordination.fenced_session.FencedSession`).
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def carry_out(self, order: Order, manifest: JobManifest, secret: str) -> str:
        """Do what an order says, as :mod:`edl.core.cluster.orders` defines it.

        Args:
            order: What to do.
            manifest: The manifest of the job.
            secret: The secret of the job's runs.

        Returns:
            Why the order was refused, with nothing written; empty if it was carried out.

        Raises:
            LeadershipLost: the term is over; nothing was written.
            CoordinationError: ZooKeeper is away; it may have been carried out or not.
        """
        access = Access(order.job, secret)
        self._session.identify(access)
        try:
            if isinstance(order, CreateRun):
                return self._create(order, manifest)
            if isinstance(order, PlaceRun):
                return self._place(order)
            return self._stop(order)
        except UsageError as error:
            return str(error)

    def remove(self, job: str, secret: str) -> bool:
        """Remove the nodes of the last run of a job; return whether they are gone.

        They stay if the run is not over, or if processes of it have not left.

        Raises:
            LeadershipLost: the term is over.
            CoordinationError: ZooKeeper is away.
        """
        self._session.identify(Access(job, secret))
        try:
            delete_ended(self._session, JobPaths(job))
        except AccessDenied:
            return True  # a stranger has the name
        except UsageError as error:
            logger.info("%s", error)
            return False
        return True

    def _create(self, order: CreateRun, manifest: JobManifest) -> str:
        """Create a run; see :class:`CreateRun`."""
        hosts = {host: len(devices) for host, devices in order.devices.items()}
        spec = replace(manifest.job_spec(), np=sum(hosts.values()))
        job = Job(name=order.job, spec=spec, created=time.time(), reserved=True)
        store = JobStore(self._session, order.job)
        store.create(job, hosts, devices=order.devices, run=order.run)
        return ""

    def _place(self, order: PlaceRun) -> str:
        """Let a run use other devices; see :class:`PlaceRun`."""
        nodes = JobNodes(self._session, order.job)
        nodes.belong_to(order.run)
        why = order.reason or "the cluster gives it other slots"
        if place_run(nodes, order.devices, order.version, why):
            return ""
        return f"the slots of job {order.job} were changed by others"

    def _stop(self, order: StopRun) -> str:
        """Stop a run; see :class:`StopRun`."""
        store = JobStore(self._session, order.job)
        store.nodes.belong_to(order.run)
        try:
            if order.checkpoint:
                store.set_job_state(JobState.STOPPING, order.reason)
            else:
                states = (JobState.RUNNING, JobState.STOPPING)
                store.set_job_state(JobState.STOPPED, order.reason, only_from=states)
        except UnknownJob as error:
            logger.info("%s", error)  # another run has its name, or none
        return ""
