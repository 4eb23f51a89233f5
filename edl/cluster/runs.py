"""Read the runs of a cluster's jobs, which are ordinary edl jobs, and put the plan's view together.

Only the secret of a job opens the nodes of its runs. So a session that reads runs proves the
secrets of jobs, one after another, and no node of the cluster may be created in it afterwards.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from edl.cluster.lifecycle import LifeState
from edl.cluster.records import JobAssignment
from edl.cluster.store import FEW_PASSES, PASSES, PASSES_S, ClusterSnapshot, StoredJob, WorkQueue
from edl.cluster.view import (
    ClusterView,
    HostView,
    JobView,
    MeasuredThroughput,
    RunRecords,
    RunView,
    measurements,
)
from edl.errors import AccessDenied, CoordinationError
from edl.policy.scaling_profile import ScalingProfile
from edl.records import Assigned, Desired, Generation, Host, Job, JobState, TrainingStatus
from edl.zookeeper.access import Access
from edl.zookeeper.nodes import content, record, record_or_none
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import OnChange, Read, acl, children, exists, get
from edl.zookeeper.session import Session

logger = logging.getLogger(__name__)

NOTHING_MEASURED = MeasuredThroughput()
CLOSED: list[Any] = [()]  # in place of answers; the last one, a job's agents, is empty


class _Progress(NamedTuple):
    """How far a run was, and how fast, when that was read last."""

    # the answers to the reads of the job's record and of the names of its runs by then
    about: list[Any]
    answers: list[Any]  # to the reads of its status and of what it has measured
    read_s: float


class RunReader:
    """A reader of the runs of jobs, which reads again only what has changed."""

    def __init__(
        self,
        session: Session,
        on_change: OnChange = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._session = session
        self._clock = clock
        self._progress_s = 0.0
        self._opened: dict[str, tuple[int, str]] = {}  # job -> (czxid of its root, secret)
        self._closed: dict[str, tuple[int, str]] = {}  # the same of jobs with another secret
        self._proved: dict[str, str] = {}  # job -> the secret that the session has proved
        self._runs: dict[str, tuple[str, RunRecords | None]] = {}  # job -> secret, run as last read
        # It changes all the time and may be some seconds old: else each change of one job would let
        # the leader read the progress of all others.
        self._progress: dict[str, _Progress] = {}  # of jobs whose runs train
        self._changed_jobs = WorkQueue(on_change)
        self._changed_progress = WorkQueue()
        self._behind: set[str] = set()  # jobs whose progress has changed since it was read
        # job -> why its records could not be read: a job's code may write what it likes there
        self.unreadable: dict[str, str] = {}

    def read(self, secrets: Mapping[str, str], progress_s: float = 0.0) -> dict[str, RunRecords]:
        """Return the present runs of jobs, all as of one time; `unreadable` has the others."""
        self._forget_all_but(secrets)
        self._progress_s = progress_s
        self._behind |= self._changed_progress.take()
        began_s, due = time.monotonic(), self._due(secrets)
        for number in range(PASSES):
            due |= self._changed_jobs.take()
            with self._changed_jobs.put_back_on_error(due):
                self._read_jobs({name: secrets[name] for name in sorted(due) if name in secrets})
            due = set()
            if not self._changed_jobs.has_names:  # no watch has fired, so all of it is still so
                break
            if number >= FEW_PASSES and time.monotonic() - began_s >= PASSES_S:
                break
        return {name: run for name, (_, run) in self._runs.items() if run is not None}

    def _forget_all_but(self, names: Container[str]) -> None:
        """Forget what was read of jobs whose names are not in `names`."""
        by_job: tuple[dict[str, Any], ...] = (
            *(self._proved, self._opened, self._closed),
            *(self._runs, self._progress, self.unreadable),
        )
        for known in by_job:
            for name in [name for name in known if name not in names]:
                del known[name]
        self._behind = {name for name in self._behind if name in names}
        self._changed_jobs.keep_only(names)
        self._changed_progress.keep_only(names)

    def _due(self, secrets: Mapping[str, str]) -> set[str]:
        """Return the jobs to read, though no watch on their records has fired."""
        new = {name for name, secret in secrets.items() if self._secret_read(name) != secret}
        now_s = self._clock()
        older = {name for name in self._behind if not self._is_fresh(name, now_s)}
        return {*new, *self.unreadable, *older}

    def _secret_read(self, job: str) -> str | None:
        return self._runs[job][0] if job in self._runs else None

    def _read(self, *reads: Any) -> list[Any]:
        return self._session.read_all("read runs of jobs", reads)

    def _read_jobs(self, secrets: Mapping[str, str]) -> None:
        """Read the runs of jobs, and keep what was found."""
        for name, secret in secrets.items():
            self._runs[name] = secret, None
            self.unreadable.pop(name, None)
        jobs = [JobPaths(name) for name in self._open(secrets)]
        self._behind -= secrets.keys() - {paths.name for paths in jobs}
        groups = self._answers([self._reads(paths) for paths in jobs])
        reads = [
            [
                get(f"{paths.hosts}/{name}", self._changed_jobs.wake(paths.name))
                for name in sorted(group[-1] or ())
            ]
            for paths, group in zip(jobs, groups, strict=True)
        ]
        agents = self._answers(reads)
        groups = self._with_progress(jobs, groups)
        for paths, group, asked, own in zip(jobs, groups, reads, agents, strict=True):
            name = paths.name
            try:
                run = _records(paths, group, asked, own)
            except Exception as error:  # whatever the job's code has written
                logger.debug("the records of job %s", name, exc_info=True)
                self.unreadable[name] = f"the records of its run cannot be read: {error}"
                run = None
            self._runs[name] = secrets[name], run
            if run is None or not run.trains:
                self._progress.pop(name, None)

    def _with_progress(self, jobs: list[JobPaths], groups: list[list[Any]]) -> list[list[Any]]:
        """Return the answers to the reads of each job, with its status and its measurements."""
        now_s = self._clock()
        due = [
            (paths, group)
            for paths, group in zip(jobs, groups, strict=True)
            if group is not CLOSED and not self._is_of_now(paths.name, group[:2], now_s)
        ]
        self._behind.difference_update(paths.name for paths, _ in due)
        wakes = [self._changed_progress.wake(paths.name) for paths, _ in due]
        reads = [
            [get(paths.status, wake), get(paths.learned, wake)]
            for (paths, _), wake in zip(due, wakes, strict=True)
        ]
        for (paths, group), answers in zip(due, self._answers(reads), strict=True):
            self._progress[paths.name] = _Progress(group[:2], answers, now_s)
        found = []
        for paths, group in zip(jobs, groups, strict=True):
            answers = CLOSED if group is CLOSED else self._progress[paths.name].answers
            found.append(CLOSED if answers is CLOSED else [*group, *answers])
        return found

    def _is_fresh(self, job: str, now_s: float) -> bool:
        known = self._progress.get(job)
        return known is not None and now_s - known.read_s < self._progress_s

    def _is_of_now(self, job: str, about: list[Any], now_s: float) -> bool:
        return self._is_fresh(job, now_s) and self._progress[job].about == about

    def _answers(self, groups: list[list[Read]]) -> list[list[Any]]:
        try:
            answers = iter(self._read(*(read for one in groups for read in one)))
        except AccessDenied:
            if len(groups) == 1:
                return [CLOSED]
            # Closed to its own secret. By halves, so it costs few more requests.
            half = len(groups) // 2
            return self._answers(groups[:half]) + self._answers(groups[half:])
        return [[next(answers) for _ in one] for one in groups]

    def _reads(self, paths: JobPaths) -> list[Read]:
        """Return the reads of a job's nodes, but for its agents and its progress, in order."""
        wake = self._changed_jobs.wake(paths.name)
        return [
            get(paths.job, wake),
            children(paths.run, wake),
            # Before the agents, as edl.cluster.view demands.
            get(paths.assigned, wake),
            get(paths.desired, wake),
            get(paths.generation, wake),
            children(paths.hosts, wake),
        ]

    def _open(self, secrets: Mapping[str, str]) -> list[str]:
        """Prove the secrets of jobs; return the names of those that exist and that they open."""
        names = sorted(secrets)
        new = [name for name in names if self._proved.get(name) != secrets[name]]
        self._session.identify(*(Access(name, secrets[name]) for name in new))
        self._proved.update((name, secrets[name]) for name in new)
        wakes = map(self._changed_jobs.wake, names)
        roots = [get(JobPaths(name).root, wake) for name, wake in zip(names, wakes, strict=True)]
        answers = [answer for (answer,) in self._answers([[root] for root in roots])]
        found = dict(zip(names, answers, strict=True))
        self._watch_absent({name: answer for name, answer in found.items() if not answer})
        marks = {name: (one[1].czxid, secrets[name]) for name, one in found.items() if one}
        unknown = [
            name
            for name, mark in marks.items()
            if mark not in (self._opened.get(name), self._closed.get(name))
        ]
        reads = [acl(JobPaths(name).root) for name in unknown]
        acls = self._session.read_open("read ACLs", reads)
        for name, answer in zip(unknown, acls, strict=True):
            access = Access(name, secrets[name])
            opens = answer is not None and access.opens(answer[0])
            kept = self._opened if opens else self._closed
            kept[name] = marks[name]
        return [name for name, mark in marks.items() if self._opened.get(name) == mark]

    def _watch_absent(self, jobs: Mapping[str, Any]) -> None:
        """Watch the roots of jobs that could not be read, for only `exists` watches such a node."""
        wakes = map(self._changed_jobs.wake, jobs)
        roots = (JobPaths(name).root for name in jobs)
        stats = self._read(*(exists(*one) for one in zip(roots, wakes, strict=True)))
        missing = zip(jobs.items(), stats, strict=True)
        self._changed_jobs.put_back(name for (name, one), stat in missing if one is None and stat)


