"""Run threads one at a time, in an order that a test chooses, under virtual time.

::

    schedule = TaskScheduler(Random(seed))
    schedule.start("w0", lambda: train(...))
    schedule.run()

A task (a thread of the schedule) runs until it waits, with the schedule as its
:class:`edl.clock.Clock`, or is interrupted in a :meth:`TaskScheduler.pause`. Then the
:class:`Random` chooses the task or actor that runs next. The virtual time stands still while a task
or actor can run, and jumps to the next deadline when none can. So the same seed gives the same run,
nothing sleeps in real time, and a run in which all tasks wait for ever ends at once with a table of
what each waits for.

An *actor* is a :class:`BackgroundTask` that acts beside the tasks and never waits: a daemon, a
leader, an agent.
"""

from __future__ import annotations

import math
import os
import random
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from edl.clock import Condition
from edl.ring.loopback import Killed

INTERRUPTIONS = (1.0, 0.5, 0.15)  # of the pauses of a run, by its seed
MAX_DECISIONS = 100_000
LONGEST_S = 3600.0  # of virtual time
JOIN_S = 30.0  # real seconds for a thread to end


class ScheduleError(AssertionError):
    """An error of a schedule: its tasks wait for each other for ever, or do not come to an end."""


class Random:
    """The source of all random choices of a schedule, determined by an integer."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed) if seed else None
        self._weights: dict[str, float] = {}
        self._rate = self._random.choice(INTERRUPTIONS) if self._random is not None else 0.0

    def interrupts(self) -> bool:
        """Draw whether a task that could go on has to let other tasks run instead."""
        return self._random is not None and self._random.random() < self._rate

    def below(self, limit: int) -> int:
        return 0 if self._random is None or limit < 2 else int(self._random.random() * limit)

    def pick(self, ones: Sequence[BackgroundTask | Task]) -> int:
        chance = self._random
        if chance is None or len(ones) < 2:
            return 0
        weights = []
        for one in ones:
            if one.name not in self._weights:
                self._weights[one.name] = 2.0 ** -chance.randrange(6)
            weights.append(self._weights[one.name])
        left = chance.random() * sum(weights)
        for index, weight in enumerate(weights):
            left -= weight
            if left < 0:
                return index
        return len(ones) - 1


@dataclass
class BackgroundTask:
    """An actor of a schedule: a function that is called when its condition holds."""

    # It is called while no task runs, in the thread of the task that ran last.

    name: str  # the name of the actor; `pick` gives each name a weight
    ready: Callable[[], bool]  # returns whether `act` may be called
    act: Callable[[], None]  # does one piece of work, without waiting
    # when `ready` becomes true if nothing happens before, in virtual seconds; None: not known
    due: Callable[[], float | None] = lambda: None
    starts: bool = False  # `act` may start tasks: the schedule does not end before it is due


@dataclass(eq=False)
class Task:
    """A thread that runs under a schedule; `start` makes it."""

    name: str
    thread: threading.Thread | None = None
    go: threading.Lock = field(default_factory=threading.Lock)  # released: it is the thread's turn
    condition: _Condition | None = None  # it waits for that
    predicate: Callable[[], bool] | None = None  # ends the wait; None: any notification does
    seen: int = 0  # notifications of the condition that it has seen
    woken: bool = False  # by the last of them
    wake_at: float | None = None  # when its wait times out, in virtual seconds; None: never
    why: str = ""  # it waits
    killed: bool = False  # it is to end by `Killed`
    frozen: bool = False
    done: bool = False
    error: BaseException | None = None  # that ended it

    def ready(self, now_s: float) -> bool:
        if self.frozen or self.done:
            return False
        if self.wake_at is not None and now_s >= self.wake_at:
            return True
        if self.condition is None:
            return self.wake_at is None
        if self.condition.notified != self.seen:
            self.seen = self.condition.notified
            self.woken = self.predicate is None or self.predicate()
        return self.woken


class _Condition:
    """A condition variable under virtual time, as `Condition` describes it."""

    # It has no lock, since only one task runs at a time.

    def __init__(self, schedule: TaskScheduler) -> None:
        self._schedule = schedule
        self.notified = 0

    def __enter__(self) -> bool:
        return True

    def __exit__(self, *_: object) -> None:
        return None

    def wait(self, timeout: float | None = None) -> bool:
        return self._schedule.wait(self, None, timeout)

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        return predicate() or self._schedule.wait(self, predicate, timeout) or predicate()

    def notify_all(self) -> None:
        self.notified += 1


class TaskScheduler:
    """A scheduler that runs one thread at a time, and the clock of all threads that run in it."""

    def __init__(self, chance: Random, most_decisions: int = MAX_DECISIONS) -> None:
        self.chance = chance
        self.tasks: list[Task] = []  # in the order of their starts
        self._left: list[Task] = []  # those that are not done
        self._unwinding: list[Task] = []  # those that are killed, and not done
        self.actors: list[BackgroundTask] = []  # which act beside the tasks
        self.current: Task | None = None  # None while an actor acts, and before `run`
        self.decisions = 0
        self._most_decisions = most_decisions
        self._now_s = 0.0
        self._main = threading.Lock()
        self._failure: BaseException | None = None
        self._closing = False

    # --- the clock

    def now_s(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        task = self._own()
        task.wake_at, task.why = self._now_s + seconds, "its sleep"
        self._give_way(task)
        task.wake_at = None

    def condition(self) -> Condition:
        return _Condition(self)

    def wait(
        self, condition: _Condition, predicate: Callable[[], bool] | None, timeout: float | None
    ) -> bool:
        task = self._own()
        task.condition, task.predicate, task.seen = condition, predicate, condition.notified
        task.woken = False
        task.wake_at = None if timeout is None else self._now_s + max(0.0, timeout)
        task.why = "news"
        self._give_way(task)
        timed_out = task.wake_at is not None and self._now_s >= task.wake_at
        task.condition = task.predicate = task.wake_at = None
        return not timed_out

    # --- tasks

    def start(self, name: str, function: Callable[[], None]) -> Task:
        task = Task(name)
        task.go.acquire()
        task.thread = threading.Thread(
            target=self._live, args=(task, function), name=name, daemon=True
        )
        self.tasks.append(task)
        self._left.append(task)
        task.thread.start()
        return task

    def pause(self) -> None:
        """Let other tasks run now, if the seed's choice is to interrupt the calling task."""
        if self.current is None:
            return
        task = self._own()
        if self.chance.interrupts() or task.frozen:
            self._give_way(task)

    def kill(self, task: Task) -> None:
        """Let `task` end by `Killed`; among all tasks it gets the turn next."""
        if not (task.killed or task.done):
            self._unwinding.append(task)
            self._unwinding.sort(key=self.tasks.index)
        task.killed = True
        task.frozen = False
        if task is self.current:
            raise Killed(task.name)

    def freeze(self, task: Task) -> None:
        task.frozen = True

    def thaw(self, task: Task) -> None:
        task.frozen = False

    def fail(self, error: BaseException) -> None:
        """Let `run` end and raise `error`, as soon as the running task waits or ends."""
        self._failure = self._failure or error

    def run(self) -> None:
        try:
            task = self._decide(None)
            if task is not None:
                self._main.acquire()
                self._resume(task)
                self._main.acquire()
        finally:
            self._close()
        if self._failure is not None:
            raise self._failure

    # --- who is next

    def _live(self, task: Task, function: Callable[[], None]) -> None:
        # To wake a thread on another processor takes three times as long.
        if hasattr(os, "sched_setaffinity"):
            allowed = sorted(os.sched_getaffinity(os.getpid()))
            os.sched_setaffinity(0, {allowed[os.getpid() % len(allowed)]})
        task.go.acquire()
        try:
            if not task.killed:
                function()
        except BaseException as error:  # noqa: BLE001 - whoever runs the schedule looks at it
            task.error = error
        task.done = True
        if self._closing:
            return
        self._left.remove(task)
        if task.killed:
            self._unwinding.remove(task)
        try:
            following = self._decide(None)
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._failure, following = error, None
        if following is None:
            self._main.release()
        else:
            self._resume(following)

    def _give_way(self, task: Task) -> None:
        """Let other tasks run, and return when it is the turn of `task`, the calling one, again."""
        try:
            following = self._decide(task)
        except BaseException as error:  # noqa: BLE001 - raised by run()
            self._failure, following = error, None
        if following is task:
            self.current = task
        else:
            if following is None:
                self._main.release()
            else:
                self._resume(following)
            task.go.acquire()
        if task.killed:
            raise Killed(task.name)

    def _resume(self, task: Task) -> None:
        self.current = task
        task.go.release()

    def _decide(self, running: Task | None) -> Task | None:
        """Let actors act until it is a task's turn, and return that task."""
        while True:
            self.current = None
            if self._failure is not None:
                raise self._failure
            if self._unwinding:
                return self._unwinding[0]
            self.decisions += 1
            if self.decisions > self._most_decisions:
                raise ScheduleError(f"no end after {self.decisions} decisions: {self.table()}")
            now_s = self._now_s
            actors = [actor for actor in self.actors if actor.ready()]
            tasks = [task for task in self._left if task.ready(now_s)]
            if running in tasks[1:]:  # it goes on unless it is interrupted
                tasks.remove(running)
                tasks.insert(0, running)
            if not actors and not tasks:
                will_start = any(a.starts and a.due() is not None for a in self.actors)
                if not self._left and not will_start:
                    return None
                # Time passes until the next deadline.
                waking = [t.wake_at for t in self._left if not t.frozen]
                due = [at for at in (*waking, *(a.due() for a in self.actors)) if at is not None]
                self._now_s = min((at for at in due if at > now_s), default=math.inf)
                if self._now_s > LONGEST_S:
                    self._now_s, at = now_s, self._now_s
                    why = "all wait for ever" if at == math.inf else f"no end after {at:.0f} s"
                    raise ScheduleError(f"{why}: {self.table()}")
                continue
            picked = self.chance.pick([*actors, *tasks])
            if picked >= len(actors):
                return tasks[picked - len(actors)]
            actors[picked].act()

    def table(self) -> str:
        rows = []
        for task in self.tasks:
            state = "done" if task.done else "frozen" if task.frozen else f"waits for {task.why}"
            until = f" until {task.wake_at:.2f} s" if task.wake_at is not None else ""
            rows.append(f"{task.name} {state}{until}")
        return f"at {self._now_s:.2f} s: {'; '.join(rows)}"

    def _own(self) -> Task:
        task = self.current
        assert task is not None, "only a task waits"
        if task.killed:
            raise Killed(task.name)
        return task

    def _close(self) -> None:
        """End the threads of all unfinished tasks one by one, by raising Killed in them."""
        self._closing = True
        for task in self.tasks:
            if not task.done:
                task.killed, self.current = True, task
                with suppress(RuntimeError):
                    task.go.release()
            assert task.thread is not None
            task.thread.join(JOIN_S)
            assert not task.thread.is_alive(), f"the thread of {task.name} does not end"
