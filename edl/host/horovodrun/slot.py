"""Supervise the worker in one slot of horovodrun: the main part of `edl-worker`.

The driver takes the end of an `edl-worker` for the end of its slot or of the job, so this process
ends only when that is right: :mod:`edl.host.horovodrun.decide`.
"""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from edl.host.agent import Supervisor
from edl.host.horovodrun.decide import (
    LostSlots,
    SlotLimits,
    SlotRelease,
    SlotState,
    awaits_others,
    decide_slot,
    forgotten,
    keeps_slot,
    last_round,
    may_ask,
    placed_otherwise,
    removal_pending,
    with_answer,
    without_barred,
    would_end_the_job,
)
from edl.host.horovodrun.driver import Driver, discovered, find_launcher
from edl.host.horovodrun.last_answer import DesiredFile
from edl.host.output import Tee
from edl.host.process import Process, title
from edl.host.supervision import DisableSlot, EndProcess, Start, SupervisorDecision, dead_ring
from edl.host.workers import Workers, die_with_parent, is_unread
from edl.job.placement import Placement
from edl.job.snapshot import Snapshot
from edl.records import JobState, RequestedBy, SlotRecord
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# The driver notifies rank 0 of a change of hosts, and a change that comes before rank 0 has
# registered is lost. So the process that was started as rank 0 asks the driver once to assign the
# slots again, unless `edl-discover` is used, which says how many workers are desired. The ranks
# stay, and no worker stops.


class LateStart:
    """A check, made once, whether horovodrun's driver must be asked to assign its slots again."""

    # Hosts may have changed before its rank 0 had registered, and it tells nobody later.

    def __init__(self, driver: Driver, discover_s: float) -> None:
        self._driver = driver
        self._discover_s = discover_s
        self._first = driver.newest if driver.newest.rank == 0 else None  # None: it is settled
        self._since: float | None = None

    def has_missed_hosts(self, snapshot: Snapshot, now: float) -> bool:
        """Return, at most once True, whether to ask the driver to assign its slots again."""
        self._since = now if self._since is None else self._since
        if self._first is None or now - self._since < self._discover_s:
            return False
        late = self._driver.newest is self._first
        if late and sum(snapshot.assigned.hosts.values()) < self._first.size:
            return False
        self._first = None
        if not late:
            return False
        # Each assignment counts for a --reset-limit: only if the discovery script says other hosts.
        launcher = find_launcher()
        limits = launcher.limits() if launcher and launcher.may_limit_resets() else None
        if limits is not None and limits.reset_limit is not None:
            hosts, assigned = discovered(limits), snapshot.assigned.hosts
            sizes = limits.max_np, limits.min_np
            if hosts is None or not placed_otherwise(assigned, hosts, *sizes):
                return False
        logger.info("the driver is asked for hosts that came before its rank 0 registered")
        return True


# ------------------------------------------------------------
# The worker dies with its `edl-worker`, as the driver counts the slot as failed then. It has the
# standard output of `edl-worker`, so that horovodrun shows it as usual; its standard error is
# copied, so that its last lines say why it has ended.


class SlotWorkers(Workers):
    """The worker process of one slot of horovodrun, one at a time; the kernel kills it with us."""

    def __init__(
        self, command: Sequence[str], cwd: Path, environment: Mapping[str, str], logs: Path
    ) -> None:
        super().__init__(command, cwd, environment, logs)
        self._tees: dict[str, Tee] = {}  # standard error, by the id of the start attempt

    def _spawn(self, attempt_id: str, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self._command,
            cwd=self._cwd,
            env=environment,
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
            preexec_fn=die_with_parent,  # the driver may kill edl-worker at any time
        )
        assert process.stderr is not None
        self._tees[attempt_id] = Tee(process.stderr, sys.stderr.buffer)
        self._tees[attempt_id].start()
        return process

    def termination_message(self, attempt_id: str) -> str:
        return self._tees.pop(attempt_id).finish()


STDOUT = 1


