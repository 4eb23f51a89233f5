"""The agent: the process of `edl run` or `edl join` that keeps a job's workers running on a host.

It reads the facts, lets :mod:`edl.core.host.agent` decide, and acts: starts, ends, reports. It
survives a ZooKeeper that is away, and the workers survive it: they train on without an agent.
"""

from __future__ import annotations

import contextlib
import logging
import signal
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from edl.coordination.job_store import JobStore
from edl.core.event_text import describe
from edl.core.host.agent import (
    FROZEN_S,
    AgentDecision,
    AgentState,
    Ending,
    GiveUp,
    Outcome,
    RingDeath,
    Start,
    decide,
    lingers,
    observe,
    record_ring_death,
    relevant,
)
from edl.core.host.process import BACKOFF_MAX_S, Process, exited, how, unstarted
from edl.core.host.process import exit_status as status_of
from edl.core.job.host_join import arrive, is_last, withdrawn
from edl.core.job.placement import drain_host
from edl.core.plural import workers
from edl.core.records import Host, Job, JobState, Snapshot
from edl.errors import CoordinationError, UnknownJob, UsageError
from edl.launch.adoption import has_died
from edl.launch.command import title
from edl.launch.frozen import Frozen
from edl.launch.output import Output
from edl.launch.record import conclude, slot_given_up, who_ended, worker_ended
from edl.launch.signals import handled
from edl.launch.workers import Workers

logger = logging.getLogger(__name__)

POLL_S = 0.2  # at the latest, for workers that have ended
READ_S = 1.0  # at the latest, for the facts; changes wake the agent earlier
FORMER_S = 60.0  # for the session of an agent that was killed here to end
FORMER_SESSIONS = 2.0  # the same for one elsewhere, which may also be alive, in sessions of ours
AWAY_S = 120.0  # without ZooKeeper and without a living worker there is nothing to wait for
KILLED = 130  # exit code after a second signal, as a shell's after Ctrl-C

_SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the end of the terminal",
}


