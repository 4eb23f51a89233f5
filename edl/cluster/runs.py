"""Read the runs of a cluster's jobs, which are ordinary edl jobs, and put the plan's view together.

Only the secret of a job opens the nodes of its runs. So a session that reads runs proves the
secrets of jobs, one after another, and no node of the cluster may be created in it afterwards.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from types import MappingProxyType
from typing import Any, NamedTuple

from edl.cluster.lifecycle import LifeState
from edl.cluster.records import JobAssignment
from edl.cluster.store import FEW_PASSES, PASSES, PASSES_S, ClusterSnapshot, WorkQueue
from edl.cluster.view import (
    ClusterView,
    HostView,
    JobView,
    MeasuredThroughput,
    RunRecords,
    RunView,
    measurements,
    status_period_s,
)
from edl.errors import AccessDenied, CoordinationError, LeadershipLost
from edl.policy.scaling_profile import ScalingProfile
from edl.records import Assigned, Desired, Generation, Host, Job, JobState, TrainingStatus
from edl.text import counted
from edl.zookeeper.access import Access
from edl.zookeeper.election import FencedSession
from edl.zookeeper.nodes import content, record, record_or_none
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import OnChange, Read, acl, children, exists, get
from edl.zookeeper.session import Session

logger = logging.getLogger(__name__)
NOTHING_MEASURED = MeasuredThroughput()
CLOSED: list[Any] = [()]  # in place of answers; the last one, a job's agents, is empty


class _Progress(NamedTuple):
    about: list[Any]  # to the reads of the job's record and the names of its runs
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
        began_s, now_s = time.monotonic(), self._clock()
        read = {name: secret for name, (secret, _) in self._runs.items()}
        due = {name for name, secret in secrets.items() if read.get(name) != secret}
        due |= self.unreadable.keys()
        due |= {name for name in self._behind if not self._is_fresh(name, now_s)}
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

    def _read(self, *reads: Any) -> list[Any]:
        return self._session.read_all("read runs of jobs", reads)

    def _read_jobs(self, secrets: Mapping[str, str]) -> None:
        for name, secret in secrets.items():
            self._runs[name] = secret, None
            self.unreadable.pop(name, None)
        jobs = [JobPaths(name) for name in self._open(secrets)]
        self._behind -= secrets.keys() - {paths.name for paths in jobs}
        every = []
        for paths in jobs:
            wake = self._changed_jobs.wake(paths.name)
            every.append(
                [
                    get(paths.job, wake),
                    children(paths.run, wake),
                    # Before the agents, as edl.cluster.view demands.
                    get(paths.assigned, wake),
                    get(paths.desired, wake),
                    get(paths.generation, wake),
                    children(paths.hosts, wake),
                ]
            )
        groups = self._answers(every)
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
        now_s, due = self._clock(), []
        for paths, group in zip(jobs, groups, strict=True):
            is_fresh = self._is_fresh(paths.name, now_s)
            if group is not CLOSED and not (
                is_fresh and self._progress[paths.name].about == group[:2]
            ):
                due.append((paths, group))
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
        # Only `exists` watches a node that is absent.
        absent = [name for name, answer in found.items() if not answer]
        reads = [exists(JobPaths(name).root, self._changed_jobs.wake(name)) for name in absent]
        stats = zip(absent, self._read(*reads), strict=True)
        self._changed_jobs.put_back(name for name, stat in stats if found[name] is None and stat)
        marks = {name: (one[1].czxid, secrets[name]) for name, one in found.items() if one}
        unknown = [
            name
            for name, mark in marks.items()
            if mark not in (self._opened.get(name), self._closed.get(name))
        ]
        acls = self._session.read_open("read ACLs", [acl(JobPaths(name).root) for name in unknown])
        for name, answer in zip(unknown, acls, strict=True):
            access = Access(name, secrets[name])
            opens = answer is not None and access.opens(answer[0])
            kept = self._opened if opens else self._closed
            kept[name] = marks[name]
        return [name for name, mark in marks.items() if self._opened.get(name) == mark]


def _records(
    paths: JobPaths, answers: list[Any], asked: list[Read], agents: list[Any]
) -> RunRecords | None:
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


def job_view(job: JobView, run: RunRecords | None, kept: MeasuredThroughput) -> JobView:
    if run is None and kept == NOTHING_MEASURED:
        return job
    _, measured = measurements(kept, run, job.order)
    return replace(job, run=None if run is None else run.view, measured=measured)


class JobViews:
    """The views made last, taken again if they were made from the same objects."""

    def __init__(self) -> None:
        self._made: dict[str, tuple[JobView, RunRecords | None, MeasuredThroughput, JobView]] = {}

    def of(self, job: JobView, run: RunRecords | None, kept: MeasuredThroughput) -> JobView:
        """Return a job as a plan reads it; see `job_view`."""
        made = self._made.get(job.name)
        if made is None or not (made[0] is job and made[1] is run and made[2] is kept):
            made = self._made[job.name] = job, run, kept, job_view(job, run, kept)
        return made[3]

    def keep_only(self, names: Container[str]) -> None:
        self._made = {name: made for name, made in self._made.items() if name in names}


def _unreadable_view(job: JobView, hosts: Iterable[HostView], reason: str) -> JobView:
    # It seems to go on with the devices that hosts have for it. To stop, it has no run: its hosts
    # end its processes.
    life, run = job.life, None
    if life.state in (LifeState.STARTING, LifeState.RUNNING):
        devices = {
            host: tuple(one for one in entry.devices if one not in entry.leaving)
            for host, entry in _entries(job, hosts).items()
        }
        run = RunView(life.run, trains=life.state is LifeState.RUNNING, devices=devices, version=-1)
    return replace(job, run=run, unreadable=reason)


def _unread_view(job: JobView, hosts: Iterable[HostView], reason: str) -> JobView:
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
    return replace(job, run=run, unreadable=reason, is_unread=True)


def _entries(job: JobView, hosts: Iterable[HostView]) -> dict[str, JobAssignment]:
    entries = {host.name: host.assigned.jobs.get(job.name) for host in hosts}
    run = job.life.run
    return {host: one for host, one in entries.items() if one is not None and one.run == run}


# ------------------------------------------------------------
# Read and write the runs of a cluster in several sessions, each of which opens few jobs.
#
# A session that reads the nodes of jobs has proved their secrets, and ZooKeeper compares the owner
# of each node that is read with all of them: in a session with a thousand secrets a read takes ten
# times as long as in one with a few. A proof cannot be taken back, so such a session would become
# slower with each job. `RunSessions` divides the jobs among sessions, and closes those whose jobs
# have gone.
#
# A session that cannot be opened, or that has no connection, holds up no jobs of others: its own
# jobs move to another session, or are not read for some time.


MAX_JOBS = 100  # whose secrets one session proves, as long as so few sessions are enough:
MAX_SESSIONS = 16  # by default, ZooKeeper takes 60 connections from one machine
READERS = 4  # threads in which a new leader reads
SPARE = 2  # sessions beyond those that all jobs need, before the jobs of one move to others
RETRY_S = 30.0  # after another session could not be opened, before the next try; then the double,
MAX_RETRY_S = 600.0  # and so on up to this: a try may take as long as a connection may
MOVE_S = 10.0  # without a connection, before the jobs of a session move to another one
Say = Callable[[str], None]


class _Group:
    """Jobs that are read and written in one session, which is opened when it is used first."""

    def __init__(self, connect: Callable[[], FencedSession], on_change: Callable[[], None]) -> None:
        self._connect, self._on_change = connect, on_change
        self.jobs: set[str] = set()
        # how many jobs have been in the group, whose secrets the session has proved
        self.proved = 0
        # whether the session may not show what was written in others; whether it has jobs for which
        # another session could not be used
        self.is_behind = self.is_crowded = False
        self.session: FencedSession | None = None  # None: it has not been used yet
        # why the jobs could not be read last; None: they could
        self.error: CoordinationError | None = None
        self.failed_s = 0.0  # since when they cannot be read
        self._reader: RunReader | None = None

    @property
    def unreadable(self) -> Mapping[str, str]:
        return {} if self._reader is None else self._reader.unreadable

    @property
    def is_connected(self) -> bool:
        return self.session is not None and self.session.connected

    def add(self, job: str) -> None:
        self.jobs.add(job)
        self.proved += 1
        self.is_behind = True  # a former run of this name may have been written in another session

    def open(self) -> FencedSession:
        if self.session is None:
            self.session = self._connect()
        elif self.is_behind:
            self.session.catch_up()
        self.is_behind = False
        return self.session

    def read(self, secrets: Mapping[str, str], progress_s: float) -> dict[str, RunRecords]:
        # not waited for: it had no connection at the last read, and has none now
        if self.session is not None and self.error is not None and not self.is_connected:
            return {}
        try:
            session = self.open()
            if self._reader is None:
                self._reader = RunReader(session, self._on_change)
            found = self._reader.read({name: secrets[name] for name in self.jobs}, progress_s)
        except LeadershipLost:
            raise
        except CoordinationError as error:
            self.error = error
            return {}
        self.error = None
        return found


class RunSessions:
    """The sessions in which the leader of a cluster reads and writes runs, during one term."""

    def __init__(
        self,
        connect: Callable[[], FencedSession],
        on_change: Callable[[], None],
        say: Say,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        # One thread uses this object. `connect` is called by several at a time, and takes a bounded
        # time; `on_change` runs on a connection thread, and does not block.
        self._connect = connect
        self._on_change = on_change
        self._say = say
        self._clock = clock
        self._groups: list[_Group] = []  # the newest one gets the next job
        self._group_of: dict[str, _Group] = {}
        self._most_jobs = MAX_JOBS  # of a group
        self._pause_s = RETRY_S  # after the next session that cannot be opened
        self._retry_s = -math.inf  # not before that another session is opened
        self._has_said_crowded = False
        # job -> why the records of its run could not be read last, in a sentence
        self.unreadable: dict[str, str] = {}
        # job -> why its session could not read anything last, in a sentence
        self.unread: dict[str, str] = {}

    @property
    def sessions(self) -> list[FencedSession]:
        return [group.session for group in self._groups if group.session is not None]

    def session_of(self, job: str) -> FencedSession:
        group = self._group_of.get(job) or self._add(job)
        try:
            return group.open()
        except CoordinationError as error:
            if group.session is not None or isinstance(error, LeadershipLost):
                raise
            group.error = error
            if not self._move(group):
                raise
            return self._group_of[job].open()

    def read(self, secrets: Mapping[str, str], count: int) -> dict[str, RunRecords]:
        """Return the present runs of jobs; those whose session does not answer are in `unread`."""
        for name in self._group_of.keys() - secrets.keys():
            self._group_of.pop(name).jobs.discard(name)
        self._most_jobs = max(MAX_JOBS, math.ceil(len(secrets) / MAX_SESSIONS))
        for name in secrets:
            if name not in self._group_of:
                self._add(name)
        self._close_spare()
        self._divide()
        progress_s = status_period_s(0.0, count)
        found = self._read(self._groups, secrets, progress_s)
        moved = [self._move(group) for group in self._groups[:] if self._is_lost(group)]
        again = [group for group in self._groups if group in moved]
        found |= self._read(again, secrets, progress_s)
        self._note_errors()
        return found

    def close(self) -> None:
        """Close all sessions, in the background: ZooKeeper may be away."""
        sessions, self._groups, self._group_of = self.sessions, [], {}
        _close(sessions)

    def _read(
        self, groups: Sequence[_Group], secrets: Mapping[str, str], progress_s: float
    ) -> dict[str, RunRecords]:
        slow = sum(not group.is_connected for group in groups)
        # A new leader reads all: while ZooKeeper answers one session, others' answers are parsed.
        with ThreadPoolExecutor(READERS) if slow > 1 else nullcontext() as pool:
            each = map if pool is None else pool.map
            answers = list(each(lambda group: group.read(secrets, progress_s), groups))
        now_s = self._clock()
        for group in groups:
            group.failed_s = group.failed_s if group.error is not None else now_s
        return {name: run for found in answers for name, run in found.items()}

    def _is_lost(self, group: _Group) -> bool:
        if group.error is None or group.is_connected:
            return False
        return group.session is None or self._clock() - group.failed_s >= MOVE_S

    def _move(self, group: _Group) -> _Group | None:
        if group.session is None:
            self._note_refused()
        target = self._roomiest()
        if target is None:
            return None
        if not self._has_said_crowded:
            self._has_said_crowded = True
            self._say(
                f"{counted(len(group.jobs), 'job')} had to move to a session of others, in which "
                f"reads are slower: {group.error}; if ZooKeeper refuses connections, raise its "
                "maxClientCnxns"
            )
        self._groups.remove(group)
        for job in sorted(group.jobs):
            self._group_of[job] = target
            target.add(job)
        target.is_crowded = target.is_crowded or target.proved > self._most_jobs
        _close([] if group.session is None else [group.session])
        return target

    def _roomiest(self) -> _Group | None:
        readable = [one for one in self._groups if one.error is None and one.session is not None]
        return min(readable, key=lambda one: one.proved, default=None)

    def _note_refused(self) -> None:
        """Note that another session could not be opened, so that this is not tried again soon."""
        if self._clock() >= self._retry_s:
            self._retry_s = self._clock() + self._pause_s
            self._pause_s = min(MAX_RETRY_S, 2.0 * self._pause_s)

    def _divide(self) -> None:
        """Move jobs of a crowded group to another session, opening at most one, if it is time."""
        crowded = next((group for group in self._groups if group.is_crowded), None)
        if crowded is None or self._clock() < self._retry_s:
            return
        newest = self._groups[-1]
        if newest.is_crowded or newest.error is not None or newest.proved >= self._most_jobs:
            newest = _Group(self._connect, self._on_change)
            try:
                newest.open()
            except LeadershipLost:
                raise
            except CoordinationError as error:
                logger.info("no other session for runs can be opened: %s", error)
                self._note_refused()
                return
            self._groups.append(newest)
            self._pause_s = RETRY_S
        for job in sorted(crowded.jobs)[: self._most_jobs - newest.proved]:
            crowded.jobs.discard(job)
            self._group_of[job] = newest
            newest.add(job)

    def _note_errors(self) -> None:
        errors = [group.error for group in self._groups if group.error is not None]
        if errors and len(errors) == len(self._groups):
            raise errors[0].with_traceback(None)  # it may have been raised before
        self._has_said_crowded &= any(group.is_crowded for group in self._groups)
        had = bool(self.unread)
        self.unreadable, self.unread = {}, {}
        for group in self._groups:
            if group.error is None:
                self.unreadable |= group.unreadable
            else:
                why = f"its run cannot be read now: {group.error}"
                self.unread |= dict.fromkeys(sorted(group.jobs), why)
        if self.unread and not had:
            count = counted(len(self.unread), "job")
            self._say(f"{count} cannot be read now, and keep their slots: {errors[0]}")
        elif had and not self.unread:
            self._say("all jobs can be read again")

    def _add(self, job: str) -> _Group:
        group = self._groups[-1] if self._groups else None
        if group is None or group.error is not None or group.proved >= self._most_jobs:
            # While no other session can be opened, it is put where the fewest secrets were proved.
            group = self._roomiest() if self._clock() < self._retry_s else None
            if group is None:
                group = _Group(self._connect, self._on_change)
                self._groups.append(group)
            else:
                group.is_crowded = group.is_crowded or group.proved >= self._most_jobs
        self._group_of[job] = group
        group.add(job)
        return group

    def _close_spare(self) -> None:
        """Close sessions without jobs; while there are too many, move the jobs of one to others."""
        needed = math.ceil(len(self._group_of) / self._most_jobs)
        closed = [group for group in self._groups[:-1] if not group.jobs]
        self._groups = [group for group in self._groups if group not in closed]
        while len(self._groups) > needed + SPARE:
            fewest = min(self._groups[:-1], key=lambda group: len(group.jobs))
            self._groups.remove(fewest)
            closed.append(fewest)
            for job in sorted(fewest.jobs):
                self._add(job)  # which sees what was written in the other session
        _close([group.session for group in closed if group.session is not None])


def _close(sessions: Sequence[FencedSession]) -> None:
    def close() -> None:
        for session in sessions:
            session.close()

    if sessions:
        threading.Thread(target=close, name="edl-close-runs", daemon=True).start()
