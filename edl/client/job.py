"""One running job, for programs: what the verbs of the command line do, as calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Self

from edl.client import borrowing, draining, migrating, policies, profiling, scaling
from edl.client.borrowing import Reclaimed
from edl.client.connection import choose_job, connected
from edl.client.policies import Explanation
from edl.client.scaling import Resize
from edl.client.waiting import OnMessage, ignore
from edl.coordination.job_store import JobStore
from edl.core.job.migration import Migration
from edl.core.job.placement import whole
from edl.core.job.profile import STEPS, Curve
from edl.core.policy.history import History, history
from edl.core.records import JobPolicy
from edl.core.status import JobStatus, job_status

TIMEOUT_S = 600.0
ANSWER_S = 60.0  # for the leader to answer
RECLAIM_S = 30.0  # for borrowed slots to be given back


class Job:
    """The job ``name``; None: the only one that runs.

    Each call opens a ZooKeeper session and closes it; as a context manager the job keeps one open
    for all calls. A job is not to be shared between threads.

    Args:
        name: as in `edl run --job`.
        zookeeper: "host:port,host:port"; None: EDL_ZOOKEEPER, else the local one of this user.
        secret: the job's; None: EDL_SECRET, or what this user's state directory has.

    Every call may raise, besides what it says itself: UnknownJob and AccessDenied,
    ZooKeeperUnreachable, and CoordinationError when ZooKeeper goes away meanwhile. All errors are
    EdlErrors.
    """

    def __init__(
        self, name: str | None = None, zookeeper: str | None = None, *, secret: str | None = None
    ) -> None:
        self._name = name
        self._zookeeper = zookeeper
        self._secret = secret
        self._open = ExitStack()
        self._kept: JobStore | None = None

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.enter_context(self._open.pop_all())  # what is kept already
            self._kept = stack.enter_context(self._connect())
            self._open = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _keep(self, resources: ExitStack) -> None:
        """Keep ``resources`` open until :meth:`close`, or the end of a ``with`` block."""
        self._open = resources

    def close(self) -> None:
        """Close the session that the context manager keeps. Idempotent."""
        self._kept = None
        self._open.close()

    # --- how many workers ---

    def scale(self, np: int, timeout_s: float | None = None) -> Resize:
        """Let the job have ``np`` workers.

        Args:
            timeout_s: wait for so long until they train; None: return as soon as it is written
                down.

        Raises:
            UsageError: the job does not run, or its limits or hosts do not allow that many.
            TimedOut, JobEnded: they do not train yet; they are still wanted.
            CoordinationError: it may have been written down or not, the message says so: look at
                :meth:`status` before you ask for more or fewer again.
        """
        wanted = whole(np)
        return self._resize(lambda _: wanted, timeout_s)

    def scale_out(self, n: int = 1, timeout_s: float | None = None) -> Resize:
        """Let the job have ``n`` workers more than are wanted now; otherwise as :meth:`scale`."""
        more = whole(n, least=1)
        return self._resize(lambda now: now + more, timeout_s)

    def scale_in(self, n: int = 1, timeout_s: float | None = None) -> Resize:
        """Let the job have ``n`` workers fewer than are wanted now; otherwise as :meth:`scale`.

        Those with the highest ranks on the last host by name leave; :meth:`drain` names one.
        """
        fewer = whole(n, least=1)
        return self._resize(lambda now: now - fewer, timeout_s)

    def _resize(self, size: Callable[[int], int], timeout_s: float | None) -> Resize:
        with self._store() as store:
            return scaling.resize(store, size, timeout_s)

    def drain(self, worker: int, timeout_s: float = ANSWER_S) -> str:
        """Let the worker ``worker`` (3 is w3) leave; the leader's answer.

        Raises:
            UsageError: the job does not run, or the leader refuses.
            TimedOut: no leader answered; the message says that the request is taken back, or why
                it cannot be.
            JobEnded: the job ended before.
        """
        with self._store() as store:
            return draining.drain_worker(store, whole(worker), timeout_s)

    def drain_host(self, host: str, timeout_s: float = TIMEOUT_S) -> str:
        """Let the host leave, with its workers and its agent; that it has left.

        Raises:
            UsageError: the job does not run, has no such host, or too few workers would be left.
            TimedOut: it has not left yet, but goes on.
            JobEnded: the job ended before.
        """
        with self._store() as store:
            return draining.drain_host(store, host, timeout_s)

    def borrow(self, slots: int, host: str | None = None) -> Resize:
        """Lend idle slots to the job for a while: it has a worker more for each, as it can.

        Until :meth:`reclaim`, or until fewer workers are wanted there.

        Args:
            host: whose slots; None: of any of the job's hosts.

        Raises:
            UsageError: the job does not run, no slot is free, or it may not have one more.
            CoordinationError: as :meth:`scale`.
        """
        borrowed = whole(slots, least=1)
        with self._store() as store:
            return borrowing.borrow(store, borrowed, host)

    def reclaim(
        self,
        slots: int | None = None,
        deadline_s: float = RECLAIM_S,
        host: str | None = None,
        on_message: OnMessage = ignore,
    ) -> Reclaimed:
        """Take ``slots`` (None: all) of the borrowed ones back; how long that took.

        Their workers leave with a planned switch. Who has not left 2 s before the deadline (after
        half of one below 4 s) is evicted, and its process killed: the others train on.

        Args:
            deadline_s: until when the slots have to be free, in seconds from now.
            host: whose slots; None: of any host.
            on_message: called with sentences about how far it is.

        Raises:
            UsageError: the job does not run, not that many are borrowed, or too few would be left.
            Superseded: somebody has asked for more workers there meanwhile.
            TimedOut: nobody has seen them leave, 10 s after the deadline; it goes on.
            JobEnded: the job ended before.
        """
        back = None if slots is None else whole(slots, least=1)
        with self._store() as store:
            return borrowing.reclaim(store, back, host, deadline_s, on_message)

    # --- where they are ---

    def migrate(
        self,
        from_host: str,
        to_host: str,
        np: int | None = None,
        timeout_s: float = TIMEOUT_S,
        on_message: OnMessage = ignore,
    ) -> Migration:
        """Move ``np`` workers (None: all) of one host to another, in one switch.

        Returns when they have moved. When all workers of the job move, one of them brings the
        state and leaves with the next switch.

        Args:
            on_message: called with sentences about how far it is.

        Raises:
            UsageError: the job does not run, the hosts or their slots do not allow it.
            HostLost: the agent of ``to_host`` is gone; who had not moved stays.
            Superseded: somebody else has changed how many workers the two hosts shall have.
            TimedOut: it goes on.
            JobEnded: the job ended before.
        """
        moving = None if np is None else whole(np)
        with self._store() as store:
            return migrating.migrate(store, from_host, to_host, moving, timeout_s, on_message)

    # --- what is known ---

    def status(self) -> JobStatus:
        """How the job stands; `edl status --json` prints its ``to_json()``."""
        with self._store(ended=True) as store:
            return job_status(store.snapshot(), store.session.hosts)

    def profile(
        self,
        sizes: Iterable[int],
        steps: int = STEPS,
        timeout_s: float = TIMEOUT_S,
        on_message: OnMessage = ignore,
    ) -> Curve:
        """Step the job through ``sizes``, downwards, and measure its throughput in each.

        The job trains on all the time; then it has the size back that it had, also after an
        error or KeyboardInterrupt. One profile of a job at a time.

        Args:
            steps: measured in each size.
            timeout_s: for each size, to be reached and measured.
            on_message: called with sentences about how far it is.

        Raises:
            UsageError: the job does not run, its limits or hosts do not allow a size, or another
                profile of it is under way.
            Superseded: somebody has asked for another size, which stays; or hosts or workers came
                or left, then the others are wanted again.
            TimedOut, JobEnded: what was measured until then is kept, see :meth:`curve`.
        """
        wanted = [whole(np) for np in sizes]
        with self._store() as store:
            return profiling.profile(store, wanted, whole(steps), timeout_s, on_message)

    def curve(self) -> Curve | None:
        """The newest profile that is kept with the job; None: there is none."""
        with self._store(ended=True) as store:
            return store.profile.get()

    # --- by which rule it finds its size ---

    def set_policy(self, text: str, source: str = "a program") -> JobPolicy:
        """Let the job follow the policy in ``text`` (TOML) from now on.

        Args:
            source: named in messages.

        Raises:
            UsageError: it cannot be read, it can reach no other size, or the job does not run.
        """
        with self._store() as store:
            return policies.set_policy(store, text, source)

    def switch_policy_off(self) -> JobPolicy:
        """Let the job keep the size that it has.

        Raises:
            UsageError: it has no policy, or the policy is off, or the job does not run.
        """
        with self._store() as store:
            return policies.switch_off(store)

    def resume_policy(self) -> JobPolicy:
        """Let the policy decide again, which was off, or held by a person's word.

        Raises:
            UsageError: there is none, or it decides anyway, or the job does not run.
        """
        with self._store() as store:
            return policies.resume(store)

    def explain_policy(self) -> Explanation:
        """What the policy decides from now.

        Raises:
            UsageError: the job has none.
        """
        with self._store(ended=True) as store:
            return policies.explain(store)

    def history(self) -> History:
        """The sizes that the job has had, its throughput, and who decided when, by its event log.

        The log keeps the newest events, some thousands.
        """
        with self._store(ended=True) as store:
            return history(store.name, [event for _, event in store.events.read()])

    # --- the way there ---

    @contextmanager
    def _store(self, ended: bool = False) -> Iterator[JobStore]:
        """``ended``: with no name, the only job may have ended."""
        if self._kept is not None:
            yield self._kept
            return
        with self._connect(ended) as store:
            yield store

    @contextmanager
    def _connect(self, ended: bool = True) -> Iterator[JobStore]:
        with connected(self._zookeeper) as session:
            yield choose_job(session, self._name, ended, self._secret)
