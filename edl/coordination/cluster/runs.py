"""Read the runs of a cluster's jobs, which are ordinary edl jobs, and put the plan's view together.

Only the secret of a job opens the nodes of its runs. So a session that reads runs proves the
secrets of jobs, one after another, and no node of the cluster may be created in it afterwards.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from edl.coordination.access import Access
from edl.coordination.cluster.job_reader import StoredJob
from edl.coordination.cluster.store import ClusterSnapshot
from edl.coordination.nodes import content, record, record_or_none
from edl.coordination.paths import JobPaths
from edl.coordination.reads import OnChange, Read, acl, children, exists, get, ignore_changes
from edl.coordination.session import Session
from edl.core.cluster.job_life import LifeState
from edl.core.cluster.measured_throughput import MeasuredThroughput, measurements
from edl.core.cluster.run_records import RunRecords
from edl.core.cluster.view import ClusterView, HostView, JobView, RunView
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Desired, Generation, Host, Job
from edl.errors import AccessDenied, CoordinationError

logger = logging.getLogger(__name__)

PASSES = 20  # over nodes that others change meanwhile
NOTHING_MEASURED = MeasuredThroughput()
CLOSED: list[Any] = [()]  # in place of answers; the last one, a job's agents, is empty


class RunReader:
    """A reader of the runs of jobs, which reads again only what has changed.

    Args:
        session: The session to read with, which is that in which the leader writes into runs.
        on_change: Called when something has changed that a plan follows from; it runs on the
            connection thread, so it must not block. None: nobody is called.

    Attributes:
        unreadable: Job -> why the records of its run could not be read last, in a sentence. The
            code of a job has all rights on these records, and may write what it likes.
    """

    def __init__(self, session: Session, on_change: OnChange = None) -> None:
        self._session = session
        self._on_change = on_change
        self._changes = 0
        self._opened: dict[str, tuple[int, str]] = {}  # job -> (czxid of its root, secret)
        self._closed: dict[str, tuple[int, str]] = {}  # the same of jobs with another secret
        self.unreadable: dict[str, str] = {}

    def read(self, secrets: Mapping[str, str]) -> dict[str, RunRecords]:
        """Return the present runs of jobs, as they are at one time; jobs without one are left out.

        So are those whose records cannot be read; ``unreadable`` says why.

        The record ``assigned`` of each job is read before the records of its agents, as
        :mod:`edl.core.cluster.view` demands.

        Args:
            secrets: The secret of each job to read, by name. A job in ZooKeeper that has another
                secret is a stranger's, and left out.

        Raises:
            CoordinationError: ZooKeeper is away.
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
        """Read the runs of jobs once, and return them by name of the job.

        Nodes that are watched and have not changed come from the session's cache. ``secrets`` has
        the secret of each job to read, by name.
        """
        names = self._open(secrets)
        jobs = [JobPaths(name) for name in names]
        groups = self._answers([self._reads(paths) for paths in jobs])
        reads = [
            [get(f"{paths.hosts}/{name}", self._changed) for name in sorted(group[-1] or ())]
            for paths, group in zip(jobs, groups, strict=True)
        ]
        agents = self._answers(reads)
        found: dict[str, RunRecords] = {}
        self.unreadable = {}
        for paths, group, asked, own in zip(jobs, groups, reads, agents, strict=True):
            try:
                run = _records(paths, group, asked, own)
            except Exception as error:  # whatever the job's code has written
                logger.debug("the records of job %s", paths.name, exc_info=True)
                self.unreadable[paths.name] = f"the records of its run cannot be read: {error}"
                continue
            if run is not None:
                found[paths.name] = run
        return found

    def _answers(self, groups: list[list[Read]]) -> list[list[Any]]:
        """Return the answers to the reads of each job.

        If a node of a job is closed to its own secret, its answers are :data:`CLOSED`. Such jobs
        are found by halves, so they cost a few more requests and not one for each other job.
        """
        try:
            answers = iter(self._read(*(read for one in groups for read in one)))
        except AccessDenied:
            if len(groups) == 1:
                return [CLOSED]
            half = len(groups) // 2
            return self._answers(groups[:half]) + self._answers(groups[half:])
        return [[next(answers) for _ in one] for one in groups]

    def _reads(self, paths: JobPaths) -> list[Read]:
        """Return the reads of a job's nodes, without its agents' nodes, in a fixed order.

        The record ``assigned`` comes before the list of agents, as the plan demands.
        """
        wake, quiet = self._changed, ignore_changes
        return [
            get(paths.job, wake),
            children(paths.run, wake),
            get(paths.assigned, wake),
            get(paths.desired, wake),
            get(paths.generation, wake),
            get(paths.status, quiet),
            get(paths.learned, quiet),
            children(paths.hosts, wake),
        ]

    def _open(self, secrets: Mapping[str, str]) -> list[str]:
        """Prove the secrets of the jobs that exist; return the names of the jobs that they open."""
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
    paths: JobPaths, answers: list[Any], asked: list[Read], agents: list[Any]
) -> RunRecords | None:
    """Return the records of a run from the answers to the reads of its job's nodes.

    Args:
        paths: The paths of the job.
        answers: The answers to :meth:`RunReader._reads`, in that order.
        asked: The read of each agent's node.
        agents: The answers to these.

    Returns:
        The records; None if the job was removed meanwhile.

    Raises:
        CoordinationError: a node is closed, or holds no such record.
    """
    if answers is CLOSED or agents is CLOSED:
        raise CoordinationError("a node is closed to the job's own secret")
    job, runs, assigned, desired, generation, status, learned, _ = answers
    tokens = [name for name in runs or () if f"{paths.run}/{name}" != paths.creator]
    if not tokens or None in (job, assigned):
        return None
    return RunRecords(
        token=tokens[0],
        job=record(Job, (paths.job, job[0])),
        assigned=Assigned.from_json(content(paths.assigned, assigned)),
        version=assigned[1].version,
        desired=Desired.from_json(content(paths.desired, desired)),
        generation=record_or_none(Generation, paths.generation, generation),
        status=TrainingStatus.from_json(content(paths.status, status)),
        learned=ScalingProfile.from_json(content(paths.learned, learned)),
        agents=tuple(
            record(Host, (read.path, answer[0]))
            for read, answer in zip(asked, agents, strict=True)
            if answer
        ),
    )


