"""Hold the data that the daemon's threads and the training thread of a worker exchange.

There is one :class:`SharedState` in each worker process.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from edl.clock import SYSTEM, Clock, Condition
from edl.errors import UsageError, WorkerEvicted
from edl.events import Event
from edl.job.run import Preemption, save_limit_s
from edl.job.script import NO_FITS, Arithmetic, ScriptFits, Signature
from edl.learning import LearningMeter
from edl.policy.file import PolicyFile, parse_policy
from edl.policy.stragglers import NO_REPORT, RingReport
from edl.records import (
    END,
    NO_POLICY,
    Generation,
    JobPolicy,
    JobState,
    Leader,
    StepTotals,
    WorkerProgress,
)


@dataclass
class SharedState:
    """The latest information that a worker's training thread and its daemon's threads exchange."""

    # Any thread may call the methods; an attribute is changed by setting a new value.

    worker: int = -1  # its id; -1: not known yet
    clock: Clock = SYSTEM  # of all times in this object
    keeps_events: bool = True  # False: there is no job log, so events are dropped
    policy: PolicyFile | None = None  # the job's, while it is switched on
    written: PolicyFile | None = None  # also while it is switched off; None: none that can be read
    ring: RingReport = NO_REPORT  # the newest one, for the policy
    evicted: frozenset[int] = frozenset()  # all workers that the leader has evicted
    signature: Callable[[], Signature] = dict  # of this worker's model, for newcomers
    epoch: int | None = None  # of an unchanged script, for newcomers
    arithmetic: Callable[[], Arithmetic] = Arithmetic  # of logical workers, for newcomers
    fits: ScriptFits = NO_FITS  # of this worker's script, for newcomers
    step_totals: StepTotals = field(default_factory=StepTotals)  # of this worker, for metrics
    learning: LearningMeter = field(default_factory=LearningMeter)  # loss and rate, for the leader
    on_event: Callable[[Event], None] = lambda _: None  # called in the thread that logs
    progress: WorkerProgress = field(init=False)  # of this worker; the daemon's thread publishes it
    eviction: str | None = None  # why this worker is evicted, which `check` raises
    newest_number: int = 0  # of the generations announced
    requested_batch: int = 0  # the global batch that this worker asks for as the leader; 0: none
    _lock: Condition = field(init=False)
    _generations: dict[int, Generation] = field(default_factory=dict)
    _announced_at: float = 0.0
    _leader: Leader | None = None
    _led_since: float = 0.0
    _job_state: JobState = JobState.RUNNING
    _job_reason: str = ""
    _preemption: Preemption | None = None
    _job_policy: JobPolicy = NO_POLICY
    _events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._lock = self.clock.condition()
        self.progress = WorkerProgress(updated_at=self.clock.now_s())

    # --- to the training thread ---

    def announce(self, generation: Generation) -> None:
        """Hand a generation that the leader wrote, or the job's end, to the training thread."""
        if not generation.members:  # the end of the job, with the same number on all workers
            generation = replace(generation, number=END)
        with self._lock:
            self._generations[generation.number] = generation
            self.newest_number = max(self._generations)
            self._announced_at = self.clock.now_s()
            self._lock.notify_all()

    def leads(self, leader: Leader | None) -> None:
        """Note which worker leads, as the daemon sees it now; None: no leader is known."""
        with self._lock:
            if leader != self._leader:
                self._leader, self._led_since = leader, self.clock.now_s()
                self.requested_batch = 0

    def policy_is(self, policy: JobPolicy) -> None:
        """Set the attributes `policy` and `written` from `policy`, the job's present record."""
        if policy != self._job_policy:
            written = None
            if policy.text:
                with suppress(UsageError):  # the leader reports the error
                    written = parse_policy(policy.text, policy.source)
            self._job_policy, self.written = policy, written
            self.policy = written if policy.is_on else None

    def request_batch(self, samples: int) -> None:
        """Ask for a global batch of `samples` samples (0: take the request back)."""
        with self._lock:  # the term that asks may be over already
            leads = self._leader is not None and self._leader.worker == self.worker
            self.requested_batch = samples if leads else 0

    def job_is(self, state: JobState, reason: str = "") -> None:
        with self._lock:
            self._job_state, self._job_reason = state, reason
            self._lock.notify_all()

    def preempt(self, cause: str, within_s: float) -> None:
        """Note that the job is preempted because of `cause`; only the first call counts."""
        if within_s and self._preemption is None:
            until_s = self.clock.now_s() + save_limit_s(within_s)
            self._preemption = Preemption(cause, within_s, until_s)

    @property
    def preemption(self) -> Preemption | None:
        """The preemption of this worker's job; None: the job is not preempted."""
        return self._preemption

    def evict(self, reason: str) -> None:
        """Note that this worker is evicted for `reason`; it cannot be taken back."""
        with self._lock:
            self.eviction = reason
            self._lock.notify_all()

    def check(self) -> None:
        """Raise an error if this worker may not go on; else do nothing."""
        with self._lock:
            if self.eviction is not None:
                raise WorkerEvicted(self.worker, self.eviction)

    def newest(self, after: int) -> Generation | None:
        """Return the newest announced generation with a number above `after`, without waiting."""
        with self._lock:
            numbers = [number for number in self._generations if number > after]
            return self._generations[max(numbers)] if numbers else None

    def generation(self, number: int) -> Generation:
        """Return the announced generation with this number, and forget all older ones."""
        with self._lock:
            for old in [n for n in self._generations if n < number]:
                del self._generations[old]
            return self._generations[number]

    @property
    def announced_at(self) -> float:
        """When this worker heard of the newest generation, in seconds on the monotonic clock."""
        with self._lock:
            return self._announced_at

    @property
    def leader(self) -> Leader | None:
        """The leader of the job, as the daemon knows it; None: no leader is known."""
        with self._lock:
            return self._leader

    @property
    def led_since(self) -> float:
        """When this worker heard of the present leader, in seconds on the monotonic clock."""
        with self._lock:
            return self._led_since

    @property
    def job_state(self) -> JobState:
        """The state of the job, as the daemon knows it; `RUNNING` until it has heard of one."""
        with self._lock:
            return self._job_state

    @property
    def job_end(self) -> str:
        """A phrase that says how the job ended, and why, such as "has failed: <reason>"."""
        with self._lock:
            return f"{self._job_state.phrase}: {self._job_reason}"

    def wait_for_end(self, deadline: float) -> None:
        """Wait until the job is over, or until `deadline` (seconds on the monotonic clock)."""
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
        """Wait until the newest generation has a number above `after`, and return it."""
        if slice_s is not None:
            sliced = self.clock.now_s() + slice_s
            deadline = sliced if deadline is None else min(deadline, sliced)
        with self._lock:
            while True:
                if self.eviction is not None:
                    raise WorkerEvicted(self.worker, self.eviction)
                newest = self._generations.get(max(self._generations, default=0))
                # In a repair, one that knows this worker neither as a member nor from the ring
                # before is for it, too: it has to leave.
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

    def log(self, event: Event) -> None:
        """Queue an event for the job's log; the daemon thread writes it later."""
        self.on_event(event)
        with self._lock:
            if self.keeps_events:
                self._events.append(event)

    def next_event(self) -> Event | None:
        """Return the oldest event that is not written, which stays until `event_is_written`."""
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
