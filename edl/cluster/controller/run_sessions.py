"""Read and write the runs of a cluster in several sessions, each of which opens few jobs.

A session that reads the nodes of jobs has proved their secrets, and ZooKeeper compares the owner of
each node that is read with all of them: in a session with a thousand secrets a read takes ten times
as long as in one with a few. A proof cannot be taken back, so such a session would become slower
with each job. :class:`RunSessions` divides the jobs among sessions, and closes those whose jobs
have gone.

A session that cannot be opened, or that has no connection, holds up no jobs of others: its own jobs
move to another session, or are not read for some time.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

from edl.cluster.runs import RunReader
from edl.cluster.view import RunRecords, status_period_s
from edl.errors import CoordinationError, LeadershipLost
from edl.text import counted
from edl.zookeeper.election import FencedSession

logger = logging.getLogger(__name__)

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
        """Job -> why the records of its run could not be read last."""
        return {} if self._reader is None else self._reader.unreadable

    @property
    def is_connected(self) -> bool:
        """Whether the session is open and has a connection to ZooKeeper now."""
        return self.session is not None and self.session.connected

    def add(self, job: str) -> None:
        """Put a job into the group, which then catches up before it is used."""
        self.jobs.add(job)
        self.proved += 1
        self.is_behind = True  # a former run of this name may have been written in another session

    def open(self) -> FencedSession:
        """Return the session, in which all is seen that was written before."""
        if self.session is None:
            self.session = self._connect()
        elif self.is_behind:
            self.session.catch_up()
        self.is_behind = False
        return self.session

    def read(self, secrets: Mapping[str, str], progress_s: float) -> dict[str, RunRecords]:
        """Return the runs of the jobs of the group, none if ZooKeeper does not answer."""
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
        """Return the session in which the runs of `job` are read and written."""
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
        """Return the runs of the jobs of `groups`; see `_Group.read`."""
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
        """Return whether the jobs of `group`, which fails, are to be read in another session."""
        if group.error is None or group.is_connected:
            return False
        return group.session is None or self._clock() - group.failed_s >= MOVE_S

    def _move(self, group: _Group) -> _Group | None:
        """Move the jobs of `group`, which fails, to another one, and close it."""
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
        """Set what could not be read, and say it if that begins or ends."""
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
        """Put a job into the newest group, or a new one if that has proved enough secrets."""
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
    """Close `sessions` in a thread, one after another."""

    def close() -> None:
        for session in sessions:
            session.close()

    if sessions:
        threading.Thread(target=close, name="edl-close-runs", daemon=True).start()