def _records(
    paths: JobPaths, answers: list[Any], asked: list[Read], agents: list[Any]
) -> RunRecords | None:
    """Return the records of a run from the answers to the reads of its job's nodes."""
    if answers is CLOSED or agents is CLOSED:
        raise CoordinationError("a node is closed to the job's own secret")
    job, runs, assigned, desired, generation, _, status, learned = answers
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
    unread: Mapping[str, str] = MappingProxyType({}),
    views: JobViews | None = None,
) -> ClusterView:
    """Return the jobs, hosts and settings of a cluster as the plan reads them, put together."""
    jobs, of = [], job_view if views is None else views.of
    for job in snapshot.jobs:
        why = unreadable.get(job.name, "")
        try:
            view = of(job, runs.get(job.name), kept.get(job.name, NOTHING_MEASURED))
            if job.name in unread:
                view = _unread_view(view, snapshot.hosts, unread[job.name])
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
        tenants=snapshot.tenants,
    )


def job_view(job: StoredJob, run: RunRecords | None, kept: MeasuredThroughput) -> JobView:
    """Return a job as a plan reads it."""
    if run is None and kept == NOTHING_MEASURED:
        return job.view
    _, measured = measurements(kept, run, job.order)
    return replace(job.view, run=None if run is None else run.view, measured=measured)


