"""The agent: the process of `edl run`, `edl join` or `edl agent` with a job's workers on a host.

:mod:`edl.core.host.agent` decides which workers to start and to end. This module carries that out,
takes over the workers of an earlier agent, lets the host join and leave the job, and shows the
job's output and events. If an agent dies, its workers train on. The main entry is :class:`Agent`.
"""

from __future__ import annotations

import logging
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from edl.coordination.job_store import JobStore
from edl.coordination.lifecycle import current_run
from edl.coordination.observations import no_template
from edl.core.event_text import LAST_WORDS
from edl.core.events import Event
from edl.core.host.agent import AgentLimits, AgentState, decide_agent, with_placement
from edl.core.host.devices import CUDA, busy_devices, entries
from edl.core.host.exit_codes import EXIT_CODES, AgentEnd, AgentResult, end_of_job
from edl.core.host.exit_status import exit_status, how
from edl.core.host.headlines import Headlines
from edl.core.host.job_end import TOLD, failed_late, failing_slots
from edl.core.host.process import Process
from edl.core.host.python_command import title
from edl.core.host.restart_policy import is_terminating
from edl.core.host.supervision import DisableSlot, EndProcess, Start, SupervisorDecision, foreign
from edl.core.job.borrowing import NO_LEASE_TERMS, LeaseTerms
from edl.core.job.ending import bound_of_signal
from edl.core.job.host_join import is_last, request_workers, withdrawn
from edl.core.job.placement import Placement, without_host
from edl.core.plural import workers
from edl.core.records import Host, Job, JobState, RequestedBy, Stage
from edl.core.snapshot import Snapshot
from edl.errors import AgentExists, CoordinationError, UnknownJob, UsageError
from edl.launch.adoption import RunningWorker, has_died, has_died_here
from edl.launch.borrowed_slots import BorrowedSlots
from edl.launch.command import missing_module_hint
from edl.launch.log_reader import last_output
from edl.launch.output import Output
from edl.launch.stop_without_zookeeper import NOT_TOLD, StopWithoutZooKeeper
from edl.launch.submitter import written_down
from edl.launch.supervisor import Supervisor
from edl.launch.template.keeper import NOT_WANTED, TemplateKeeper
from edl.launch.workers import Workers

logger = logging.getLogger(__name__)

_SIGNALS = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "SIGTERM",
    signal.SIGHUP: "the end of the terminal",
    signal.SIGUSR1: "SIGUSR1",
    signal.SIGUSR2: "SIGUSR2",
}


