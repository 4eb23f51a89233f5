"""Read and write the runs of a cluster in several sessions, each of which opens few jobs.

A session that reads the nodes of jobs has proved their secrets, and ZooKeeper compares the owner of
each node that is read with all of them: in a session with a thousand secrets a read takes ten times
as long as in one with a few. A proof cannot be taken back, so such a session would become slower
with each job. :class:`RunSessions` divides the jobs among sessions, and closes those whose jobs
have gone.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from edl.coordination.cluster.runs import RunReader
from edl.coordination.fenced_session import FencedSession
from edl.core.cluster.run_records import RunRecords, status_period_s

MOST_JOBS = 100  # whose secrets one session proves, as long as so few sessions are enough:
MOST_SESSIONS = 16  # by default, ZooKeeper takes 60 connections from one machine
READERS = 4  # threads in which a new leader reads
SPARE = 2  # sessions beyond those that all jobs need, before the jobs of one move to others


class _Group:
    """Jobs that are read and written in one session, which is opened when it is used first.

    Args:
        connect: Opens the session.
        on_change: Called when something has changed that was read.

    Attributes:
        jobs: Their names.
        proved: How many jobs have been in the group, whose secrets the session has proved.
        is_behind: Whether the session may not show what was written in others.
        session: The session; None: it has not been used yet.
    """

    def __init__(self, connect: Callable[[], FencedSession], on_change: Callable[[], None]) -> None:
        self._connect, self._on_change = connect, on_change
        self.jobs: set[str] = set()
        self.proved = 0
        self.is_behind = False
        self.session: FencedSession | None = None
        self._reader: RunReader | None = None

    @property
    def unreadable(self) -> Mapping[str, str]:
        """Job -> why the records of its run could not be read last."""
        return {} if self._reader is None else self._reader.unreadable

    def open(self) -> FencedSession:
        """Return the session, in which all is seen that was written before.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        if self.session is None:
            self.session = self._connect()
        elif self.is_behind:
            self.session.catch_up()
        self.is_behind = False
        return self.session

    def read(self, secrets: Mapping[str, str], progress_s: float) -> dict[str, RunRecords]:
        """Return the runs of the jobs of the group; see :meth:`RunReader.read`.

        Args:
            secrets: The secrets of these jobs, and of others.
            progress_s: How old the progress of a run may be, in seconds.
        """
        session = self.open()
        if self._reader is None:
            self._reader = RunReader(session, self._on_change)
        return self._reader.read({name: secrets[name] for name in self.jobs}, progress_s)


class RunSessions:
    """The sessions in which the leader of a cluster reads and writes runs, during one term.

    A job is read and written in one session, so what was written is seen by later reads. One thread
    uses this object.

    Args:
        connect: Opens a session that is fenced by the term, and has proved the cluster's secret. It
            may be called by several threads at a time.
        on_change: Called when something has changed that a plan follows from; it runs on a
            connection thread, so it must not block.

    Attributes:
        unreadable: Job -> why the records of its run could not be read last, in a sentence.
    """

    def __init__(self, connect: Callable[[], FencedSession], on_change: Callable[[], None]) -> None:
        self._connect = connect
        self._on_change = on_change
        self._groups: list[_Group] = []  # the newest one gets the next job
        self._group_of: dict[str, _Group] = {}
        self._most_jobs = MOST_JOBS  # of a group
        self.unreadable: dict[str, str] = {}

    @property
    def sessions(self) -> list[FencedSession]:
        """The sessions that are open."""
        return [group.session for group in self._groups if group.session is not None]

    def session_of(self, job: str) -> FencedSession:
        """Return the session in which the runs of ``job`` are read and written.

        Raises:
            CoordinationError: another session was needed, and ZooKeeper is away.
        """
        group = self._group_of.get(job)
        return (group or self._add(job)).open()

    def read(self, secrets: Mapping[str, str]) -> dict[str, RunRecords]:
        """Return the present runs of jobs, as :meth:`RunReader.read` does.

        The progress of a run that trains may be as old as that of new runs becomes before they
        write it again (:func:`status_period_s`), so few nodes are read in each second.

        Args:
            secrets: The secret of each job to read, by name.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        for name in self._group_of.keys() - secrets.keys():
            self._group_of.pop(name).jobs.discard(name)
        self._most_jobs = max(MOST_JOBS, math.ceil(len(secrets) / MOST_SESSIONS))
        for name in secrets:
            if name not in self._group_of:
                self._add(name)
        self._close_spare()
        progress_s = status_period_s(0.0, len(secrets))
        new = sum(group.session is None for group in self._groups)
        # A new leader reads all: while ZooKeeper answers one session, others' answers are parsed.
        with ThreadPoolExecutor(READERS) if new > 1 else nullcontext() as pool:
            each = map if pool is None else pool.map
            answers = list(each(lambda group: group.read(secrets, progress_s), self._groups))
        self.unreadable = {}
        for group in self._groups:
            self.unreadable |= group.unreadable
        return {name: run for found in answers for name, run in found.items()}

    def close(self) -> None:
        """Close all sessions, in the background: ZooKeeper may be away."""
        sessions, self._groups, self._group_of = self.sessions, [], {}
        _close(sessions)

    def _add(self, job: str) -> _Group:
        """Put a job into the newest group, or a new one if that has proved enough secrets."""
        if not self._groups or self._groups[-1].proved >= self._most_jobs:
            self._groups.append(_Group(self._connect, self._on_change))
        group = self._group_of[job] = self._groups[-1]
        group.jobs.add(job)
        group.proved += 1
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
                self._add(job).is_behind = True  # what was written in the other session
        _close([group.session for group in closed if group.session is not None])


def _close(sessions: Sequence[FencedSession]) -> None:
    """Close ``sessions`` in a thread, one after another."""

    def close() -> None:
        for session in sessions:
            session.close()

    if sessions:
        threading.Thread(target=close, name="edl-close-runs", daemon=True).start()