class JobViews:
    """The views made last, taken again if they were made from the same objects."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[StoredJob, RunRecords | None, MeasuredThroughput, JobView]] = {}

    def of(self, job: StoredJob, run: RunRecords | None, kept: MeasuredThroughput) -> JobView:
        """Return a job as a plan reads it; see `job_view`."""
        made = self._made.get(job.name)
        if made is None or not (made[0] is job and made[1] is run and made[2] is kept):
            made = self._made[job.name] = job, run, kept, job_view(job, run, kept)
        return made[3]

    def keep_only(self, names: Container[str]) -> None:
        self._made = {name: made for name, made in self._made.items() if name in names}


def _unreadable_view(job: StoredJob, hosts: Iterable[HostView], why: str) -> JobView:
    """Return a job of which the records of the run cannot be read, as a plan reads it."""
    # It seems to go on with the devices that hosts have for it. To stop, it has no run: its hosts
    # end its processes.
    life, run = job.view.life, None
    if life.state in (LifeState.STARTING, LifeState.RUNNING):
        devices = {
            host: tuple(one for one in entry.devices if one not in entry.leaving)
            for host, entry in _entries(job.view, hosts).items()
        }
        run = RunView(life.run, trains=life.state is LifeState.RUNNING, devices=devices, version=-1)
    return replace(job.view, run=run, unreadable=why)


def _unread_view(job: JobView, hosts: Iterable[HostView], why: str) -> JobView:
    """Return a job whose run was not read now, though it may be readable, as a plan reads it."""
    # It seems to go on with all its devices, also those that it may have given back.
    life, run = job.life, None
    if life.state.has_run:
        halts = life.state is LifeState.HALTING
        run = RunView(
            life.run,
            JobState.STOPPING if halts else JobState.RUNNING,
            trains=life.state is not LifeState.STARTING,
            devices={host: entry.devices for host, entry in _entries(job, hosts).items()},
            version=-1,
        )
    return replace(job, run=run, unreadable=why, is_unread=True)


def _entries(job: JobView, hosts: Iterable[HostView]) -> dict[str, JobAssignment]:
    """Return what `hosts` have for the run that the record of `job` names, by host."""
    entries = {host.name: host.assigned.jobs.get(job.name) for host in hosts}
    run = job.life.run
    return {host: one for host, one in entries.items() if one is not None and one.run == run}
