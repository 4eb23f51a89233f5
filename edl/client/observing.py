"""Read a job, or all jobs that this user may open, again and again at little cost.

:class:`ObservedJob` and :class:`ObservedJobs` read only nodes that have changed, and say how many
nodes the next look will read, so that their user can wait longer before it.
"""

from __future__ import annotations

from edl import config
from edl.coordination.access import Access
from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import job_names, unlock
from edl.coordination.secrets import candidates
from edl.coordination.session import Session
from edl.core.events import Event
from edl.core.job_summary import JobSummary, job_summary, sorted_jobs
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, EdlError, UnknownJob

FIXED_READS = 3  # of a snapshot: what is read each time, changed or not


class ObservedJob:
    """One job that is read again and again, of which only changed nodes are read."""

    def __init__(self, store: JobStore) -> None:
        self.snapshot: Snapshot | None = None  # the job as it was read last; None before that
        self._store = store
        self._changes = 0

    @property
    def due_reads(self) -> int:
        """About how many nodes the next `read` reads; 0 if it would find nothing new."""
        ended = self.snapshot is not None and self.snapshot.job.state.over
        return 0 if ended and not self._changes else FIXED_READS + self._changes

    def read(self) -> Snapshot:
        """Return a snapshot of the job, which is read from ZooKeeper only if reads are due."""
        if self.snapshot is None or self.due_reads:
            changes, self._changes = self._changes, 0
            try:
                self.snapshot = self._store.snapshot(self._count)
            except EdlError:
                self._changes += changes  # those counted meanwhile stay
                raise
        return self.snapshot

    def events(self, count: int) -> list[Event]:
        """Return the `count` newest events of the job, oldest first."""
        return self._store.events.newest(count, self._count)

    def _count(self) -> None:
        self._changes += 1


class ObservedJobs:
    """All jobs in a ZooKeeper that a secret known here opens, to be read again and again."""

    def __init__(self, session: Session) -> None:
        self.locked = 0  # the number of jobs that were left out at the last `read`
        # job -> why its records could not be read then, as a sentence
        self.unreadable: dict[str, str] = {}
        self._session = session
        self._jobs: dict[str, ObservedJob] = {}
        self._closed: dict[str, list[Access]] = {}  # name -> what was tried in vain

    @property
    def due_reads(self) -> int:
        """About how many nodes the next `read` reads."""
        return 1 + sum(job.due_reads for job in self._jobs.values())

    def read(self) -> list[JobSummary]:
        """Read the jobs and return their summaries: those that run first, then the newest first."""
        names = job_names(self._session)
        self._jobs = {name: job for name, job in self._jobs.items() if name in names}
        self._open([name for name in names if name not in self._jobs])
        self.unreadable = {}
        found = []
        for name, job in list(self._jobs.items()):
            try:
                job.read()
            except UnknownJob:
                del self._jobs[name]  # it was deleted just now, or another job has taken its name
                continue
            except CoordinationError as error:
                if not self._session.connected:
                    raise
                self.unreadable[name] = str(error)
            if job.snapshot is not None:
                found.append(job_summary(job.snapshot))
        self.locked = len(names) - len(self._jobs)
        return sorted_jobs(found)

    def _open(self, names: list[str]) -> None:
        """Open the jobs called `names` whose secrets are known here; try each secret once."""
        given = config.load().secret
        known = {
            name: [Access(name, one) for one in candidates(config.state_dir(), name, given)]
            for name in names
        }
        new = {name: tried for name, tried in known.items() if tried != self._closed.get(name, [])}
        self._closed = known
        if new:
            opened = unlock(self._session, [one for tried in new.values() for one in tried])
            self._jobs |= {name: ObservedJob(JobStore(self._session, name)) for name in opened}
