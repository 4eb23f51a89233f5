"""Read the runs of a cluster's jobs, which are ordinary edl jobs, and put the plan's view together.

Only the secret of a job opens the nodes of its runs. So a session that reads runs proves the
secrets of jobs, one after another, and no node of the cluster may be created in it afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from edl.coordination.access import Access
from edl.coordination.cluster_jobs import StoredJob
from edl.coordination.cluster_store import ClusterSnapshot
from edl.coordination.nodes import content, record, record_or_none
from edl.coordination.paths import JobPaths
from edl.coordination.reads import OnChange, Read, acl, children, exists, get, ignore_changes
from edl.coordination.session import Session
from edl.core.cluster.measured_throughput import MeasuredThroughput, measurements
from edl.core.cluster.run_records import RunRecords
from edl.core.cluster.view import ClusterView, JobView
from edl.core.policy.scaling_profile import ScalingProfile
from edl.core.progress import TrainingStatus
from edl.core.records import Assigned, Desired, Generation, Host, Job

PASSES = 20  # over nodes that others change meanwhile
NOTHING_MEASURED = MeasuredThroughput()


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
        """Read the runs of jobs once, and return them by name of the job.

        Nodes that are watched and have not changed come from the session's cache. ``secrets`` has
        the secret of each job to read, by name.
        """
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
        agents=tuple(record(Host, (path, answer[0])) for path, answer in hosts if answer),
    )


def cluster_view(
    snapshot: ClusterSnapshot,
    runs: Mapping[str, RunRecords],
    kept: Mapping[str, MeasuredThroughput] = MappingProxyType({}),
) -> ClusterView:
    """Return the jobs, hosts and settings of a cluster as the plan reads them, put together.

    Args:
        snapshot: the nodes of the cluster as they were read.
        runs: the records of the present or last run, by name of the job; jobs without one are not
            in it.
        kept: what former runs have measured, by name of the job.
    """
    jobs = tuple(
        job_view(job, runs.get(job.name), kept.get(job.name, NOTHING_MEASURED))
        for job in snapshot.jobs
    )
    return ClusterView(
        jobs,
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
