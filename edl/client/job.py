"""One job as an object for Python programs, :class:`Job`: many commands of `edl` are methods."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import SupportsIndex

from edl import config
from edl.client import changes, profiling
from edl.client.changes import Explanation, Reclaimed, Resize
from edl.client.connection import SessionClient, choose_job, connected
from edl.client.waiting import OnMessage, ignore
from edl.errors import CoordinationError, EdlError, UnknownJob
from edl.events import DesiredDetails, Event, GenerationDetails, PolicyDetails, StragglerDetails
from edl.job.placement import Migration, device_sets, whole
from edl.job.profile import STEPS, Curve
from edl.job.snapshot import Snapshot
from edl.records import JobPolicy
from edl.status import JobStatus, JobSummary, job_status, job_summary, sorted_jobs
from edl.zookeeper.access import Access, candidates
from edl.zookeeper.nodes import current_run, job_names, unlock
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

TIMEOUT_S = 600.0
ANSWER_S = 60.0  # for the leader to answer
RECLAIM_S = 30.0  # for borrowed slots to be given back


# ------------------------------------------------------------
# Read from a job's event log which sizes the job has had, and what it trained with each.


@dataclass(frozen=True)
class SizeSpan:
    """A period in which a job had one number of workers."""

    from_s: float  # since the job's first event, as all times here
    to_s: float
    np: int  # above 0
    samples_per_s: float | None = None  # of all workers together; None: no event tells it


@dataclass(frozen=True)
class HistoryMark:
    """A decision or finding about a job's workers, as one event of its log tells it."""

    at_s: float
    by: str  # the text of a `RequestedBy`, or `straggler`
    reason: str


@dataclass(frozen=True)
class History:
    """The sizes that a job has had, and the decisions about it, in order of time."""

    job: str
    spans: tuple[SizeSpan, ...]  # without times without workers
    marks: tuple[HistoryMark, ...]


def history(job: str, events: Sequence[Event]) -> History:
    """Return the history of a job that all its `events` tell, which must be in order of time."""
    if not events:
        return History(job, (), ())
    first_s, last_s = events[0].time, events[-1].time
    sizes = [
        (event.time - first_s, len(event.details.members))
        for event in events
        if isinstance(event.details, GenerationDetails)
    ]
    spans = [
        SizeSpan(at_s, to_s, np)
        for (at_s, np), (to_s, _) in pairwise([*sizes, (last_s - first_s, 0)])
        if np
    ]
    return History(
        job,
        tuple(replace(span, samples_per_s=_rate(span, events, first_s)) for span in spans),
        tuple(mark for event in events if (mark := _mark(event, first_s)) is not None),
    )


def _rate(span: SizeSpan, events: Sequence[Event], first_s: float) -> float | None:
    said = None
    for event in events:
        at_s, details = event.time - first_s, event.details
        if isinstance(details, GenerationDetails) and span.from_s < at_s <= span.to_s:
            said = details.samples_per_s or said  # of the ring before
        elif isinstance(details, PolicyDetails) and span.from_s <= at_s <= span.to_s:
            said = (details.samples_per_s if details.np == span.np else None) or said
    return said


def _mark(event: Event, first_s: float) -> HistoryMark | None:
    details = event.details
    if isinstance(details, DesiredDetails):
        return HistoryMark(event.time - first_s, details.by, event.reason)
    if isinstance(details, StragglerDetails):
        return HistoryMark(event.time - first_s, "straggler", event.reason)
    return None


# ------------------------------------------------------------
# One job as an object.