def cluster_view(
    snapshot: ClusterSnapshot,
    runs: Mapping[str, RunRecords],
    kept: Mapping[str, MeasuredThroughput] = MappingProxyType({}),
    unreadable: Mapping[str, str] = MappingProxyType({}),
) -> ClusterView:
    """Return the jobs, hosts and settings of a cluster as the plan reads them, put together.

    Args:
        snapshot: the nodes of the cluster as they were read.
        runs: the records of the present or last run, by name of the job; jobs without one are not
            in it.
        kept: what former runs have measured, by name of the job.
        unreadable: job -> why the records of its run cannot be read. It counts as if it had what
            its hosts have for it.
    """
    jobs = []
    for job in snapshot.jobs:
        why = unreadable.get(job.name, "")
        try:
            view = job_view(job, runs.get(job.name), kept.get(job.name, NOTHING_MEASURED))
        except Exception as error:  # whatever the job's code has written
            logger.debug("the records of job %s", job.name, exc_info=True)
            why = f"the records of its run make no sense: {error!r}"
        jobs.append(_unreadable_view(job, snapshot.hosts, why) if why else view)
    return ClusterView(
        tuple(jobs),
        snapshot.hosts,
        snapshot.settings,
        snapshot.allocation,
        snapshot.secrets,
        snapshot.queues,
    )


def job_view(job: StoredJob, run: RunRecords | None, kept: MeasuredThroughput) -> JobView:
    """Return a job as a plan reads it.

    Args:
        job: the job, as the cluster has it.
        run: its present or last run; None: it has none.
        kept: what its former runs have measured.
    """
    if run is None and kept == NOTHING_MEASURED:
        return job.view
    _, measured = measurements(kept, run, job.order)
    return replace(job.view, run=None if run is None else run.view, measured=measured)


def _unreadable_view(job: StoredJob, hosts: Iterable[HostView], why: str) -> JobView:
    """Return a job of which the records of the run cannot be read, as a plan reads it.

    Its run seems to go on with the devices that hosts have for it, so it keeps them. If it is to
    stop, it has no run: its hosts end its processes.

    Args:
        job: the job, as the cluster has it.
        hosts: the hosts of the cluster, with what is assigned there.
        why: why they cannot be read, in a sentence.
    """
    life, run = job.view.life, None
    if life.state in (LifeState.STARTING, LifeState.RUNNING):
        entries = {host.name: host.assigned.jobs.get(job.name) for host in hosts}
        devices = {
            host: tuple(one for one in entry.devices if one not in entry.leaving)
            for host, entry in entries.items()
            if entry is not None and entry.run == life.run
        }
        run = RunView(life.run, trains=life.state is LifeState.RUNNING, devices=devices, version=-1)
    return replace(job.view, run=run, unreadable=why)
