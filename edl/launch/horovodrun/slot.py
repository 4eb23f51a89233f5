"""`edl-worker`: the process between the driver of horovodrun and the training process of a slot.

It reads the records, lets :mod:`edl.core.host.horovodrun_slot` decide, and acts. The training
process is its child and dies with it, for the driver then counts the slot as failed. It writes to
where this process does, so horovodrun shows its output as it always does; its standard error
passes through here, for its last line says why it has ended.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import FrameType

from edl.coordination.job_store import JobStore
from edl.core.host.agent import Ending, Outcome, Start
from edl.core.host.horovodrun_slot import (
    REMOVAL_S,
    ROUND_S,
    SlotState,
    assigned,
    awaits_others,
    decide,
    forgotten,
    last_round,
    may_ask,
    released,
    removal_pending,
    ring_lost,
    without_barred,
    would_end_the_job,
)
from edl.core.host.lost_slots import LostSlots
from edl.core.host.process import Process, exited, seen, unstarted
from edl.core.records import JobState, KeptSlot, Snapshot
from edl.errors import CoordinationError, UnknownJob
from edl.launch.command import title
from edl.launch.horovodrun.driver import Assigned, Driver
from edl.launch.parent import die_with_parent, is_unread
from edl.launch.record import conclude, slot_given_up, who_ended, worker_ended
from edl.launch.signals import TO_END, handled
from edl.launch.tee import Tee
from edl.launch.workers import ended_code, exit_code, signal_group

logger = logging.getLogger(__name__)

POLL_S = 0.2  # at the latest, for a child that has ended
READ_S = 1.0  # at the latest, for the facts; changes wake us earlier
AWAY_S = 120.0  # without ZooKeeper and without a worker there is nothing to wait for
STDOUT = 1
SHUTDOWN_S = 6.0  # horovodrun that ends sends SIGTERM, and SIGKILL after 5 s
ORPHAN_S = 15.0  # nobody reads our output; when horovodrun ends, that is noticed earlier
MOVE_S = 10.0  # for the edl-workers that the driver starts on other hosts to say so
GONE_S = 1.0  # after a slot that was taken back is free: for the driver to see its process end
GIVEN_UP_S = 2.0  # SIGTERM this soon after an answer of the driver is the driver's own
KILLED_S = 10.0  # for a process that was killed to end


class SlotSupervisor:
    """Keeps one slot of a job at work. ``run()`` returns the exit code for the driver.

    Args:
        store: the job; its session is open.
        driver: the plan says what it has last said.
        environment: of the training process, besides what differs from start to start.
    """

    def __init__(
        self,
        store: JobStore,
        driver: Driver,
        host: str,
        slot: int,
        command: Sequence[str],
        environment: Mapping[str, str],
        backoff_max_s: float,
    ) -> None:
        self._store = store
        self._driver = driver
        self._host = host
        self._slot = slot
        self._command = tuple(command)
        self._environment = dict(environment)
        self._backoff_max_s = backoff_max_s
        self._token = uuid.uuid4().hex[:12]
        self._starts = 0
        self._child: subprocess.Popen[bytes] | None = None
        self._tee: Tee | None = None  # of its standard error
        self._process: Process | None = None
        self._snapshot: Snapshot | None = None
        self._read_at = 0.0
        self._step = (-1, -1)  # generation and step, as the leader has told them
        self._stepped = 0.0  # when that changed
        self._slot_given_up = ""  # why no worker is started any more
        self._state = JobState.RUNNING
        self._state_since = 0.0
        self._lost_since: float | None = None
        self._said = driver.newest  # the driver's latest, which the plan need not say yet
        self._said_since = 0.0
        self._word = driver.newest  # what of the driver's the plan says
        self._word_since = 0.0
        self._answered = -GIVEN_UP_S  # when the driver last did
        self._wish: Mapping[str, int] = {}
        self._wish_since = 0.0  # since when it is that one
        self._reminded = False  # the driver, of this wish
        self._lost_slots = LostSlots(host, slot)
        self._session_epoch = 0  # of the session that has our node
        self._given_up = False  # told to end by the driver itself, it seems
        self._pending_at = -GONE_S  # when a slot that was taken back was last seen in use
        self._away_since: float | None = None
        self._wake = threading.Event()
        self._changed = threading.Event()
        self._signalled = False
        self._told: float | None = None
        self._released = False  # the wish is lowered for a signal
        self._unread_since: float | None = None  # nobody reads our output any more
        self._waits_since: float | None = None  # for the driver, with nothing else to do
        self._waits_said = False
        self._reason = ""
        self._reported: set[str] = set()
        self._last_event = -1
        self._ended: set[int] = set()  # of whom some edl-worker has told how they ended

    def run(self) -> int:
        """Work until the job is over or the slot is not the job's any more."""
        self._state_since = self._word_since = time.monotonic()
        self._store.session.add_listener(lambda state: self.on_change())
        try:
            with handled(TO_END, self._on_signal):
                while (code := self._turn(time.monotonic())) is None:
                    self._wake.wait(POLL_S)
                    self._wake.clear()
            return code
        finally:
            self._kill()

    def on_change(self) -> None:
        """From the threads of ZooKeeper and of the driver."""
        self._changed.set()
        self._wake.set()

    def _turn(self, now: float) -> int | None:
        self._reap(now)
        self._look_who_reads(now)
        try:
            snapshot = self._read(now)
            self._handle_signal(snapshot, now)
            if snapshot is None:
                return self._alone(now)
            self._follow_driver(snapshot, now)
            self._outlive_driver(snapshot)
            self._see_lost_slots(snapshot, now)
            decision = decide(snapshot, self._own(now), now)
            if decision.reason != self._reason:
                self._reason = decision.reason
                logger.info("slot %d: %s", self._slot, decision.reason)
            if decision.ending is not None:
                self._end(decision.ending, now)
            if decision.start is not None:
                self._start(decision.start, now)
            if decision.give_up:
                self._give_up(decision.reason, snapshot)
            if decision.outcome is not None:
                self._conclude(decision.outcome, snapshot)
            if decision.exit_code is not None:
                return self._leave(snapshot, decision.exit_code, now)
        except UnknownJob as error:
            self._say(str(error))
            return 1
        except CoordinationError as error:
            logger.info("%s", error)
            self._changed.set()
        return None

    # --- facts

    def _reap(self, now: float) -> None:
        child, process = self._child, self._process
        if child is None or process is None:
            return
        if process.ended is None and (said := ended_code(child.pid)) is not None:
            self._process = process = replace(process, ended=now, ended_code=said)
        if (code := exit_code(child)) is None:
            return
        self._child = None
        last_line = self._tee.finish() if self._tee is not None else ""
        finished = self._state is JobState.FINISHED
        self._process = exited(process, code, now, last_line, finished)
        self._changed.set()
        if process.worker is not None:
            # It is dead, whatever its session says: the leader need not wait for that.
            with contextlib.suppress(CoordinationError, UnknownJob):
                self._store.remove_member(process.worker)

    def _read(self, now: float) -> Snapshot | None:
        """The facts, read anew when they may have changed; None while ZooKeeper is away."""
        if not self._store.session.connected:
            self._lost_since = None  # the others have to come back, too, before it means anything
            if self._process is not None:
                self._process = replace(self._process, absent=None)
            return None
        self._away_since = None
        if self._session_epoch != self._store.session.epoch:
            epoch = self._store.session.epoch
            self._put_slot("")
            self._session_epoch = epoch
        if self._snapshot is None or self._changed.is_set() or now - self._read_at >= READ_S:
            self._changed.clear()
            self._snapshot = snapshot = self._store.snapshot(wake=self.on_change)
            self._read_at = now
            if self._process is not None:
                self._process = seen(self._process, snapshot, now)
                self._report_end(self._process, snapshot)
            if snapshot.job.state is not self._state:
                self._state, self._state_since = snapshot.job.state, now
            lost = ring_lost(snapshot, self._process)
            self._lost_since = (self._lost_since or now) if lost else None
            for number, event in self._store.events(self._last_event) if lost else ():
                self._last_event = number
                if (worker := who_ended(event)) is not None:
                    self._ended.add(worker)
            generation = snapshot.generation.number if snapshot.generation else 0
            step = (generation, int(snapshot.status.get("step", -1)))
            if step != self._step:
                self._step, self._stepped = step, now
        return self._snapshot

    def _put_slot(self, given_up: str) -> None:
        self._slot_given_up = given_up or self._slot_given_up
        one = KeptSlot(self._host, self._slot, os.getpid(), self._slot_given_up)
        self._store.put_slot(one)

    def _follow_driver(self, snapshot: Snapshot, now: float) -> None:
        """Write what the driver has said into the plan; let it decide again when that is done."""
        said = self._driver.newest
        if said is not self._word:
            if self._moves(said, snapshot, now):
                return
            self._store.change_plan(
                lambda plan: assigned(plan, self._host, self._slot, said.local_size)
            )
            logger.info("the driver gives %s of slot %d", said, self._slot)
            self._word, self._word_since, self._answered = said, now, now
            if said.local_size is not None and self._child is None and not self._given_up:
                self._told = None  # the driver has taken back another slot for this one
            self._changed.set()
            return
        if removal_pending(snapshot) and now - self._word_since < REMOVAL_S:
            self._pending_at = now
        job, lost_slots = snapshot.job, self._lost_slots
        fatal = would_end_the_job(lost_slots.best, job.wish, lost_slots.barred, job.sizes)
        done = now - self._pending_at >= GONE_S
        runs = self._child is not None
        self._driver.allow(self._counts and may_ask(job.state, runs, done, fatal), said)
        if job.state.over:
            self._driver.begin_no_round()
        elif not fatal:
            self._remind_driver(snapshot, now)

    def _moves(self, said: Assigned, snapshot: Snapshot, now: float) -> bool:
        """Whether workers of this host move to others, whose places are not in the plan yet."""
        if said is not self._said:
            self._said, self._said_since = said, now
        lowered = assigned(snapshot.plan, self._host, self._slot, said.local_size)
        waits = awaits_others(snapshot.plan, lowered, snapshot.job.wish)
        return waits and now - self._said_since < MOVE_S

    def _outlive_driver(self, snapshot: Snapshot) -> None:
        """End the job in an orderly way: ssh does not take the processes of other hosts along."""
        if self._driver.gone and snapshot.job.state is JobState.RUNNING:
            reason = f"horovodrun has ended: nobody listens at {snapshot.job.driver}"
            self._store.set_job_state(JobState.STOPPING, reason, only_from=(JobState.RUNNING,))
            self._changed.set()

    def _remind_driver(self, snapshot: Snapshot, now: float) -> None:
        """The driver forgets a change of hosts that it finds while its rank 0 starts."""
        wish = {host: workers for host, workers in snapshot.job.wish.items() if workers}
        if wish != self._wish:
            self._wish, self._wish_since, self._reminded = wish, now, False
        if self._reminded or self._lost_slots.turn(snapshot) != 0:
            return
        barred = self._lost_slots.barred
        if forgotten(snapshot.plan, wish, barred, self._wish_since, self._said_since, now):
            self._reminded = True
            self._driver.ask()

    def _see_lost_slots(self, snapshot: Snapshot, now: float) -> None:
        """Find edl-workers that have died; let the driver place the slots anew if that helps."""
        lost_slots, size = self._lost_slots, self._word.size
        if snapshot.job.state.over or not self._counts:
            return
        before = lost_slots.best
        if lost_slots.see(snapshot, self._word_since, now):
            self._driver.ask()
        if lost_slots.lost and lost_slots.best is not before and lost_slots.turn(snapshot) == 0:
            self._say(f"edl-worker died in {lost_slots}: {lost_slots.best.value}")
        if without_barred(snapshot.plan, lost_slots.lost, size) != dict(snapshot.plan):
            self._store.change_plan(lambda plan: without_barred(plan, lost_slots.lost, size))
            self._changed.set()

    def _own(self, now: float) -> SlotState:
        return SlotState(
            slot=self._slot,
            process=self._process,
            state_since=self._state_since,
            removed=self._word.local_size is None,
            told=self._told,
            given_up=self._given_up,
            cut_off=self._unread_since is not None and now - self._unread_since >= ORPHAN_S,
            lost_since=self._lost_since,
            backoff_max_s=self._backoff_max_s,
            script=title(self._command),
            stepped=self._stepped,
            ended=frozenset(self._ended),
        )

    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None:
        """Carry out a signal: end, and give up a slot of this host.

        The latter not at once: a horovodrun that is about to end would place the slots anew.
        """
        if self._signalled and self._told is None:
            self._told, self._released = now, False
            # The driver ends the processes of a host that it bars, and all when it gives up.
            answers = self._driver.asking or self._driver.newest is not self._word
            self._given_up = answers or now - self._answered < GIVEN_UP_S
        self._signalled = False
        done = self._told is None or self._released or self._given_up
        if done or now - (self._told or 0.0) < SHUTDOWN_S:
            return
        if snapshot is not None and snapshot.job.wish:
            sizes = snapshot.job.sizes
            self._store.change_wish(lambda wish: released(wish, self._host, sizes))
            self._released = True

    def _look_who_reads(self, now: float) -> None:
        """See whether the ssh that began this process has ended: to the driver that is our end.

        From then on it must not be asked: it would count our question as another slot's.
        """
        if self._unread_since is None and is_unread(STDOUT):
            self._unread_since = now
            self._driver.allow(False, self._driver.newest)

    @property
    def _counts(self) -> bool:
        """Whether the driver counts on this process: it has its slot, and has not ended."""
        return self._word.local_size is not None and self._unread_since is None

    def _alone(self, now: float) -> int | None:
        """A turn without ZooKeeper: the worker trains on, and a dead one has to wait."""
        if self._away_since is None:
            self._away_since = now
        if self._told is not None and self._process is not None and self._process.told is None:
            self._end(Ending(self._process.launch, False, "edl-worker is to end"), now)
        if self._child is None and now - self._away_since >= AWAY_S:
            self._say(f"ZooKeeper is away for {AWAY_S:g} s and no worker is in slot {self._slot}")
            return 1
        return None

    # --- acts

    def _start(self, start: Start, now: float) -> None:
        launch = f"{self._token}-{self._starts}"
        self._starts += 1
        process = Process(start.slot, launch, now, failures=start.failures)
        try:
            self._child = subprocess.Popen(
                self._command,
                env={**self._environment, "EDL_LAUNCH": launch},
                stdin=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                start_new_session=True,
                preexec_fn=die_with_parent,  # the driver may kill edl-worker at any time
            )
        except OSError as error:
            self._process = unstarted(process, self._command, error)
            self._say(self._process.last_line)
            return
        logger.info("started process %d: %s", self._child.pid, start.reason)
        assert self._child.stderr is not None
        self._tee = Tee(self._child.stderr, sys.stderr.buffer)
        self._tee.start()
        self._process = process

    def _end(self, ending: Ending, now: float) -> None:
        assert self._process is not None
        if self._process.told is None:
            self._process = replace(self._process, told=now, why=ending.reason)
        logger.info("ending %s: %s", self._process.name, ending.reason)
        self._signal(signal.SIGKILL if ending.kill else signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._child is not None:
            signal_group(self._child.pid, number)

    def _kill(self) -> None:
        """Nothing of the training process outlives this one."""
        self._signal(signal.SIGKILL)
        if self._child is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):  # a driver of the kernel holds it
                self._child.wait(KILLED_S)

    def _report_end(self, process: Process, snapshot: Snapshot) -> None:
        if not process.alive and process.launch not in self._reported:
            worker_ended(self._store, process, self._host, snapshot)
            self._reported.add(process.launch)

    def _give_up(self, reason: str, snapshot: Snapshot) -> None:
        assert self._process is not None
        self._process = replace(self._process, used_up=True)
        self._put_slot(reason)
        slot_given_up(self._store, self._host, self._slot, reason, snapshot.plan, snapshot)
        self._say(reason)

    def _conclude(self, outcome: Outcome, snapshot: Snapshot) -> None:
        conclude(self._store, outcome, snapshot)
        self._changed.set()

    def _leave(self, snapshot: Snapshot, code: int, now: float) -> int | None:
        """The exit code for the driver, from ``code``; None: its end would not count as one yet."""
        if not (snapshot.job.state.over and self._counts and self._asked()):
            return self._say_end(snapshot, code)
        before = self._waits_since
        self._waits_since = before if before is not None else now
        waited, lost = now - self._waits_since, str(self._lost_slots)
        decision = last_round(snapshot.job, self._slot, self._driver.answers, lost, waited)
        first = not self._waits_said and waited >= ROUND_S
        if first and (decision.exit_code is not None or self._lost_slots.turn(snapshot) == 0):
            self._waits_said = True
            self._say(decision.reason)
        return decision.exit_code

    def _asked(self) -> bool:
        """Whether the driver waits for our question; if not, none is asked from now on."""
        if self._driver.asked():
            return True
        self._driver.allow(False, self._driver.newest)
        return self._driver.asked()

    def _say_end(self, snapshot: Snapshot, code: int) -> int:
        """Say how the job has ended; the exit code for the driver, from ``code``."""
        job, lost_slots = snapshot.job, self._lost_slots
        if job.state is JobState.FAILED:
            self._say(f"job {job.name} has failed: {job.reason}")
        elif job.state is JobState.FINISHED and lost_slots.lost and lost_slots.turn(snapshot) == 0:
            self._say(
                f"job {job.name} has finished; horovodrun ends with an error all the same, "
                f"because edl-worker died in {lost_slots}"
            )
        elif code == 0 and self._given_up and self._word.local_size is not None:
            self._say("the driver of horovodrun has given up; see its message")
            return 1
        return code

    @staticmethod
    def _say(sentence: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it any more
            print(f"edl: {sentence}", file=sys.stderr, flush=True)

    # --- signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signalled = True