class Agent(Supervisor[AgentState]):
    """The launcher of one job's workers on one host, for `edl run`, `edl join` and `edl agent`."""

    def __init__(
        self,
        store: JobStore,
        host: Host,
        job: Job,
        output: Output,
        environment: Mapping[str, str],
        logs: Path,
        greeting: str,
        limits: AgentLimits,
        np: int = 0,
        joined: bool = False,
        ends_job: bool = False,
        on_snapshot: Callable[[Snapshot], None] = lambda _: None,
        stack_signal: int = 0,
        on_event: Callable[[Event], None] = lambda _: None,
        meanwhile: AbstractContextManager[int] | None = None,
        borrowed_file: Path | None = None,
        reclaim_s: float = 30.0,
        leave_within_s: float | None = None,
        of_run: bool = False,
    ) -> None:
        token, script = uuid.uuid4().hex[:12], title(job.spec.command)
        own = AgentState(
            host.name,
            token,
            limits=limits,
            script=script,
            state=job.state,
            is_submitter=not joined,
            cuda_devices=entries(environment.get(CUDA)),
            of_run=of_run,
        )
        command, cwd = job.spec.command, Path(job.spec.cwd)
        wanted = job.spec.settings.template
        self._search_path = environment.get("PATH")
        self._template = TemplateKeeper(command, cwd, environment, logs, wanted)
        self._no_template_told = False
        launched = Workers(command, cwd, environment, logs, self._template)
        super().__init__(store, launched, own, job.spec.command, stack_signal)
        self._host = replace(host, requested_np=np)
        self._logs = logs
        self._output = output
        self._greeting = greeting
        self._headlines = Headlines(host.name)
        self._got_np: int | None = None  # workers for which there was a place, when it asked last
        self._joined = joined
        self._ends_job = ends_job
        self._on_snapshot = on_snapshot
        self._on_event = on_event
        self._meanwhile = meanwhile or nullcontext(0)
        self._leaves = LeaseTerms(within_s=leave_within_s)
        self._borrowed = BorrowedSlots(store, host.name, borrowed_file, reclaim_s, self._say_once)
        self._written: Host | None = None  # what our node says
        self._asked = False  # the first signal has been carried out
        self._direct_end = StopWithoutZooKeeper(store, host.name, limits, self._say_once)
        self._refused: Snapshot | None = None  # in which this host could not leave
        self._lost_job.writes = not of_run
        self._ended_as, self._why = AgentEnd.ERROR, ""
        self._newest_step = 0  # in the events

    @contextmanager
    def _around(self) -> Iterator[None]:
        owner = nullcontext() if self._joined else written_down(self._logs, self._host.pid)
        with self._output, self._meanwhile as port, owner, self._borrowed.signals():
            self._host = replace(self._host, metrics_port=port)
            self._await_former()
            yield

    def _await_former(self) -> None:
        """Wait while ZooKeeper still lists an agent of this host's name that may have died."""
        began, limits = time.monotonic(), self._own.limits
        while not self._signals:
            try:
                hosts = {host.name: host for host in self._store.snapshot().hosts}
            except CoordinationError:
                return
            former = hosts.get(self._host.name)
            if former is None or has_died_here(former, self._host):
                return
            if not former.shares_machine(self._host):
                limit = limits.former_sessions * self._store.session.granted_s
                who = f"agent {former.pid} at {former.address} if it died, at most {limit:g} s"
            elif has_died(former):
                limit, who = limits.former_s, f"agent {former.pid}, which died"
            else:
                return
            if time.monotonic() - began >= limit:
                return
            self._say_once(f"waiting for the end of the session of {who}")
            self._wake.wait(limits.poll_s)

    def _take_over(self, orphans: Sequence[RunningWorker], now: float) -> None:
        """Watch the workers that an earlier agent left running, and show what they log."""
        self._workers.watch(orphans)
        for one in orphans:
            log = self._workers.log_of(one.attempt_id)
            if log.exists():
                self._output.follow(one.attempt_id, log, one.slot, from_now=True)
            self._own = replace(self._own, processes=(*self._own.processes, one.as_process(now)))
            self._say(f"took over the worker in slot {one.slot}, process {one.pid}")

    def _turn(self, now: float) -> int | None:
        if sum(self._signals.values()) > 1:
            return self._kill()
        try:
            return super()._turn(now)
        except UsageError as error:
            if self._incarnation is None:
                raise
            return self._make_way(error)

    def _make_way(self, error: UsageError) -> int | None:
        """End this agent, whose place another one took, with its workers, while it was away."""
        try:
            current = current_run(self._store.session, self._store.paths)
            # The other agent is that of a later run: these workers are killed.
            if current != self._store.nodes.run:
                return self._end_without_job(str(self._store.nodes.unknown()))
        except CoordinationError as away:
            logger.info("%s", away)
            return None
        self._workers.release()
        self._say(f"{error}; this agent ends, the workers train on")
        end = AgentEnd.ALREADY_HERE if isinstance(error, AgentExists) else AgentEnd.ERROR
        return self._ends(end, str(error), EXIT_CODES[end])

    def _end_without_job(self, why: str) -> int:
        return self._ends(AgentEnd.OVER, why, super()._end_without_job(why))

    def _ends(self, end: AgentEnd, why: str, code: int) -> int:
        self._ended_as, self._why = end, why
        return code

    def result(self, exit_code: int) -> AgentResult:
        """Return how this agent has ended, once `run()` has returned."""
        job, run = self._store.name, self._store.nodes.run
        told = self._snapshot.status.step if self._snapshot is not None else 0
        step = max(told, self._newest_step)
        return AgentResult(job, run, self._host.name, self._ended_as, exit_code, self._why, step)

    # --- records

    def _register(self, now: float) -> None:
        orphans: Sequence[RunningWorker] = ()
        past: Sequence[tuple[int, Event]] = ()
        if self._incarnation is None:  # what may fail is done before the take-over, to be repeated
            orphans = self._workers.orphans()  # their devices are in the first record
            devices = {one.device for one in orphans if one.device is not None}
            self._host = replace(self._host, busy=tuple(sorted(devices)))
            past = self._store.events.read_known() if self._joined else ()
        self._put_host()
        self._take_over(orphans, now)
        for number, event in past:  # not shown: that is for `edl events`
            self._last_event = number
            self._on_event(event)
        self._say_once(self._greeting)

    def _look(self, snapshot: Snapshot, now: float) -> None:
        if not any(host.is_same_agent(self._host) for host in snapshot.hosts):
            self._put_host()  # raises an error if another run or another agent has its place
        self._show_events(snapshot, now)
        super()._look(snapshot, now)
        if not self._asked:  # a host that leaves takes its workers away itself
            self._own = with_placement(self._own, snapshot.assigned, now)
        for process in self._own.living:
            if process.worker is not None:
                self._output.name(process.attempt_id, process.name)
                self._workers.name(process.attempt_id, process.name)
        self._on_snapshot(snapshot)

    def _show_events(self, snapshot: Snapshot, now: float) -> None:
        ready = [m.name for m in snapshot.members if not m.generation and m.stage is Stage.READY]
        for line in self._headlines.take(self._new_events(), snapshot.desired.np, now, ready):
            self._say(line)

    def _new_events(self) -> Iterator[Event]:
        for event in super()._new_events():
            self._newest_step = max(self._newest_step, event.step)
            self._on_event(event)
            yield event

    def _follow(self, snapshot: Snapshot, now: float) -> None:
        self._look_at_template(snapshot)
        self._note_devices(snapshot)
        if self._written is not self._host:
            self._put_host()
        self._request_workers(snapshot, now)
        self._handle_drain(snapshot)
        self._leave_again(snapshot)
        changed = not self._own.draining and self._borrowed.follow(snapshot)
        if self._borrowed.record_returned(snapshot, self._own) or changed:
            self._changed.set()

    def _note_devices(self, snapshot: Snapshot) -> None:
        """Update this host's record, in memory, with the devices that the job may use and uses."""
        own, assigned = self._own, snapshot.assigned
        here = [member for member in foreign(snapshot, own) if member.host == own.host]
        busy = busy_devices(assigned, own.host, own.living, here)
        devices = tuple(sorted(assigned.devices_on(own.host) or ()))
        failing = failing_slots(own)
        if (devices, busy, failing) != (self._host.devices, self._host.busy, self._host.failing):
            self._host = replace(self._host, devices=devices, busy=busy, failing=failing)

    def _look_at_template(self, snapshot: Snapshot) -> None:
        """Start the template of the workers, or read its messages without a wait."""
        self._template.look()
        why = self._template.why_none
        if why and why != NOT_WANTED and not self._no_template_told:
            no_template(self._store, self._host.name, why, snapshot)
            self._no_template_told = True

    def _decide(self, snapshot: Snapshot, now: float) -> SupervisorDecision:
        return decide_agent(snapshot, self._own, now)

    # --- acts

    def _start(self, start: Start, now: float) -> Process:
        if str(start.slot) in self._host.disabled:
            others = {k: v for k, v in self._host.disabled.items() if k != str(start.slot)}
            self._host = replace(self._host, disabled=others)  # written in the next turn
        process = super()._start(start, now)
        if process.alive:
            log = self._workers.log_of(process.attempt_id)
            self._output.follow(process.attempt_id, log, process.slot)
        return process

    def _disable_slot(self, given_up: DisableSlot, snapshot: Snapshot) -> None:
        """Lower the desired number of workers in the job's records, and disable a slot."""
        before, fewer = snapshot.desired.hosts, given_up.desired
        why = f"slot {given_up.slot} of host {self._host.name} is disabled"
        self._changed.set()
        if self._set_desired(lambda now: fewer if now == before else now, why) != fewer:
            return  # it was changed meanwhile, so the slot is judged again
        reasons = {**self._host.disabled, str(given_up.slot): given_up.reason}
        self._host = replace(self._host, disabled=reasons)  # written in the next turn
        super()._disable_slot(given_up, snapshot)

    def _request_workers(self, snapshot: Snapshot, now: float) -> None:
        """Raise the desired workers of this host to `requested_np`, as far as the job allows."""
        asked, got, name = self._host.requested_np, self._got_np, self._host.name
        if not asked or self._signals or snapshot.job.state is not JobState.RUNNING:
            return
        # The workers of a dead host that this one replaces may count until its session ends.
        late = now - self._own.state_since >= self._own.limits.former_s
        has = snapshot.desired.hosts.get(name, 0)
        if has >= asked:
            self._host = replace(self._host, requested_np=0)  # written in the next turn
            if got is not None:  # a host that came later has requested both
                self._say_once(f"host {name} has a place for {workers(has)}")
            return

        def change(now: Placement) -> Placement:
            return request_workers(snapshot, now, name, asked, got, late)

        if change(snapshot.desired.hosts).get(name, 0) > has:
            why = f"host {name} joins with {workers(asked)}"
            has = self._set_desired(change, why).get(name, 0)
            self._changed.set()
        if late or has >= asked or withdrawn(has, got):
            self._host = replace(self._host, requested_np=0)
        if withdrawn(has, got):
            return
        self._got_np = has
        limit = "" if has >= asked else f", not {asked}: the job may have {snapshot.job.sizes}"
        self._say_once(f"host {name} has a place for {workers(has)}{limit}")

    # --- signals

    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None:
        """Carry out the first signal once, if one has come: the host leaves, or the job ends."""
        if not self._signals or self._asked:
            return
        cause = _SIGNALS[next(iter(self._signals))]
        if snapshot is None:
            if self._joined:
                self._say_once(NOT_TOLD)
            else:
                self._direct_end.begin(self._snapshot, self._own.living, cause, now)
            return
        if snapshot is self._refused:
            return
        if snapshot.job.state.over:
            for process in self._own.living:
                if process.ending_since is None and not is_terminating(process):
                    self._end(EndProcess(process.attempt_id, False, cause), now)
        elif self._joined and not (self._ends_job and is_last(snapshot, self._host.name)):
            self._leave(snapshot, cause)
            return
        else:
            self._say(f"{cause}: the job ends after this step; again kills its workers")
            within_s = bound_of_signal(snapshot.job, next(iter(self._signals)))
            code, reason = exit_after(self._signals), f"{cause} in edl run"
            self._store.set_job_state(
                JobState.STOPPING, reason, 0 if within_s else code, end_within_s=within_s
            )
            self._changed.set()
        self._asked = True

    def _end_without_zookeeper(self, away_s: float) -> int | None:
        if not self._direct_end.begun:
            code = super()._end_without_zookeeper(away_s)
            away = "no worker is left and ZooKeeper is away"
            return code if code is None else self._ends(AgentEnd.ERROR, away, code)
        now, living = time.monotonic(), self._own.living
        for process in living if self._direct_end.is_late(now) else ():
            self._end(EndProcess(process.attempt_id, True, "the ring did not end in time"), now)
        if living or not self._direct_end.is_done(now):
            return None
        return self._ends(AgentEnd.STOPPED, TOLD, exit_after(self._signals))

    def _handle_drain(self, snapshot: Snapshot) -> None:
        """Let this host leave the job if `edl drain --host` requests it in `snapshot`."""
        here = next((host for host in snapshot.hosts if host.name == self._host.name), None)
        if here is None or not here.leaving or self._own.draining or snapshot.job.state.over:
            return
        self._leave(snapshot, "edl drain")
        if not self._own.draining:
            self._put_host()  # the question is answered
            self._changed.set()

    def _leave(self, snapshot: Snapshot, cause: str) -> None:
        name = self._host.name
        terms = self._leaves if self._signals else NO_LEASE_TERMS
        try:
            self._set_desired(
                lambda now: without_host(snapshot, name, now), f"{cause}: {name} leaves", terms
            )
        except UsageError as error:
            hint = "; a second signal kills the workers on this host" if self._signals else ""
            self._say_once(f"{error}{hint}")
            self._refused = snapshot
            return
        hint = "; again kills its workers" if self._signals else ""
        self._why = f"{cause}: host {name} leaves the job"
        self._say(f"{self._why}{hint}")
        self._own = replace(self._own, draining=True, is_submitter=False)
        self._joined = True  # from now on a signal is about this host alone
        self._asked = bool(self._signals)
        # No worker is to be placed here again.
        self._host = replace(self._host, slots=0, requested_np=0)
        self._put_host()
        self._changed.set()

    def _leave_again(self, snapshot: Snapshot) -> None:
        """Set the desired workers to 0 again, if somebody who did not know it raised them."""
        name = self._host.name
        if (
            not self._own.draining
            or snapshot.job.state.over
            or not snapshot.desired.hosts.get(name)
        ):
            return
        try:
            self._set_desired(lambda now: without_host(snapshot, name, now), f"host {name} leaves")
        except UsageError as error:
            self._say_once(str(error))
        else:
            self._changed.set()

    def _set_desired(
        self, change: Callable[[Placement], Placement], why: str, terms: LeaseTerms = NO_LEASE_TERMS
    ) -> Placement:
        return self._store.set_desired(change, RequestedBy.LAUNCHER, why, terms).desired.hosts

    def _put_host(self) -> None:
        """Write the record of this host into ZooKeeper; then workers may start on its devices."""
        host = self._host
        self._store.hosts.put(host, lambda other: has_died_here(other, host))
        self._written, self._own = host, replace(self._own, devices=host.devices)

    def _kill(self) -> int:
        """Kill the workers of this host after a second signal; return 128 + the first signal."""
        self._workers.kill_all(self._own.limits.killed_s)
        self._say("the workers on this host were killed")
        name, code = self._host.name, exit_after(self._signals)
        end = AgentEnd.PREEMPTED if self._joined else AgentEnd.STOPPED
        if self._snapshot is not None and self._snapshot.job.state.over:
            end = end_of_job(self._snapshot.job)
        self._ends(end, f"a second signal killed the workers on host {name}", code)
        try:
            if not self._store.session.connected:
                return code
            members = self._store.snapshot().members
            others = [m for m in members if not m.attempt_id.startswith(self._own.token)]
            either = (JobState.RUNNING, JobState.STOPPING)
            if self._joined:
                self._set_desired(lambda now: {**now, name: 0}, f"a second signal on host {name}")
            elif others:
                reason = f"the workers on {name} were killed by a second signal"
                self._store.set_job_state(JobState.STOPPING, reason, code)
            else:
                reason = "a second signal killed all workers"
                self._store.set_job_state(JobState.STOPPED, reason, code, only_from=either)
        except (CoordinationError, UnknownJob) as error:
            self._say(str(error))
        return code

    # --- what people see

    def _finish(self, snapshot: Snapshot, code: int, now: float) -> int:
        job = snapshot.job
        if not job.state.over:
            self._say(f"host {self._host.name} has left job {job.name}")
            has_left = self._own.is_elsewhere or not self._signals
            end_here = AgentEnd.LEFT if has_left else AgentEnd.PREEMPTED
            return self._ends(end_here, self._own.why_elsewhere or self._why, code)
        self._show_events(snapshot, now)
        for line in self._headlines.rest(wanted=0):
            self._say(line)
        end, reason = f"job {job.name} {job.state}", job.reason or "no reason given"
        self._ends(end_of_job(job), reason, code)
        said, last_words, last = reason.partition(LAST_WORDS)
        # The last line of a worker may be a sentence of edl's that was shown before.
        sentence = last.partition(": ")[2].removeprefix("edl: ") if last_words else ""
        self._output.note(f"{end}: {reason}", sentence, f"{end}: {said}")
        if hint := missing_module_hint(reason, job.spec.command, self._search_path):
            self._say(hint)
        if (late := failed_late(job, self._own)) is not None:
            self._say(f"after that, {late.name} {how(late.exit_code or 1)}")
        return code

    def _say(self, text: str, for_all: bool = False) -> None:
        self._output.note(text)

    def _last_line(self, attempt_id: str) -> str:
        return self._output.finish(attempt_id)

    def _output_tail(self, attempt_id: str) -> str:
        return last_output(self._workers.log_of(attempt_id))


def exit_after(signals: Iterable[signal.Signals]) -> int:
    """Return the exit code of a command that ended because of `signals`: 130 after Ctrl-C."""
    return exit_status(-next(iter(signals)))