class SlotSupervisor(Supervisor[SlotState]):
    _workers: SlotWorkers

    def __init__(
        self,
        store: JobStore,
        driver: Driver,
        host: str,
        slot: int,
        command: Sequence[str],
        workers: SlotWorkers,
        limits: SlotLimits,
        stack_signal: int,
    ) -> None:
        token, script = uuid.uuid4().hex[:12], title(command)
        state = SlotState(host, token, limits=limits, script=script, slot=slot)
        super().__init__(store, workers, state, command, stack_signal)
        self._driver = driver
        self._host = host
        self._slot = slot
        self._slot_given_up = ""  # why no worker is started any more
        self._written: SlotRecord | None = None  # in ZooKeeper
        self._answer = driver.newest  # the newest answer of the driver, perhaps not assigned yet
        self._answer_since = 0.0
        self._placed_anew = False  # the driver keeps this slot in spite of the last signal
        self._word = driver.newest  # the answer of the driver that is assigned
        self._word_since = 0.0
        self._answered = -limits.given_up_s  # when the driver last did
        self._desired: Placement = {}
        self._desired_since = 0.0  # since when these are desired
        self._reminded = False  # whether the driver was reminded of these
        self._desired_file = DesiredFile("")
        self._late_start = LateStart(driver, limits.discover_s)
        self._lost_slots = LostSlots(host, slot, limits)
        self._pending_at = -limits.freed_s  # when a slot that was taken back was last seen in use
        self._release: SlotRelease | None = None  # still to be written, for a signal
        self._unread_since: float | None = None  # since when our output is not read any more
        self._waits_since: float | None = None  # for the driver, with nothing else to do
        self._waits_notified = False

    def run(self) -> int:
        self._word_since = time.monotonic()
        self._desired_file = DesiredFile.of_this_job()
        return super().run()

    def _turn(self, now: float) -> int | None:
        # The driver takes the end of our ssh for the end of this process, and would count a request
        # for a rank as another's: so never ask again.
        if self._unread_since is None and is_unread(STDOUT):
            self._unread_since = now
            self._driver.allow(False, self._driver.newest)
        return super()._turn(now)

    # --- records

    def _register(self, now: float) -> None:
        self._put_slot()

    def _put_slot(self) -> None:
        self._store.slots.put(record := self._record)
        self._written = record

    @property
    def _record(self) -> SlotRecord:
        ends = self._state.ends_with_job(self._lost_slots.barred)
        return SlotRecord(self._host, self._slot, os.getpid(), self._slot_given_up, ends)

    def _update(self, snapshot: Snapshot, now: float) -> None:
        super()._update(snapshot, now)
        if dead_ring(snapshot, self._state):  # otherwise the events of ended workers are not read
            list(self._new_events())

    def _follow(self, snapshot: Snapshot, now: float) -> None:
        if snapshot.discovered:  # an `edl-discover` has found the job
            self._desired_file.put(snapshot.desired.hosts, now)
        self._follow_driver(snapshot, now)
        if self._placed_anew and len(self._workers) == 0 and not self._state.disabled:
            self._state = replace(self._state, ending_since=None)
            self._placed_anew = False
        if self._written != self._record:
            self._put_slot()
        # Processes on other hosts outlive horovodrun, although their ssh has ended.
        if self._driver.gone and snapshot.job.state is JobState.RUNNING:
            reason = f"horovodrun has ended: nobody listens at {snapshot.job.driver}"
            self._store.set_job_state(JobState.STOPPING, reason, only_from=(JobState.RUNNING,))
            self._changed.set()
        if not snapshot.job.state.over and self._counts:
            self._update_lost_slots(snapshot, now)

    def _decide(self, snapshot: Snapshot, now: float) -> SupervisorDecision:
        since, orphan_s = self._unread_since, self._state.limits.orphan_s
        unread = since is not None and now - since >= orphan_s
        removed = self._word.local_size is None
        self._state = replace(self._state, removed=removed, unread=unread)
        return decide_slot(snapshot, self._state, now)

    # --- the driver

    def _follow_driver(self, snapshot: Snapshot, now: float) -> None:
        """Carry out the driver's newest answer; later, allow the next request for a rank."""
        answer = self._driver.newest
        if answer is not self._word:
            if answer is not self._answer:
                self._answer, self._answer_since = answer, now
            # It is carried out later, as workers move to other hosts.
            hosts, late = (
                snapshot.assigned.hosts,
                now - self._answer_since >= self._state.limits.move_s,
            )
            lowered = with_answer(hosts, self._host, self._slot, answer.local_size)
            if not late and awaits_others(snapshot.assigned, lowered, snapshot.desired):
                return
            self._store.assign(
                lambda now: with_answer(now, self._host, self._slot, answer.local_size)
            )
            logger.info("the driver gives %s of slot %d", answer, self._slot)
            self._word, self._word_since, self._answered = answer, now, now
            # After a signal it may have taken back another slot for this one.
            ended, released = len(self._workers) == 0, self._release is None
            self._placed_anew = keeps_slot(answer.local_size, ended, released)
            self._changed.set()
            return
        if removal_pending(snapshot) and now - self._word_since < self._state.limits.removal_s:
            self._pending_at = now
        job, lost_slots, desired = snapshot.job, self._lost_slots, snapshot.desired.hosts
        fatal = would_end_the_job(lost_slots.best, desired, lost_slots.barred, job.sizes)
        done = now - self._pending_at >= self._state.limits.freed_s
        runs = len(self._workers) > 0
        self._driver.allow(self._counts and may_ask(job.state, runs, done, fatal), answer)
        if job.state.over:
            self._driver.begin_no_round()
        elif not fatal:
            self._remind_driver(snapshot, now)

    def _remind_driver(self, snapshot: Snapshot, now: float) -> None:
        if not snapshot.desired.hosts:
            # Another discovery script than `edl-discover`: once, after the start.
            if self._late_start.has_missed_hosts(snapshot, now):
                self._driver.ask()
            return
        desired = {host: workers for host, workers in snapshot.desired.hosts.items() if workers}
        if desired != self._desired:
            self._desired, self._desired_since, self._reminded = desired, now, False
        if self._reminded or self._lost_slots.turn(snapshot) != 0:
            return
        barred, follow_s = self._lost_slots.barred, self._state.limits.follow_s
        times = (self._desired_since, self._answer_since, now, follow_s)
        if forgotten(snapshot.assigned.hosts, desired, barred, *times):
            self._reminded = True
            self._driver.ask()

    def _update_lost_slots(self, snapshot: Snapshot, now: float) -> None:
        lost_slots, size = self._lost_slots, self._word.size
        before = lost_slots.best
        if lost_slots.update(snapshot, self._word_since, now):
            self._driver.ask()
        if lost_slots.lost and lost_slots.best is not before and lost_slots.turn(snapshot) == 0:
            self._notify(f"edl-worker died in {lost_slots}: {lost_slots.best.value}")
        assigned = snapshot.assigned.hosts
        if without_barred(assigned, lost_slots.lost, size) != assigned:
            self._store.assign(lambda now: without_barred(now, lost_slots.lost, size))
            self._changed.set()

    # --- signals

    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None:
        """End the worker after a signal; later lower the host's desired number, if we still run."""
        state, limits = self._state, self._state.limits
        if self._signals and (state.ending_since is None or self._placed_anew):
            self._release = SlotRelease(self._host)  # this signal's own, also after another one
            # The driver ends the processes of a host that it bars, and all when it gives up.
            answers = self._driver.asking or self._driver.newest is not self._word
            given_up = answers or now - self._answered < limits.given_up_s
            self._state = state = replace(state, ending_since=now, disabled=given_up)
            self._placed_anew = False
        self._signals.clear()
        if self._release is None or state.ending_since is None or state.disabled:
            return
        # A horovodrun that ends signals all slots, of which none is to be removed.
        if now - state.ending_since < limits.shutdown_s:
            return
        if snapshot is not None and snapshot.desired.hosts:
            why = f"SIGTERM to slot {self._slot} of host {self._host}"
            lower = self._release.choice(snapshot.job.sizes)
            self._store.set_desired(lower, RequestedBy.LAUNCHER, why)
            self._release = None

    @property
    def _counts(self) -> bool:
        return self._word.local_size is not None and self._unread_since is None

    def _alone(self, now: float) -> int | None:
        for process in self._state.living:
            if self._state.ending_since is not None and process.ending_since is None:
                self._end(EndProcess(process.attempt_id, False, "edl-worker is to end"), now)
        return super()._alone(now)

    # --- acts

    def _start(self, start: Start, now: float) -> Process:
        process = super()._start(start, now)
        if not process.alive:
            self._notify(process.termination_message)
        return process

    def _disable_slot(self, given_up: DisableSlot, snapshot: Snapshot) -> None:
        self._slot_given_up = given_up.reason
        self._put_slot()
        super()._disable_slot(given_up, snapshot)
        self._notify(given_up.reason)

    # --- the end

    def _finish(self, snapshot: Snapshot, code: int, now: float) -> int | None:
        # A round of ranks that is open for this slot forbids its end. It joins none between this
        # check and the end of the process.
        waits = snapshot.job.state.over and self._counts
        if waits and not self._driver.asked():
            self._driver.allow(False, self._driver.newest)
            waits = self._driver.asked()
        if not waits:
            return self._notify_end(snapshot, code)
        before = self._waits_since
        self._waits_since = before if before is not None else now
        late = now - self._waits_since >= self._state.limits.round_s
        lost = str(self._lost_slots)
        decision = last_round(snapshot.job, self._slot, self._driver.answers, lost, late)
        first = not self._waits_notified and late
        if first and (decision.exit_code is not None or self._lost_slots.turn(snapshot) == 0):
            self._waits_notified = True
            self._notify(decision.reason)
        return decision.exit_code

    def _notify_end(self, snapshot: Snapshot, code: int) -> int:
        """Show how the job has ended; return the code for the driver, 1 if it gave up the job."""
        job, lost_slots = snapshot.job, self._lost_slots
        if job.state is JobState.FAILED:
            self._notify(f"job {job.name} has failed: {job.reason}")
        elif job.state is JobState.FINISHED and lost_slots.lost and lost_slots.turn(snapshot) == 0:
            self._notify(
                f"job {job.name} has finished; horovodrun ends with an error all the same, "
                f"because edl-worker died in {lost_slots}"
            )
        elif code == 0 and self._state.disabled and self._word.local_size is not None:
            self._notify("the driver of horovodrun has given up; see its message")
            return 1
        return code

    def _notify(self, text: str, for_all: bool = False) -> None:
        if for_all and self._snapshot is not None and self._lost_slots.turn(self._snapshot) != 0:
            return
        with contextlib.suppress(OSError):  # the output is not read any more
            print(f"edl: {text}", file=sys.stderr, flush=True)

    def _last_line(self, attempt_id: str) -> str:
        return self._workers.termination_message(attempt_id)