class Agent:
    """One host's part in one job. ``run()`` returns the exit code of `edl run` / `edl join`.

    Args:
        store: the job; its session is open.
        host: this host, as the job shall know it.
        job: what to run.
        environment: of the workers, besides what the agent adds.
        logs: an existing directory for the workers' output.
        greeting: what to say once this host is registered.
        np: workers that this host brings: it asks for them when it is registered.
        guest: the first signal makes this host leave the job instead of ending the job. A host
            that is needed leaves as soon as others have taken its place.
        ends_last: but on the last host it ends the job.
        on_snapshot: called with each new reading of the facts.
        backoff_max_s: the longest pause of a slot whose workers die.
        frozen_s: after this long without an answer a worker may count as frozen.
        stack_signal: makes a worker write down where its threads are; 0: none does.
    """

    def __init__(
        self,
        store: JobStore,
        host: Host,
        job: Job,
        output: Output,
        environment: Mapping[str, str],
        logs: Path,
        start_timeout_s: float,
        greeting: str,
        np: int = 0,
        guest: bool = False,
        ends_last: bool = False,
        on_snapshot: Callable[[Snapshot], None] | None = None,
        backoff_max_s: float = BACKOFF_MAX_S,
        frozen_s: float = FROZEN_S,
        stack_signal: int = 0,
    ) -> None:
        self._store = store
        self._host = host
        self._job = job
        self._output = output
        self._greeting = greeting
        self._asks_np = np
        self._got_np: int | None = None  # of them, when it asked last
        self._guest = guest
        self._ends_last = ends_last
        self._start_timeout_s = start_timeout_s
        self._backoff_max_s = backoff_max_s
        self._on_snapshot = on_snapshot
        self._workers = Workers(job.spec.command, Path(job.spec.cwd), environment, logs)
        self._frozen = Frozen(store, host.name, self._workers, stack_signal)
        self._frozen_s = frozen_s
        self._script = title(job.spec.command)
        self._token = uuid.uuid4().hex[:12]
        self._launches = 0
        self._processes: tuple[Process, ...] = ()
        self._ring_deaths: tuple[RingDeath, ...] = ()
        self._snapshot: Snapshot | None = None
        self._state = job.state
        self._state_since = 0.0
        self._read_at = 0.0
        self._epoch = 0  # of the ZooKeeper session that has our host node
        self._written: Host | None = None  # what that node says
        self._away_since: float | None = None
        self._last_event = -1
        self._step = (-1, -1)  # generation and step, as the leader has told them
        self._stepped = 0.0  # when that changed
        self._ended: set[int] = set()  # workers whose end was logged, by any agent
        self._wake = threading.Event()  # somebody wants a turn
        self._changed = threading.Event()  # the facts have changed
        self._signals: Counter[signal.Signals] = Counter()
        self._asked = False  # the first signal has been carried out
        self._refused: Snapshot | None = None  # in which this host could not leave
        self._draining = False
        self._told: set[str] = set()  # notes and warnings that were shown
        self._reported: set[str] = set()  # launches whose end was logged

    def run(self) -> int:
        """Work until the job is over, or this host has left it; the exit code.

        Raises:
            UsageError: another agent has this host's name.
        """
        self._state_since = time.monotonic()
        self._store.session.add_listener(lambda state: self._on_change())
        clean = False
        try:
            with handled(_SIGNALS, self._on_signal), self._output:
                self._await_former()
                while (code := self._turn(time.monotonic())) is None:
                    self._wake.wait(POLL_S)
                    self._wake.clear()
            clean = True
            return code
        finally:
            if not clean:
                self._workers.kill_all()

    def _await_former(self) -> None:
        """Wait until ZooKeeper knows that an agent of this name is gone, if it may have died.

        Perhaps with its machine, which this one replaces under the same name.
        """
        began = time.monotonic()
        while not self._signals:
            try:
                hosts = {host.name: host for host in self._store.snapshot().hosts}
            except CoordinationError:
                return
            former = hosts.get(self._host.name)
            if former is None:
                return
            if former.address != self._host.address:
                limit = FORMER_SESSIONS * self._store.session.session_timeout_s
                who = f"agent {former.pid} at {former.address} if it died, at most {limit:g} s"
            elif has_died(former):
                limit, who = FORMER_S, f"agent {former.pid}, which died"
            else:
                return
            if time.monotonic() - began >= limit:
                return
            self._note_once(f"waiting for the end of the session of {who}")
            self._wake.wait(POLL_S)

    def _adopt(self, now: float) -> None:
        """Take over the workers that an earlier agent of this host has left behind."""
        for one in self._workers.adopt():
            log = self._workers.log_of(one.launch)
            if log.exists():
                self._output.follow(one.launch, log, one.slot, from_now=True)
            process = Process(one.slot, one.launch, now - one.age_s)
            self._processes = (*self._processes, process)
            self._output.note(f"took over the worker in slot {one.slot}, process {one.pid}")

    def _turn(self, now: float) -> int | None:
        self._reap(now)
        if sum(self._signals.values()) > 1:
            return self._kill()
        try:
            snapshot = self._read(now)
            if snapshot is None:
                return self._alone(now)
            self._arrive(snapshot, now)
            self._handle_signal(snapshot)
            self._handle_drain(snapshot)
            self._leave_again(snapshot)
            decision = decide(snapshot, self._own(), now)
            self._act(decision, snapshot, now)
        except UnknownJob as error:
            self._workers.kill_all()
            self._output.note(f"{error}; its workers on this host were ended")
            return 1
        except CoordinationError as error:
            logger.info("%s", error)
            self._changed.set()
            return None
        except UsageError as error:
            if not self._epoch:
                raise
            # It was away for so long that another one has taken its place, and its workers.
            self._workers.release()
            self._output.note(f"{error}; this agent ends, the workers train on")
            return 1
        return self._result(snapshot.job) if decision.end else None

    # --- facts

    def _reap(self, now: float) -> None:
        for launch, code in self._workers.ended_scripts().items():
            process = self._process(launch)
            if process.ended is None:
                self._replace(replace(process, ended=now, ended_code=code))
        finished = self._state is JobState.FINISHED
        for one in self._workers.reap():
            last_line = self._output.finish(one.launch)
            ended = exited(self._process(one.launch), one.exit_code, now, last_line, finished)
            self._replace(ended)
            self._changed.set()  # judge it by what ZooKeeper says now
            if ended.worker is not None:
                # It is dead, whatever its session says: the leader need not wait for that.
                with contextlib.suppress(CoordinationError, UnknownJob):
                    self._store.remove_member(ended.worker)

    def _read(self, now: float) -> Snapshot | None:
        """The facts, read anew when they may have changed; None while ZooKeeper is away."""
        session = self._store.session
        if not session.connected:
            return None
        if self._away_since is not None:
            self._away_since = None
            # The workers have to come back, too, before their absence means anything.
            self._processes = tuple(replace(p, absent=None) for p in self._processes)
            self._output.note("ZooKeeper is back")
        if self._epoch != session.epoch or self._written is not self._host:
            epoch = session.epoch
            self._put_host()
            if not self._epoch:
                self._adopt(now)
                if self._guest:  # what happened before it came is for `edl events`
                    self._last_event = max((n for n, _ in self._store.events()), default=-1)
            self._epoch = epoch
            self._note_once(self._greeting)
        if self._snapshot is None or self._changed.is_set() or now - self._read_at >= READ_S:
            self._changed.clear()
            self._snapshot = self._store.snapshot(wake=self._on_change)
            self._read_at = now
            if all(host.name != self._host.name for host in self._snapshot.hosts):
                self._put_host()  # unless the job is over, and another one of its name began
            self._show_events()
            self._observe(self._snapshot, now)
        return self._snapshot

    def _observe(self, snapshot: Snapshot, now: float) -> None:
        unnamed = {p.launch for p in self._processes if p.worker is None}
        self._processes = observe(self._processes, snapshot, now)
        self._processes = self._frozen.look(self._processes, snapshot, now)
        for process in self._processes:
            if process.launch in unnamed and process.worker is not None:
                self._output.name(process.launch, process.name)
            if not process.alive and process.launch not in self._reported:
                worker_ended(self._store, process, self._host.name, snapshot)
                self._reported.add(process.launch)
        self._processes = relevant(self._processes, snapshot)
        self._ring_deaths = record_ring_death(
            self._ring_deaths, self._processes, snapshot, self._token, now
        )
        generation = snapshot.generation.number if snapshot.generation else 0
        step = (generation, int(snapshot.status.get("step", -1)))
        if step != self._step:
            self._step, self._stepped = step, now
        if snapshot.job.state is not self._state:
            self._state, self._state_since = snapshot.job.state, now
        if self._on_snapshot is not None:
            self._on_snapshot(snapshot)

    def _show_events(self) -> None:
        for number, event in self._store.events(self._last_event):
            self._last_event = number
            if (worker := who_ended(event)) is not None:
                self._ended.add(worker)
            # The last line says how the job has ended; that workers end as they should is usual.
            if not event.kind.startswith("job_") and event.kind != "worker_exited":
                self._output.note(describe(event))

    def _on_change(self) -> None:
        """From ZooKeeper's threads."""
        self._changed.set()
        self._wake.set()

    def _own(self) -> AgentState:
        return AgentState(
            host=self._host.name,
            token=self._token,
            processes=self._processes,
            state_since=self._state_since,
            start_timeout_s=self._start_timeout_s,
            backoff_max_s=self._backoff_max_s,
            script=self._script,
            draining=self._draining,
            ring_deaths=self._ring_deaths,
            stepped=self._stepped,
            ended=frozenset(self._ended),
            frozen_s=self._frozen_s,
        )

    def _alone(self, now: float) -> int | None:
        """A turn without ZooKeeper: the workers train on, nothing else can be done."""
        if self._away_since is None:
            self._away_since = now
            self._output.note("ZooKeeper is away; training goes on, changes wait for its return")
        if len(self._workers) == 0 and now - self._away_since >= AWAY_S:
            self._output.note(
                f"no worker is left and ZooKeeper is away for {AWAY_S:g} s; giving up"
            )
            return 1
        if self._signals and not self._asked:
            self._note_once("ZooKeeper is away, so the job cannot be told; again kills its workers")
        return None

    # --- acts

    def _act(self, decision: AgentDecision, snapshot: Snapshot, now: float) -> None:
        for warning in decision.warnings:
            self._note_once(warning)
        for ending in decision.endings:
            self._end(ending, now)
        for start in decision.starts:
            self._start(start, now)
        if decision.give_up is not None:
            self._give_up(decision.give_up, snapshot)
        if decision.outcome is not None:
            self._conclude(decision.outcome, snapshot)

    def _start(self, start: Start, now: float) -> None:
        launch = f"{self._token}-{self._launches}"
        self._launches += 1
        process = Process(start.slot, launch, now, failures=start.failures)
        if str(start.slot) in self._host.given_up:
            others = {k: v for k, v in self._host.given_up.items() if k != str(start.slot)}
            self._host = replace(self._host, given_up=others)  # written in the next turn
        try:
            path = self._workers.start(launch, start.slot)
        except OSError as error:
            process = unstarted(process, self._job.spec.command, error)
        else:
            logger.info("slot %d: %s", start.slot, start.reason)
            self._output.follow(launch, path, start.slot)
        self._processes = (*self._processes, process)

    def _end(self, ending: Ending, now: float) -> None:
        process = self._process(ending.launch)
        if process.told is None:
            self._replace(replace(process, told=now, why=ending.reason))
            if process.mute is not None:
                self._frozen.write_stacks(process)
                self._changed.set()
        logger.info("ending %s: %s", process.name, ending.reason)
        self._workers.end(ending.launch, ending.kill)

    def _give_up(self, given_up: GiveUp, snapshot: Snapshot) -> None:
        """Take a slot out of the plan, and say so; whoever plans more workers here may use it."""
        name, before = self._host.name, snapshot.plan

        def change(plan: dict[str, int]) -> dict[str, int]:
            return dict(given_up.plan) if plan == dict(before) else plan

        self._changed.set()
        if self._store.change_plan(change) != dict(given_up.plan):
            return  # it was changed meanwhile, so the slot is judged again
        process = self._process(given_up.launch)
        self._replace(replace(process, used_up=True))
        told = {**self._host.given_up, str(given_up.slot): given_up.reason}
        self._host = replace(self._host, given_up=told)  # written in the next turn
        slot_given_up(self._store, name, given_up.slot, given_up.reason, given_up.plan, snapshot)

    def _conclude(self, outcome: Outcome, snapshot: Snapshot) -> None:
        conclude(self._store, outcome, snapshot)
        self._changed.set()

    def _arrive(self, snapshot: Snapshot, now: float) -> None:
        """Ask for the workers that this host brings.

        For a while: a host in whose place it comes may count as there until its session ends.
        """
        asked, got, name = self._asks_np, self._got_np, self._host.name
        if not asked or self._signals or snapshot.job.state is not JobState.RUNNING:
            return
        late = now - self._state_since >= FORMER_S
        has = snapshot.plan.get(name, 0)
        if has >= asked:
            self._asks_np = 0
            return
        if arrive(snapshot, snapshot.plan, name, asked, got, late).get(name, 0) > has:
            plan = self._store.change_plan(
                lambda plan: arrive(snapshot, plan, name, asked, got, late)
            )
            has = plan.get(name, 0)
            self._changed.set()
        if late or has >= asked or withdrawn(has, got):
            self._asks_np = 0
        if withdrawn(has, got):
            return
        self._got_np = has
        limit = "" if has >= asked else f", not {asked}: the job may have {snapshot.job.sizes}"
        self._note_once(f"host {name} has a place for {workers(has)}{limit}")

    # --- signals

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only count: the interrupted thread may hold any lock, also that of an event.
        self._signals[signal.Signals(number)] += 1

    def _handle_signal(self, snapshot: Snapshot) -> None:
        """Carry out the first signal, once."""
        if not self._signals or self._asked or snapshot is self._refused:
            return
        cause = _SIGNALS[next(iter(self._signals))]
        if snapshot.job.state.over:
            for process in self._processes:
                if process.alive and process.told is None and not lingers(process):
                    self._end(Ending(process.launch, False, cause), time.monotonic())
        elif self._guest and not (self._ends_last and is_last(snapshot, self._host.name)):
            self._leave(snapshot, cause)
            return
        else:
            self._output.note(f"{cause}: the job ends after this step; again kills its workers")
            reason = f"{cause} in edl run"
            self._store.set_job_state(JobState.STOPPING, reason, only_from=(JobState.RUNNING,))
            self._changed.set()
        self._asked = True

    def _handle_drain(self, snapshot: Snapshot) -> None:
        """Leave the job if somebody asks this host to."""
        here = next((host for host in snapshot.hosts if host.name == self._host.name), None)
        if here is None or not here.leaving or self._draining or snapshot.job.state.over:
            return
        self._leave(snapshot, "edl drain")
        if not self._draining:
            self._put_host()  # the question is answered
            self._changed.set()

    def _leave(self, snapshot: Snapshot, cause: str) -> None:
        name = self._host.name
        try:
            self._store.change_plan(lambda plan: drain_host(snapshot, name, plan))
        except UsageError as error:
            hint = "; a second signal kills the workers on this host" if self._signals else ""
            self._note_once(f"{error}{hint}")
            self._refused = snapshot
            return
        hint = "; again kills its workers" if self._signals else ""
        self._output.note(f"{cause}: host {name} leaves the job{hint}")
        self._asks_np = 0
        self._draining = self._guest = True  # from now on a signal is about this host alone
        self._asked = bool(self._signals)
        self._host = replace(self._host, slots=0)  # so that nobody is placed here again
        self._put_host()
        self._changed.set()

    def _leave_again(self, snapshot: Snapshot) -> None:
        """Leave again: who did not know that this host leaves has planned workers here."""
        name = self._host.name
        if not self._draining or snapshot.job.state.over or not snapshot.plan.get(name):
            return
        try:
            self._store.change_plan(lambda plan: drain_host(snapshot, name, plan))
        except UsageError as error:
            self._note_once(str(error))
        else:
            self._changed.set()

    def _put_host(self) -> None:
        host = self._host
        self._store.put_host(host)
        self._written = host

    def _kill(self) -> int:
        """A second signal."""
        self._workers.kill_all()
        self._output.note("the workers on this host were killed")
        name = self._host.name
        try:
            if not self._store.session.connected:
                return KILLED
            members = self._store.snapshot().members
            others = [m for m in members if not m.launch.startswith(self._token)]
            either = (JobState.RUNNING, JobState.STOPPING)
            if self._guest:
                self._store.change_plan(lambda plan: {**plan, name: 0})
            elif others:
                reason = f"the workers on {name} were killed by a second signal"
                self._store.set_job_state(JobState.STOPPING, reason, only_from=either[:1])
            else:
                reason = "a second signal killed all workers"
                self._store.set_job_state(JobState.STOPPED, reason, KILLED, only_from=either)
        except (CoordinationError, UnknownJob) as error:
            self._output.note(str(error))
        return KILLED

    # --- bits

    def _result(self, job: Job) -> int:
        if not job.state.over:
            self._output.note(f"host {self._host.name} has left job {job.name}")
            return 0
        self._show_events()
        self._output.note(f"job {job.name} {job.state}: {job.reason or 'no reason given'}")
        if job.state is JobState.FAILED:
            return job.exit_code
        late = [p for p in self._processes if p.failed_late(self._state_since)]
        if job.state is JobState.FINISHED and late:
            code = late[0].exit_code or 1
            self._output.note(f"after that, {late[0].name} {how(code)}")
            return status_of(code)
        return 0

    def _process(self, launch: str) -> Process:
        return next(p for p in self._processes if p.launch == launch)

    def _replace(self, process: Process) -> None:
        self._processes = tuple(
            process if p.launch == process.launch else p for p in self._processes
        )

    def _note_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            self._output.note(text)
