"""The loop of every launcher: read ZooKeeper, look at the worker processes, decide, and act.

The loop goes on while ZooKeeper is away, and so do the workers: they train on. The decisions are
pure functions in :mod:`edl.core.host`. The one class is :class:`Supervisor`; its subclasses are the
agent of a host and the supervisor of one slot of horovodrun.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Generic

from edl.coordination.job_store import JobStore
from edl.coordination.lost_job import LaunchersLostJob
from edl.coordination.observations import (
    conclude,
    slot_disabled,
    worker_ended,
    worker_frozen,
    worker_that_ended,
)
from edl.core.events import Event
from edl.core.host.process import Process, exited, script_ended, unstarted
from edl.core.host.supervision import (
    DisableSlot,
    EndProcess,
    Start,
    State,
    SupervisorDecision,
    members_to_ask,
    noted,
    observe,
    without_zookeeper,
)
from edl.core.job.borrowing import ReclaimTracker, overdue_on
from edl.core.snapshot import Snapshot
from edl.errors import CoordinationError, UnknownJob
from edl.http.client import answering
from edl.launch.frozen import ASK_TIMEOUT_S, UnresponsiveWorkers
from edl.launch.signals import TO_END, child_ends_kept, handled
from edl.launch.workers import Workers

logger = logging.getLogger(__name__)

ONE_SIGNAL_S = 0.5  # timeout(1) sends a signal to its command, and then to its process group


class Supervisor(ABC, Generic[State]):
    """The base class of a launcher: it starts, watches and ends worker processes of one job."""

    def __init__(
        self,
        store: JobStore,
        workers: Workers,
        own: State,
        command: Sequence[str],
        stack_signal: int,
    ) -> None:
        self._store = store
        self._workers = workers
        self._own = own
        self._command = tuple(command)
        say = partial(self._say, for_all=True)
        self._lost_job = LaunchersLostJob(store, say, ASK_TIMEOUT_S)
        self._frozen = UnresponsiveWorkers(store, own.host, workers, stack_signal)
        self._reclaims = ReclaimTracker()
        self._launches = 0
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._incarnation: tuple[int, int] | None = None  # of the job that has our node
        self._away_since: float | None = None
        self._last_event = -1
        self._wake = threading.Event()  # the next turn is to begin now
        self._changed = threading.Event()  # the records have changed
        self._signals: Counter[signal.Signals] = Counter()
        self._signalled_s = -math.inf  # when the last signal that counts came
        self._reason = ""  # of the newest decision
        self._shown: set[str] = set()  # notes and warnings that were shown
        self._reported: set[str] = set()  # start attempts whose end was recorded

    def run(self) -> int:
        """Run the loop until the job or this launcher is over; return the launcher's exit code."""
        self._own = replace(self._own, state_since=time.monotonic())
        self._store.session.add_listener(lambda state: self.on_change())
        self._workers.on_exit = self._wake.set
        with child_ends_kept():
            try:
                with handled(TO_END, self._on_signal), self._around():
                    while (code := self._turn(time.monotonic())) is None:
                        self._wake.wait(self._own.limits.poll_s)
                        self._wake.clear()
                return code
            finally:
                self._workers.kill_all(self._own.limits.killed_s)
                self._workers.close()

    @property
    def first_signal(self) -> signal.Signals | None:
        """The first signal of those that ask this process to end that it got; None: it got none."""
        return next(iter(self._signals), None)

    def on_change(self) -> None:
        """Let the next turn begin at once and read the job's records again; from any thread."""
        self._changed.set()
        self._wake.set()

    # --- what a launcher adds

    def _around(self) -> AbstractContextManager[None]:
        return contextlib.nullcontext()

    @abstractmethod
    def _register(self, now: float) -> None:
        """Write this launcher's node: in a new session, or after ZooKeeper had lost the job."""

    @abstractmethod
    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None:
        """Carry out `_signals`, in every turn; `snapshot` is None while ZooKeeper is away."""

    @abstractmethod
    def _follow(self, snapshot: Snapshot, now: float) -> None:
        """Carry out what users or others request, before `_decide`, while ZooKeeper is there."""

    @abstractmethod
    def _decide(self, snapshot: Snapshot, now: float) -> SupervisorDecision:
        """Return which workers the launcher starts and ends in this turn of its loop, and why."""

    @abstractmethod
    def _finish(self, snapshot: Snapshot, code: int, now: float) -> int | None:
        """Show how it ends; return the exit code, or None to run on and be called again."""

    @abstractmethod
    def _say(self, text: str, for_all: bool = False) -> None:
        """Show a sentence; `for_all`: all launchers of the job have it, and one may show it."""

    @abstractmethod
    def _last_line(self, attempt_id: str) -> str:
        """Return, once for each start attempt, the line that best explains why it has exited."""

    def _output_tail(self, attempt_id: str) -> str:
        return ""

    # --- a turn

    def _turn(self, now: float) -> int | None:
        self._reap(now)
        self._workers.keep_logs(now)
        try:
            snapshot = self._read(now)
            self._handle_signal(snapshot, now)
            if snapshot is None:
                return self._alone(now)
            ages_s = self._reclaims.look(snapshot.desired, now)
            late = overdue_on(self._own.host, ages_s)
            self._own = replace(self._own, overdue=late, reclaims_s=ages_s)
            self._follow(snapshot, now)
            self._own = self._frozen.look_for_suspended(self._own, snapshot, now)
            decision = self._decide(snapshot, now)
            self._act(decision, snapshot, now)
            if decision.exit_code is not None:
                return self._finish(snapshot, decision.exit_code, now)
        except UnknownJob as error:
            if self._is_lost(error):
                self._handle_signal(None, now)
                return self._end_without_zookeeper(0.0)
            return self._end_without_job(str(error))
        except CoordinationError as error:
            logger.info("%s", error)
            self._changed.set()
        return None

    def _reap(self, now: float) -> None:
        for attempt_id, said in self._workers.ended_scripts().items():
            self._own = self._own.having(script_ended(self._own.process(attempt_id), said, now))
        for attempt_id, end in self._workers.reap().items():
            process, last_line = self._own.process(attempt_id), self._last_line(attempt_id)
            if end.said is not None:
                process = script_ended(process, end.said, now)
            ended = exited(process, end.code, now, last_line, end.trained_s)
            self._own = self._own.having(ended)
            if end.forked and ended.failed_at_start:
                self._workers.disable_template()
            self._changed.set()  # judge it by what ZooKeeper says now
            if ended.worker is not None:
                # The worker is dead even if its session lasts: no need to wait for the session.
                with contextlib.suppress(CoordinationError, UnknownJob):
                    self._store.members.remove(ended.worker, attempt_id)

    def _read(self, now: float) -> Snapshot | None:
        """Return the records, read again if they may have changed; None without a connection."""
        session = self._store.session
        if not session.connected:
            return None
        if self._away_since is not None:
            self._away_since = None
            self._own = without_zookeeper(self._own)
            self._say("ZooKeeper is back", for_all=True)
        incarnation = self._store.incarnation
        if self._incarnation != incarnation:
            self._register(now)
            self._incarnation = incarnation
        due = now - self._read_at >= self._own.limits.read_s
        if self._snapshot is None or self._changed.is_set() or due:
            self._changed.clear()
            self._snapshot = self._store.snapshot(wake=self.on_change)
            self._read_at = now
            self._look(self._snapshot, now)
            self._lost_job.is_back()
        return self._snapshot

    def _is_lost(self, error: UnknownJob) -> bool:
        """Return whether ZooKeeper has lost the job, which is written again if it is our turn."""
        step = self._snapshot.status.step if self._snapshot is not None else 0
        if not self._lost_job.handle(error, f"host {self._own.host}", step):
            return False
        self._changed.set()
        return True

    def _look(self, snapshot: Snapshot, now: float) -> None:
        """Take new records over, ask suspect workers (about 1 s), and record how workers ended."""
        own = self._own
        self._own = own = replace(own, processes=observe(own.processes, snapshot, now))
        processes = self._frozen.look(own.processes, snapshot, now)
        for process in processes:
            state, settle_s = snapshot.job.state, own.limits.settle_s
            if process.is_undecided(state, now, settle_s):
                continue
            if not process.alive and process.attempt_id not in self._reported:
                tail = self._output_tail(process.attempt_id)
                worker_ended(self._store, process, own.host, snapshot, tail)
                self._reported.add(process.attempt_id)
        own = replace(own, processes=processes)
        asked = members_to_ask(snapshot, own)
        living = answering(asked, self._store.nodes.run, ASK_TIMEOUT_S) if asked else frozenset()
        self._own = noted(replace(own, answering=living), snapshot, now)

    def _new_events(self) -> Iterator[Event]:
        """Yield the events since the last one yielded, those of a newer edl left out."""

        def left_out(number: int, why: str) -> None:
            self._last_event = number

        for number, event in self._store.events.read_known(self._last_event, left_out):
            self._last_event = number
            if (worker := worker_that_ended(event)) is not None:
                self._own = replace(self._own, ended=self._own.ended | {worker})
            yield event

    def _end_without_job(self, why: str) -> int:
        """Kill the workers of a job that was removed or replaced, and return 1, the exit code."""
        self._workers.kill_all(self._own.limits.killed_s)
        self._say(f"{why}; its workers on this host were ended")
        return 1

    def _alone(self, now: float) -> int | None:
        """Do a turn of the loop while ZooKeeper is away: workers train on, and none is started."""
        if self._away_since is None:
            self._away_since = now
            text = "ZooKeeper is away; training goes on, changes wait for its return"
            self._say(text, for_all=True)
        return self._end_without_zookeeper(now - self._away_since)

    def _end_without_zookeeper(self, away_s: float) -> int | None:
        """Return the exit code if no worker is left and ZooKeeper is away for long, else None."""
        limit_s = self._own.limits.away_s
        if len(self._workers) == 0 and away_s >= limit_s:
            self._say(f"no worker is left and ZooKeeper is away for {limit_s:g} s; giving up")
            return 1
        return None

    # --- acts

    def _act(self, decision: SupervisorDecision, snapshot: Snapshot, now: float) -> None:
        if decision.reason != self._reason:
            self._reason = decision.reason
            logger.info("%s", decision.reason)
        for warning in decision.warnings:
            self._say_once(warning)
        for ending in decision.endings:
            self._end(ending, now)
        for start in decision.starts:
            self._start(start, now)
        if decision.disable_slot is not None:
            self._disable_slot(decision.disable_slot, snapshot)
        if decision.outcome is not None:
            conclude(self._store, decision.outcome, snapshot)
            self._changed.set()

    def _start(self, start: Start, now: float) -> Process:
        attempt_id = f"{self._own.token}-{self._launches}"
        self._launches += 1
        process = Process(start.slot, attempt_id, now, failures=start.failures, device=start.device)
        waits_s = self._own.limits.repair_s if start.replaces else 0.0
        try:
            self._workers.start(attempt_id, start.slot, waits_s, start.variables)
        except OSError as error:
            process = unstarted(process, self._command, error)
        else:
            logger.info("slot %d: %s", start.slot, start.reason)
        self._own = replace(self._own, processes=(*self._own.processes, process))
        return process

    def _end(self, ending: EndProcess, now: float) -> None:
        process = self._own.process(ending.attempt_id)
        if process.ending_since is None:
            process = replace(process, ending_since=now, why=ending.reason)
            self._own = self._own.having(process)
            if self._own.waiting and process.suspended_since is not None and self._snapshot:
                with contextlib.suppress(CoordinationError, UnknownJob):  # it is killed in any case
                    worker_frozen(self._store, process, self._own.host, "", self._snapshot)
            elif process.unresponsive_since is not None:
                self._frozen.write_stacks(process)
                self._changed.set()
        logger.info("ending %s: %s", process.name, ending.reason)
        self._workers.end(ending.attempt_id, ending.kill)

    def _disable_slot(self, given_up: DisableSlot, snapshot: Snapshot) -> None:
        """Start no more workers in a slot, and record that as an event before the call returns."""
        process = self._own.process(given_up.attempt_id)
        self._own = self._own.having(replace(process, used_up=True))
        slot_disabled(self._store, self._own.host, given_up.slot, given_up.reason, snapshot)

    def _say_once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._say(text)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only count: the interrupted thread may hold any lock, also that of an event.
        now_s = time.monotonic()
        if now_s - self._signalled_s >= ONE_SIGNAL_S:
            self._signals[signal.Signals(number)] += 1
            self._signalled_s = now_s