class Job(SessionClient[JobStore]):
    """A client of the job ``name``, or of the only running job if ``name`` is None.

    The job is looked up at the first call, not when the object is made. Each call opens a ZooKeeper
    session and closes it; as a context manager the object keeps one session open for all calls. It
    must not be shared between threads.

    Args:
        name: the name of the job, as in `edl run --job`.
        zookeeper: the ZooKeeper servers, "host:port,host:port"; None for those of EDL_ZOOKEEPER or
            edl.toml, or else the local server of this user.
        secret: the secret of the job; None for the one in ``secret_file``.
        secret_file: a file, or a pipe, with the secret of the job, which other users cannot read;
            None for EDL_SECRET or EDL_SECRET_FILE, or the secret in this user's state directory.

    Besides the errors that are listed with it, each call may raise UnknownJob, AccessDenied,
    ZooKeeperUnreachable, and CoordinationError if ZooKeeper goes away during the call. All errors
    are EdlErrors.
    """

    # --- how many workers ---

    def scale(self, np: int, timeout_s: float | None = None) -> Resize:
        """Set the number of workers that the job shall have; the next switches bring it about.

        Args:
            np: the desired number of workers.
            timeout_s: the time in seconds to wait until exactly that many train: until new ones
                have joined the others, or surplus ones have left them; None to return as soon as
                the number is written.

        Returns:
            The desired workers by host, before and after.

        Raises:
            UsageError: the job does not run, or its limits or hosts do not allow that many workers.
            TimedOut: more or fewer train after ``timeout_s``; ``np`` are still desired.
            JobEnded: the job ended before that many workers trained.
            CoordinationError: the number may have been written or not, which the message says: look
                at :meth:`status` before you repeat the call.
        """
        wanted = whole(np)
        return self._resize(lambda _: wanted, timeout_s)

    def scale_out(self, n: int = 1, timeout_s: float | None = None) -> Resize:
        """Raise the desired number of workers by ``n``, at least 1.

        ``timeout_s``, the result and the errors are those of :meth:`scale`.
        """
        more = whole(n, least=1)
        return self._resize(lambda now: now + more, timeout_s)

    def scale_in(self, n: int = 1, timeout_s: float | None = None) -> Resize:
        """Lower the desired number of workers by ``n``, at least 1.

        Hosts without an agent lose their workers first, then the last hosts by name; on a host the
        highest ranks leave. :meth:`drain` removes a particular worker. ``timeout_s``, the result
        and the errors are those of :meth:`scale`.
        """
        fewer = whole(n, least=1)
        return self._resize(lambda now: now - fewer, timeout_s)

    def place(
        self,
        hosts: Mapping[str, SupportsIndex],
        devices: Mapping[str, Sequence[SupportsIndex]] | None = None,
        timeout_s: float | None = None,
    ) -> Resize:
        """Set how many workers the job has on each host, and which devices it may use there.

        The device with the number n is the host's GPU n, or the n-th entry (from 0) of the
        CUDA_VISIBLE_DEVICES with which its agent was started. A worker whose device is not in the
        set any more leaves; if as many workers are wanted as before, it leaves when its replacement
        on another device is ready.

        Args:
            hosts: the number of workers by host; a host that is not in it gets none. A host that
                gets more workers than it has needs an agent with as many slots.
            devices: the numbers of the devices that the job may use, by host. A host that is not in
                it (None: no host is) keeps its devices. Once a host of the job was given devices,
                no worker starts on a host that was given none.
            timeout_s: the time in seconds to wait until the workers train where they are placed;
                None to return as soon as the placement is written.

        Returns:
            The desired workers by host, before and after.

        Raises:
            UsageError: the job does not run, horovodrun places its workers, its limits or hosts do
                not allow the placement, or a host has fewer devices than workers.
            TimedOut: not all of them train there after ``timeout_s``; they are still desired.
            JobEnded: the job ended before they trained there.
            CoordinationError: the placement may have been written or not, which the message says.
        """
        placement, sets = changes.whole_placement(hosts), device_sets(devices)
        with self._store() as store:
            return changes.place(store, placement, sets, timeout_s)

    def _resize(self, size: Callable[[int], int], timeout_s: float | None) -> Resize:
        with self._store() as store:
            return changes.resize(store, size, timeout_s)

    def drain(self, worker: int, timeout_s: float = ANSWER_S) -> str:
        """Ask the leader to let the worker number ``worker`` (3 is w3) leave; return its answer.

        The answer is a sentence that the worker leaves with the next switch, which is not waited
        for. The worker is not replaced: with that switch one worker fewer is desired, unless its
        host has more workers than are desired there.

        Raises:
            UsageError: the job does not run, or the leader refuses.
            TimedOut: no leader answered within ``timeout_s`` seconds; the message says that the
                request was taken back, or why that was not possible.
            JobEnded: the job ended before the leader answered.
        """
        with self._store() as store:
            return changes.drain_worker(store, whole(worker), timeout_s)

    def drain_host(self, host: str, timeout_s: float = TIMEOUT_S) -> str:
        """Let a host leave with its workers and its agent; return a sentence that it has left.

        ``host`` is the name of the host. If the job may not have the number of workers that is
        left, others are started in idle slots of its other hosts, or more workers leave.

        Raises:
            UsageError: the job does not run or has no such host, horovodrun places its workers, or
                too few workers would be left.
            TimedOut: the host has not left within ``timeout_s`` seconds, but goes on leaving.
            JobEnded: the job ended before the host had left.
        """
        with self._store() as store:
            return changes.drain_host(store, host, timeout_s)

    def borrow(self, slots: int, host: str | None = None) -> Resize:
        """Let the job borrow idle slots, with one more worker in each, as far as its limits allow.

        It returns as soon as the request is written. The slots stay borrowed until
        :meth:`reclaim`, or until fewer workers are desired on their hosts.

        Args:
            slots: the number of slots, at least 1; fewer are borrowed if fewer are idle.
            host: the host of the slots; None for any of the job's hosts.

        Returns:
            The desired workers by host, before and after.

        Raises:
            UsageError: the job does not run, no slot is free, or the job may not have one more
                worker.
            CoordinationError: ZooKeeper is away; the request may have been written.
        """
        borrowed = whole(slots, least=1)
        with self._store() as store:
            return changes.borrow(store, borrowed, host)

    def reclaim(
        self,
        slots: int | None = None,
        deadline_s: float = RECLAIM_S,
        host: str | None = None,
        on_message: OnMessage = ignore,
    ) -> Reclaimed:
        """Take borrowed slots back from the job, and wait until they are free.

        The workers in these slots leave with a planned switch. A worker that has not left 2 s
        before the deadline (or after half of it, if it is below 4 s) is evicted and its process
        killed: the others train on.

        Args:
            slots: the number of slots; None for all that are borrowed.
            deadline_s: the time in seconds from the call until the slots have to be free.
            host: the host of the slots; None for any host, the last by name first.
            on_message: called, in this thread, with sentences about the progress.

        Returns:
            The slots by host, the time in which they became free, and the number of workers that
            are still desired.

        Raises:
            UsageError: the job does not run, not that many slots are borrowed, or too few workers
                would be left.
            Superseded: more workers were requested on these hosts during the wait.
            TimedOut: the slots were not seen to be free 10 s after the deadline; the request goes
                on.
            JobEnded: the job ended before the slots were free.
        """
        back = None if slots is None else whole(slots, least=1)
        with self._store() as store:
            return changes.reclaim(store, back, host, deadline_s, on_message)

    # --- where they are ---

    def migrate(
        self,
        from_host: str,
        to_host: str,
        np: int | None = None,
        timeout_s: float = TIMEOUT_S,
        on_message: OnMessage = ignore,
    ) -> Migration:
        """Move workers from one host to another, mostly in one switch; return when they have moved.

        The job keeps its number of workers. If all workers of the job move, one of the old workers
        stays until the new ones have the state, and leaves with the next switch.

        Args:
            from_host: the host that they leave.
            to_host: the host that they move to.
            np: the number of workers to move; None for all on that host.
            timeout_s: the time to wait, in seconds.
            on_message: called with sentences about the progress.

        Returns:
            The request (both hosts and the number of workers), the numbers of the generations in
            which workers moved, and for how many seconds the workers that stayed were held up
            (None: not known).

        Raises:
            UsageError: the job does not run, or the hosts or their slots do not allow the move.
            HostLost: the agent of ``to_host`` is gone; workers that had not moved stay where they
                are.
            Superseded: the number of workers on the two hosts was changed by another request, which
                stays in force.
            TimedOut: the workers have not moved within ``timeout_s``; the migration goes on.
            JobEnded: the job ended before the workers had moved.
        """
        moving = None if np is None else whole(np)
        with self._store() as store:
            return changes.migrate(store, from_host, to_host, moving, timeout_s, on_message)

    # --- its end ---

    def stop(self, timeout_s: float | None = None) -> str:
        """Let the job end after the step that runs; return a sentence about how it has ended.

        Args:
            timeout_s: the time to wait for the end, in seconds; None for as long as a stop and the
                last checkpoint may take.

        Raises:
            TimedOut: the job has not ended in that time; it still ends as soon as it can.
        """
        with self._store() as store:
            return changes.stop(store, timeout_s)

    def preempt(
        self,
        within_s: float = changes.PREEMPT_WITHIN_S,
        timeout_s: float | None = None,
        on_message: OnMessage = ignore,
    ) -> str:
        """Let the job save everything and end within a bound, to go on elsewhere.

        `edl run --resume` lets the job go on from there, perhaps on other hosts.

        Args:
            within_s: the bound, in seconds, until which the job saves and all its workers end.
                Workers that run then are killed.
            timeout_s: the time to wait for the end, in seconds; None for a little more than the
                bound.
            on_message: called with a sentence if the bound is probably too short, by the job's
                last save.

        Returns:
            A sentence that names the step that is saved, and where.

        Raises:
            UsageError: the bound is not positive, the job does not run, or it has no checkpoint to
                go on from. Nothing was changed.
            RequestError: the last steps were not saved within the bound; the message names the
                newest complete checkpoint.
            TimedOut: the job has not ended after ``timeout_s``; it goes on ending.
        """
        with self._store() as store:
            return changes.preempt(store, within_s, timeout_s, on_message)

    # --- what is known ---

    def status(self) -> JobStatus:
        """Return the state of the job, its workers and its progress, as ZooKeeper has them now.

        The job may have ended. `edl status --json` prints the result's ``to_json()``.
        """
        with self._store(ended=True) as store:
            return job_status(store.snapshot(), store.session.hosts)

    def run(self) -> str:
        """Return the token of the present run of the job: the start of the job that is the last.

        Each start of a job of the same name has another token. `edl agent --run` and
        :func:`edl.client.submit` take it.
        """
        with self._store(ended=True) as store:
            token = current_run(store.session, store.paths)
            if token is None:
                raise store.nodes.unknown()
            return token

    def profile(
        self,
        sizes: Iterable[int],
        steps: int = STEPS,
        timeout_s: float = TIMEOUT_S,
        on_message: OnMessage = ignore,
    ) -> Curve:
        """Measure the job's throughput with each number of workers in ``sizes``, the largest first.

        The job trains all the time. Afterwards, and also after an error or KeyboardInterrupt, it
        gets back the number of workers that it had. Only one profile of a job can run at a time.

        Args:
            sizes: the numbers of workers to measure, in any order; each is measured once.
            steps: the number of steps measured with each size.
            timeout_s: the time in seconds in which each size has to be reached and measured.
            on_message: called with sentences about the progress.

        Returns:
            The measured points, the fewest workers first. They are also stored with the job, in
            place of those of an earlier profile.

        Raises:
            UsageError: the job does not run, its limits or hosts do not allow a size, or another
                profile of it is under way.
            Superseded: another size was requested meanwhile, and stays in force; or hosts or
                workers joined or left, and only the other hosts get their workers back.
            TimedOut: a size was not measured in time. The points measured until then are stored
                with the job, see :meth:`curve`.
            JobEnded: the job ended before all sizes were measured; the points are stored, too.
            RequestError: the number of workers is not restored, because ZooKeeper is away.
        """
        wanted = [whole(np) for np in sizes]
        with self._store() as store:
            return profiling.profile(store, wanted, whole(steps), timeout_s, on_message)

    def curve(self) -> Curve | None:
        """Return the newest profile of the job, even an unfinished one; None if none is stored.

        The points of the fewest workers come first.
        """
        with self._store(ended=True) as store:
            return store.profile.get()

    # --- by which rule it finds its size ---

    def set_policy(self, text: str, source: str = "a program") -> JobPolicy:
        """Give the job a policy, the rules by which it chooses its size and handles slow workers.

        It replaces the policy that the job has, also one that is switched off or held. A policy
        without a table [size] is allowed: it leaves the number of workers to people.

        Args:
            text: the policy, in TOML.
            source: the name of the policy in messages.

        Returns:
            The policy as it is stored with the job.

        Raises:
            UsageError: the text is no valid policy; it has a size rule, and the job may have one
                size only; its custom rule does not exist; its [batch] or [learning_rate] differs
                from the one that the job began with; or the job does not run.
        """
        with self._store() as store:
            return changes.set_policy(store, text, source)

    def switch_policy_off(self) -> JobPolicy:
        """Switch the policy of the job off, so that the job keeps its present size.

        The result is the policy as it is stored then.

        Raises:
            UsageError: the job has no policy, its policy is off already, or the job does not run.
        """
        with self._store() as store:
            return changes.switch_off(store)

    def resume_policy(self) -> JobPolicy:
        """Let the job's policy decide again after it was switched off, or held by a user's request.

        The result is the policy as it is stored then.

        Raises:
            UsageError: the job has no policy, its policy is neither off nor held, or the job does
                not run.
        """
        with self._store() as store:
            return changes.resume(store)

    def explain_policy(self) -> Explanation:
        """Return the policy of the job, what the leader says about it, and the data behind that.

        Raises:
            UsageError: the job has no policy.
        """
        with self._store(ended=True) as store:
            return changes.explain(store)

    def history(self) -> History:
        """Return the job's sizes over time, its throughput, and who decided each change.

        Times are in seconds since the job's first event in the log. The history is made from the
        event log. It keeps only the newest events, some thousands, so the history of a long job
        does not reach back to its start.
        """
        with self._store(ended=True) as store:
            return history(store.name, [event for _, event in store.events.read_known()])

    # --- the way there ---

    @contextmanager
    def _store(self, ended: bool = False) -> Iterator[JobStore]:
        with self._kept_or(self._connect(ended)) as store:
            yield store

    @contextmanager
    def _connect(self, ended: bool = True) -> Iterator[JobStore]:
        secret = self._given_secret()
        with connected(self._zookeeper) as session:
            yield choose_job(session, self._name, ended, secret)


# ------------------------------------------------------------
# Read a job, or all jobs that this user may open, again and again at little cost.
#
# `ObservedJob` and `ObservedJobs` read only nodes that have changed, and say how many nodes the
# next look will read, so that their user can wait longer before it.

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
