"""Hold the data that the daemon's threads and the training thread of a worker exchange.

There is one :class:`SharedState` in each worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from edl.clock import SYSTEM, Clock, Condition
from edl.core.events import Event
from edl.core.job.ending import Preemption, save_limit_s
from edl.core.job.fits import NO_FITS, ScriptFits
from edl.core.job.signature import Arithmetic, Signature
from edl.core.learning_meter import LearningMeter
from edl.core.policy.file import PolicyFile, parse_policy
from edl.core.policy.ring_report import NO_REPORT, RingReport
from edl.core.progress import WorkerProgress
from edl.core.records import END, NO_POLICY, Generation, JobPolicy, JobState, Leader
from edl.core.step_totals import StepTotals
from edl.errors import UsageError, WorkerEvicted


@dataclass
class SharedState:
    """The latest information that a worker's training thread and its daemon's threads exchange.

    The training thread reads the newest generations, the leader, an eviction, the end of the job,
    and its policy. The daemon reads the progress, the events to log, and the speeds from which a
    policy decides. Any thread may call the methods; an attribute is changed by setting a new value.

    Attributes:
        worker: the id of this worker; -1: not known yet.
        clock: the clock of all times in this object.
        keeps_events: whether events are kept until the daemon writes them; False: they are dropped,
            since the job has no log.
        policy: the job's policy while it is switched on, else None.
        written: the job's policy, also while it is switched off; None: there is none, or none that
            can be read.
        ring: the newest report on the workers' speeds in this worker's ring, for the policy.
        evicted: the ids of all workers that the leader has evicted.
        epoch: the epoch that this worker's unchanged script trains (:mod:`edl.transparent`), by
            the script's own number; None: there is none.
        arithmetic: returns what the last bits of this worker's results depend on, for newcomers.
        signature: returns the shape of each tensor of this worker's model by name, for newcomers;
            an empty dict before the script has a model.
        fits: the fits (calls of ``fit``) that this worker's script has done and begun, for
            newcomers.
        step_totals: the number and the times of all steps of this worker, for its metrics.
        learning: samples of this worker's loss and learning rate, for the leader.
        on_event: called with each event that this worker logs, in the thread that logs it.
    """

    worker: int = -1
    clock: Clock = SYSTEM
    keeps_events: bool = True  # False: there is no job log, so events are dropped
    policy: PolicyFile | None = None
    written: PolicyFile | None = None
    ring: RingReport = NO_REPORT
    evicted: frozenset[int] = frozenset()  # all workers that the leader has evicted
    signature: Callable[[], Signature] = dict  # of this worker's model, for newcomers
    epoch: int | None = None  # of an unchanged script, for newcomers
    arithmetic: Callable[[], Arithmetic] = Arithmetic  # of logical workers, for newcomers
    fits: ScriptFits = NO_FITS  # of this worker's script, for newcomers
    step_totals: StepTotals = field(default_factory=StepTotals)
    learning: LearningMeter = field(default_factory=LearningMeter)
    on_event: Callable[[Event], None] = lambda _: None
    _lock: Condition = field(init=False)
    _generations: dict[int, Generation] = field(default_factory=dict)
    _announced_at: float = 0.0
    _leader: Leader | None = None
    _led_since: float = 0.0
    _job_state: JobState = JobState.RUNNING
    _job_reason: str = ""
    _preemption: Preemption | None = None
    _job_policy: JobPolicy = NO_POLICY
    _requested_batch: int = 0
    _evicted: str | None = None
    _progress: WorkerProgress = field(init=False)
    _events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Create the lock and an empty progress, both with the clock that was given."""
        self._lock = self.clock.condition()
        self._progress = WorkerProgress(updated_at=self.clock.now_s())

    # --- to the training thread ---

    def announce(self, generation: Generation) -> None:
        """Hand a generation that the leader wrote, or the end of the job, to the training thread.

        It is kept beside earlier ones, and threads in :meth:`wait_for_generation` wake up. A
        generation without members is the end of the job; its number is replaced by
        :data:`edl.core.records.END`, so that it is the same on all workers.
        """
        if not generation.members:
            generation = replace(generation, number=END)
        with self._lock:
            self._generations[generation.number] = generation
            self._announced_at = self.clock.now_s()
            self._lock.notify_all()

    def leads(self, leader: Leader | None) -> None:
        """Note which worker leads, as the daemon sees it now; None: no leader is known.

        If the leader or its term has changed, :meth:`requested_batch` is 0 again.
        """
        with self._lock:
            if leader != self._leader:
                self._leader, self._led_since = leader, self.clock.now_s()
                self._requested_batch = 0

    def policy_is(self, policy: JobPolicy) -> None:
        """Set the attributes ``policy`` and ``written`` from ``policy``, the job's present record.

        A policy whose text cannot be read counts as none.
        """
        if policy != self._job_policy:
            written = None
            if policy.text:
                with suppress(UsageError):  # the leader reports the error
                    written = parse_policy(policy.text, policy.source)
            self._job_policy, self.written = policy, written
            self.policy = written if policy.is_on else None

    def request_batch(self, samples: int) -> None:
        """Ask for a global batch of ``samples`` samples (0: take the request back).

        The leader's daemon calls it. The request goes out with this worker's step records while the
        worker leads.
        """
        self._requested_batch = samples

    @property
    def requested_batch(self) -> int:
        """The global batch, in samples, that this worker asks for as the leader; 0: for none."""
        leader = self.leader
        leads = leader is not None and leader.worker == self.worker
        return self._requested_batch if leads else 0

    def job_is(self, state: JobState, reason: str = "") -> None:
        """Set :attr:`job_state` to ``state``, and the ``reason`` for it, which :attr:`job_end` has.

        If the job is over, the waits in :meth:`wait_for_end` and :meth:`wait_for_generation` end.
        """
        with self._lock:
            self._job_state, self._job_reason = state, reason
            self._lock.notify_all()

    def preempt(self, cause: str, within_s: float) -> None:
        """Note that the job is preempted because of ``cause``; only the first call counts.

        The bound of ``within_s`` seconds begins now; 0 seconds: the job is not preempted.
        """
        if within_s and self._preemption is None:
            until_s = self.clock.now_s() + save_limit_s(within_s)
            self._preemption = Preemption(cause, within_s, until_s)

    @property
    def preemption(self) -> Preemption | None:
        """The preemption of this worker's job; None: the job is not preempted."""
        return self._preemption

    def evict(self, reason: str) -> None:
        """Note that this worker is evicted for ``reason``; it cannot be taken back.

        From now on :meth:`check` and :meth:`wait_for_generation` raise WorkerEvicted, also in
        threads that wait already.
        """
        with self._lock:
            self._evicted = reason
            self._lock.notify_all()

    def check(self) -> None:
        """Raise an error if this worker may not go on; else do nothing.

        Raises:
            WorkerEvicted: the leader has evicted this worker, or the worker's job is gone.
        """
        with self._lock:
            if self._evicted is not None:
                raise WorkerEvicted(self.worker, self._evicted)

    def newest(self, after: int) -> Generation | None:
        """Return the newest announced generation with a number above ``after``, without waiting.

        The result is None if there is none.
        """
        with self._lock:
            numbers = [number for number in self._generations if number > after]
            return self._generations[max(numbers)] if numbers else None

    def generation(self, number: int) -> Generation:
        """Return the announced generation with this number, and forget all older ones.

        Raises:
            KeyError: no such generation was announced, or it is forgotten.
        """
        with self._lock:
            for old in [n for n in self._generations if n < number]:
                del self._generations[old]
            return self._generations[number]

    @property
    def announced_at(self) -> float:
        """When this worker heard of the newest generation, in seconds on the monotonic clock.

        It is 0 before the first one.
        """
        with self._lock:
            return self._announced_at

    @property
    def leader(self) -> Leader | None:
        """The leader of the job, as the daemon knows it; None: no leader is known."""
        with self._lock:
            return self._leader

    @property
    def led_since(self) -> float:
        """When this worker heard of the present leader, in seconds on the monotonic clock.

        If no leader is known now, it is when the last one was lost; 0 before the first one.
        """
        with self._lock:
            return self._led_since

    @property
    def job_state(self) -> JobState:
        """The state of the job, as the daemon knows it; ``RUNNING`` until it has heard of one."""
        with self._lock:
            return self._job_state

    @property
    def job_end(self) -> str:
        """A phrase that says how the job ended, and why, such as "has failed: <reason>".

        While the job goes on, it begins with "is running:", so use it only after the end.
        """
        with self._lock:
            return f"{self._job_state.phrase}: {self._job_reason}"

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the job is over, or until ``deadline`` (seconds on the monotonic clock).

        :attr:`job_state` then says whether it is over.
        """
        with self._lock:
            while not self._job_state.over and (left := deadline - self.clock.now_s()) > 0:
                self._lock.wait(left)

    def wait_for_generation(
        self,
        after: int,
        deadline: float | None = None,
        slice_s: float | None = None,
        repairs: bool = False,
    ) -> Generation | None:
        """Wait until the newest generation has a number above ``after``, and return it.

        A generation without members, which ends the job, is returned like any other.

        Args:
            after: the number that the generation must exceed.
            deadline: when to stop waiting, in seconds on the monotonic clock; None waits as long as
                the job lives.
            slice_s: return None after this many seconds even before the deadline; None: do not.
            repairs: whether to wait for a generation that repairs a broken ring, or that has this
                worker neither as a member nor as a member of the ring before; others are ignored.

        Returns:
            The generation; None when the job is over, or when the time to wait is.

        Raises:
            WorkerEvicted: the leader has evicted this worker.
        """
        if slice_s is not None:
            sliced = self.clock.now_s() + slice_s
            deadline = sliced if deadline is None else min(deadline, sliced)
        with self._lock:
            while True:
                if self._evicted is not None:
                    raise WorkerEvicted(self.worker, self._evicted)
                newest = self._generations.get(max(self._generations, default=0))
                useful = newest and (not repairs or newest.repairs or not newest.knows(self.worker))
                if newest and newest.number > after and useful:
                    return newest
                if self._job_state.over:
                    return None
                left = None if deadline is None else deadline - self.clock.now_s()
                if left is not None and left <= 0:
                    return None
                self._lock.wait(left)

    # --- to the daemon thread ---

    def report(self, progress: WorkerProgress) -> None:
        """Replace this worker's progress; the daemon's thread publishes it when it next looks."""
        with self._lock:
            self._progress = progress

    @property
    def progress(self) -> WorkerProgress:
        """The newest progress of this worker, as :meth:`report` has set it."""
        with self._lock:
            return self._progress

    def log(self, event: Event) -> None:
        """Queue an event for the job's log; the daemon thread writes it later.

        If ``keeps_events`` is False, the event is dropped. ``on_event`` is called first.
        """
        self.on_event(event)
        with self._lock:
            if self.keeps_events:
                self._events.append(event)

    def next_event(self) -> Event | None:
        """Return the oldest event that is not written, which stays until :meth:`event_is_written`.

        The result is None if all events are written.
        """
        with self._lock:
            return self._events[0] if self._events else None

    def event_is_written(self) -> None:
        """Drop the oldest kept event, because it has been written into the job's log."""
        with self._lock:
            self._events.pop(0)

    @property
    def has_events(self) -> bool:
        """Whether there are events that the daemon has not written into the job's log yet."""
        with self._lock:
            return bool(self._events)
