"""The agent: the process of `edl run`, `edl join` or `edl agent` with a job's workers on a host.

It carries out what :mod:`edl.host.decide` decides, takes over the workers of an earlier agent, lets
the host join and leave the job, and shows output and events. If it dies, its workers train on.
"""

from __future__ import annotations

import contextlib
import logging
import math
import signal
import threading
import time
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Generic

from edl.errors import AgentExists, CoordinationError, UnknownJob, UsageError
from edl.event_text import LAST_WORDS
from edl.events import Event
from edl.host.adoption import RunningWorker, has_died, has_died_here, identity, recorded_pid
from edl.host.command import missing_module_hint
from edl.host.decide import AgentLimits, AgentState, decide_agent, with_placement
from edl.host.devices import CUDA, busy_devices, entries
from edl.host.headlines import Headlines
from edl.host.job_end import TOLD, failed_late, failing_slots
from edl.host.logs import last_output
from edl.host.output import Output
from edl.host.process import (
    EXIT_CODES,
    AgentEnd,
    AgentResult,
    Process,
    end_of_job,
    exit_status,
    exited,
    how,
    script_ended,
    title,
    unstarted,
)
from edl.host.restart import is_terminating
from edl.host.signals import TO_END, child_ends_kept, handled
from edl.host.supervision import (
    DisableSlot,
    EndProcess,
    Start,
    State,
    SupervisorDecision,
    SupervisorLimits,
    SupervisorState,
    foreign,
    members_to_ask,
    noted,
    observe,
    without_zookeeper,
)
from edl.host.template import NOT_WANTED, TemplateKeeper
from edl.host.workers import ASK_TIMEOUT_S, UnresponsiveWorkers, Workers
from edl.http.client import answering, tell_end
from edl.http.signing import http_key
from edl.job.borrowing import (
    NO_TERMS,
    ReclaimTerms,
    ReclaimTracker,
    borrow,
    borrowed_after,
    overdue_on,
    reclaim,
    returned,
)
from edl.job.placement import Placement, is_last, request_workers, withdrawn, without_host
from edl.job.run import bound_of_signal
from edl.job.snapshot import Snapshot
from edl.records import Host, Job, JobState, RequestedBy, Stage
from edl.text import counted, excerpt, seconds, workers
from edl.zookeeper.nodes import current_run
from edl.zookeeper.store import (
    JobStore,
    LaunchersLostJob,
    conclude,
    no_template,
    slot_disabled,
    worker_ended,
    worker_frozen,
    worker_that_ended,
)

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Name the agent of `edl run` in a file beside the logs: `edl stop` finds it there without
# ZooKeeper.


_RECORD = "run.process"


@contextlib.contextmanager
def written_down(logs: Path, pid: int) -> Iterator[None]:
    """Let a file in `logs` name the job's agent meanwhile."""
    record, process = logs / _RECORD, identity(pid)
    with contextlib.suppress(OSError):  # a full disk: then it is not found
        record.write_text(process)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # a disk that fails; nobody takes it for a living one
            if record.read_text(errors="replace") == process:
                record.unlink()


def submitters(state: Path, job: str | None) -> dict[str, int]:
    found = {}
    for record in (state / "jobs").glob(f"{job or '*'}/logs/{_RECORD}"):
        if (pid := recorded_pid(record)) is not None:
            found[record.parent.parent.name] = pid
    return found


# ------------------------------------------------------------
# The loop of every launcher: read ZooKeeper, look at the worker processes, decide, and act. It goes
# on while ZooKeeper is away, and so do the workers.


ONE_SIGNAL_S = 0.5  # timeout(1) sends a signal to its command, and then to its process group


class Supervisor(ABC, Generic[State]):
    def __init__(
        self,
        store: JobStore,
        workers: Workers,
        state: State,
        command: Sequence[str],
        stack_signal: int,
    ) -> None:
        self._store = store
        self._workers = workers
        self._state = state
        self._command = tuple(command)
        notify = partial(self._notify, for_all=True)
        self._lost_job = LaunchersLostJob(store, notify, ASK_TIMEOUT_S)
        self._frozen = UnresponsiveWorkers(store, state.host, workers, stack_signal)
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
        self._state = replace(self._state, state_since=time.monotonic())
        self._store.session.add_listener(lambda state: self.on_change())
        self._workers.on_exit = self._wake.set
        with child_ends_kept():
            try:
                with handled(TO_END, self._on_signal), self._around():
                    while (code := self._turn(time.monotonic())) is None:
                        self._wake.wait(self._state.limits.poll_s)
                        self._wake.clear()
                return code
            finally:
                self._workers.kill_all(self._state.limits.killed_s)
                self._workers.close()

    @property
    def first_signal(self) -> signal.Signals | None:
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
    def _notify(self, text: str, for_all: bool = False) -> None:
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
            ages_s = self._reclaims.observe(snapshot.desired, now)
            late = overdue_on(self._state.host, ages_s)
            self._state = replace(self._state, overdue=late, reclaims_s=ages_s)
            self._follow(snapshot, now)
            self._state = self._frozen.update_suspended(self._state, snapshot, now)
            decision = self._decide(snapshot, now)
            self._act(decision, snapshot, now)
            if decision.exit_code is not None:
                return self._finish(snapshot, decision.exit_code, now)
        except UnknownJob as error:
            # ZooKeeper may have lost the job, which is written again if it is our turn.
            step = self._snapshot.status.step if self._snapshot is not None else 0
            if self._lost_job.handle(error, f"host {self._state.host}", step):
                self._changed.set()
                self._handle_signal(None, now)
                return self._end_without_zookeeper(0.0)
            return self._end_without_job(str(error))
        except CoordinationError as error:
            logger.info("%s", error)
            self._changed.set()
        return None

    def _reap(self, now: float) -> None:
        for attempt_id, said in self._workers.ended_scripts().items():
            self._state = self._state.having(
                script_ended(self._state.process(attempt_id), said, now)
            )
        for attempt_id, end in self._workers.reap().items():
            process, last_line = self._state.process(attempt_id), self._last_line(attempt_id)
            if end.said is not None:
                process = script_ended(process, end.said, now)
            ended = exited(process, end.code, now, last_line, end.trained_s)
            self._state = self._state.having(ended)
            if end.forked and ended.failed_at_start:
                self._workers.disable_template()
            self._changed.set()  # judge it by what ZooKeeper says now
            if ended.worker is not None:
                # The worker is dead even if its session lasts: no need to wait for the session.
                with contextlib.suppress(CoordinationError, UnknownJob):
                    self._store.members.remove(ended.worker, attempt_id)

    def _read(self, now: float) -> Snapshot | None:
        session = self._store.session
        if not session.connected:
            return None
        if self._away_since is not None:
            self._away_since = None
            self._state = without_zookeeper(self._state)
            self._notify("ZooKeeper is back", for_all=True)
        incarnation = self._store.incarnation
        if self._incarnation != incarnation:
            self._register(now)
            self._incarnation = incarnation
        due = now - self._read_at >= self._state.limits.read_s
        if self._snapshot is None or self._changed.is_set() or due:
            self._changed.clear()
            self._snapshot = self._store.snapshot(wake=self.on_change)
            self._read_at = now
            self._update(self._snapshot, now)
            self._lost_job.is_back()
        return self._snapshot

    def _update(self, snapshot: Snapshot, now: float) -> None:
        """Take new records over, ask suspect workers (about 1 s), and record how workers ended."""
        state = replace(self._state, processes=observe(self._state.processes, snapshot, now))
        self._state = state
        processes = self._frozen.update(state.processes, snapshot, now)
        for process in processes:
            if process.is_undecided(snapshot.job.state, now, state.limits.settle_s):
                continue
            if not process.alive and process.attempt_id not in self._reported:
                tail = self._output_tail(process.attempt_id)
                worker_ended(self._store, process, state.host, snapshot, tail)
                self._reported.add(process.attempt_id)
        state = replace(state, processes=processes)
        asked = members_to_ask(snapshot, state)
        living = answering(asked, self._store.nodes.run, ASK_TIMEOUT_S) if asked else frozenset()
        self._state = noted(replace(state, answering=living), snapshot, now)

    def _new_events(self) -> Iterator[Event]:
        """Yield the events since the last one yielded, those of a newer edl left out."""

        def left_out(number: int, reason: str) -> None:
            self._last_event = number

        for number, event in self._store.events.read_known(self._last_event, left_out):
            self._last_event = number
            if (worker := worker_that_ended(event)) is not None:
                self._state = replace(self._state, ended=self._state.ended | {worker})
            yield event

    def _end_without_job(self, reason: str) -> int:
        self._workers.kill_all(self._state.limits.killed_s)
        self._notify(f"{reason}; its workers on this host were ended")
        return 1

    def _alone(self, now: float) -> int | None:
        """Do a turn of the loop while ZooKeeper is away: workers train on, and none is started."""
        if self._away_since is None:
            self._away_since = now
            text = "ZooKeeper is away; training goes on, changes wait for its return"
            self._notify(text, for_all=True)
        return self._end_without_zookeeper(now - self._away_since)

    def _end_without_zookeeper(self, away_s: float) -> int | None:
        limit_s = self._state.limits.away_s
        if len(self._workers) == 0 and away_s >= limit_s:
            self._notify(f"no worker is left and ZooKeeper is away for {limit_s:g} s; giving up")
            return 1
        return None

    # --- acts

    def _act(self, decision: SupervisorDecision, snapshot: Snapshot, now: float) -> None:
        if decision.reason != self._reason:
            self._reason = decision.reason
            logger.info("%s", decision.reason)
        for warning in decision.warnings:
            self._notify_once(warning)
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
        attempt_id = f"{self._state.token}-{self._launches}"
        self._launches += 1
        process = Process(start.slot, attempt_id, now, failures=start.failures, device=start.device)
        waits_s = self._state.limits.repair_s if start.replaces else 0.0
        try:
            self._workers.start(attempt_id, start.slot, waits_s, start.variables)
        except OSError as error:
            process = unstarted(process, self._command, error)
        else:
            logger.info("slot %d: %s", start.slot, start.reason)
        self._state = replace(self._state, processes=(*self._state.processes, process))
        return process

    def _end(self, ending: EndProcess, now: float) -> None:
        process = self._state.process(ending.attempt_id)
        if process.ending_since is None:
            process = replace(process, ending_since=now, why=ending.reason)
            self._state = self._state.having(process)
            if self._state.waiting and process.suspended_since is not None and self._snapshot:
                with contextlib.suppress(CoordinationError, UnknownJob):  # it is killed in any case
                    worker_frozen(self._store, process, self._state.host, "", self._snapshot)
            elif process.unresponsive_since is not None:
                self._frozen.write_stacks(process)
                self._changed.set()
        logger.info("ending %s: %s", process.name, ending.reason)
        self._workers.end(ending.attempt_id, ending.kill)

    def _disable_slot(self, given_up: DisableSlot, snapshot: Snapshot) -> None:
        process = self._state.process(given_up.attempt_id)
        self._state = self._state.having(replace(process, used_up=True))
        slot_disabled(self._store, self._state.host, given_up.slot, given_up.reason, snapshot)

    def _notify_once(self, text: str) -> None:
        if text not in self._shown:
            self._shown.add(text)
            self._notify(text)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        # Only count: the interrupted thread may hold any lock, also that of an event.
        now_s = time.monotonic()
        if now_s - self._signalled_s >= ONE_SIGNAL_S:
            self._signals[signal.Signals(number)] += 1
            self._signalled_s = now_s


# ------------------------------------------------------------
# Let a job borrow idle slots of a host. The program that owns them writes a file with how many the
# job borrows, and in how many seconds slots that are given back must be free: "2", or "0 20"; no
# file means 0. SIGRTMIN takes back all borrowed slots of this host.


POLL_S = 0.5  # between two looks into the file


class BorrowedSlots:
    """The part of an agent that lets its job borrow slots of `host`, as a file and SIGRTMIN say."""

    def __init__(
        self,
        store: JobStore,
        host: str,
        file: Path | None,
        within_s: float,
        notify: Callable[[str], None],
    ) -> None:
        self._store = store
        self._host = host
        self._file = file
        self._within_s = within_s
        self._notify = notify
        self._slots: int | None = None  # as the file had it when it was last followed
        self._polled_s = 0.0
        self._signalled = False

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take back all borrowed slots of this host in the next `follow`."""
        self._signalled = True

    def follow(self, snapshot: Snapshot) -> bool:
        """Borrow or give back slots as the file or SIGRTMIN has requested since the last call."""
        if snapshot.job.state is not JobState.RUNNING:
            return False
        # SIGRTMIN comes first, then a changed number in the file; another time limit changes
        # nothing.
        if self._signalled:
            changed = self._set(snapshot, 0, self._within_s, "SIGRTMIN")
            self._signalled = False  # after that: ZooKeeper may have gone away
            return changed
        said = self._read()
        if said is None or said[0] == self._slots:
            return False
        changed = self._set(snapshot, *said, f"{self._file}")
        self._slots = said[0]
        return changed

    def record_returned(self, snapshot: Snapshot, state: SupervisorState) -> bool:
        members = {member.id for member in snapshot.members}
        # A process that is not registered still occupies its slot.
        hidden = sum(process.worker not in members for process in state.living)
        done = returned(snapshot, state.reclaims_s, self._host, hidden)
        for one in done:
            self._store.record_returned(one, state.reclaims_s.get(one, 0.0))
        return bool(done)

    def _read(self) -> tuple[int, float] | None:
        """Return what the file wants, borrowed slots and seconds to give others back, or None."""
        now_s = time.monotonic()
        if self._file is None or now_s - self._polled_s < POLL_S:
            return None
        self._polled_s = now_s
        try:
            text = self._file.read_text()
        except FileNotFoundError:
            return 0, self._within_s
        except (OSError, UnicodeDecodeError) as error:
            self._notify(f"cannot read how many slots are borrowed, from {self._file}: {error}")
            return None
        words = text.split()
        if not words:  # it is being written
            return None
        slots = int(words[0]) if words[0].isdecimal() else None
        within_s = seconds(words[1]) if len(words) > 1 else self._within_s
        if slots is None or not within_s or len(words) > 2:
            self._notify(
                f"{self._file} says {excerpt(text.strip())!r}, which is not understood; write a "
                "number of slots, and after it, if you like, the seconds to give others back"
            )
            return None
        return slots, within_s

    def _set(self, snapshot: Snapshot, slots: int, within_s: float, reason: str) -> bool:
        host = self._host

        def change(desired: Placement) -> Placement:
            borrowed = borrowed_after(snapshot.desired, desired, NO_TERMS).get(host, 0)
            if slots > borrowed:
                return borrow(snapshot, slots - borrowed, host, desired)
            return (
                reclaim(snapshot, borrowed - slots, host, desired) if slots < borrowed else desired
            )

        more = slots > snapshot.desired.borrowed.get(host, 0)
        terms = ReclaimTerms(borrows=True) if more else ReclaimTerms(within_s=within_s)
        try:
            return bool(
                self._store.set_desired(
                    change,
                    RequestedBy.PERSON,
                    f"{reason}: {counted(slots, 'slot')} of {host} borrowed",
                    terms,
                )
            )
        except UsageError as error:
            self._notify(str(error))
            return False


# ------------------------------------------------------------
# End a job while ZooKeeper is away: tell its workers on their HTTP ports. If other hosts have
# agents, this agent writes the end of the job when ZooKeeper is back; until then they start no
# worker once they see how theirs have ended (`told_to_end`).


Notify = Callable[[str], None]
NOT_TOLD = "ZooKeeper is away, so the job cannot be told; again kills its workers"

WAITS = (
    "the workers on this host have ended; waiting for ZooKeeper, so that the other hosts learn "
    "that the job has ended"
)


class StopWithoutZooKeeper:
    """The part of an agent that ends the job after a signal while ZooKeeper is away."""

    def __init__(
        self, store: JobStore, host: str, limits: SupervisorLimits, notify_once: Notify
    ) -> None:
        self._store = store
        self._host = host
        self._limits = limits
        self._notify_once = notify_once
        self._last: Snapshot | None = None
        self._since = 0.0

    @property
    def begun(self) -> bool:
        return self._last is not None

    def begin(
        self, last: Snapshot | None, living: Sequence[Process], cause: str, now: float
    ) -> None:
        """Tell the workers here that the job ends, who tell others; `begun` if one confirms it."""
        if self.begun:
            return
        members = last.newest_members if last is not None else ()
        mine = [member for member in members if member.id in {process.worker for process in living}]
        access = self._store.session.access
        assert access is not None
        key = http_key(access.secret, self._store.name)
        if not mine or not tell_end(key, mine, f"{cause} in edl run"):
            self._notify_once(NOT_TOLD)
            return
        self._last, self._since = last, now
        self._notify_once(
            f"{cause}: ZooKeeper is away, so its workers are told directly: the job ends after "
            "this step; again kills them"
        )

    def is_late(self, now: float) -> bool:
        assert self._last is not None
        return now - self._since >= self._limits.stop_limit_s(self._last.job)

    def is_done(self, now: float) -> bool:
        assert self._last is not None
        others = self._last.present - {self._host}
        # If ZooKeeper comes back, this agent can write the end of the job for the others.
        if others and now - self._since < self._limits.away_s:
            self._notify_once(WAITS)
            return False
        self._notify_once(
            f"job {self._store.name} has ended; ZooKeeper is away, and has it as running until "
            "another one takes its name"
        )
        return True


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
        state = AgentState(
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
        self._no_template_reported = False
        launched = Workers(command, cwd, environment, logs, self._template)
        super().__init__(store, launched, state, job.spec.command, stack_signal)
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
        self._leaves = ReclaimTerms(within_s=leave_within_s)
        self._borrowed = BorrowedSlots(
            store, host.name, borrowed_file, reclaim_s, self._notify_once
        )
        self._written: Host | None = None  # what our node says
        self._asked = False  # the first signal has been carried out
        self._direct_end = StopWithoutZooKeeper(store, host.name, limits, self._notify_once)
        self._refused: Snapshot | None = None  # in which this host could not leave
        self._lost_job.writes = not of_run
        self._ended_as, self._why = AgentEnd.ERROR, ""
        self._newest_step = 0  # in the events

    @contextmanager
    def _around(self) -> Iterator[None]:
        owner = nullcontext() if self._joined else written_down(self._logs, self._host.pid)
        reclaim = handled([signal.SIGRTMIN], self._borrowed.on_signal)
        with self._output, self._meanwhile as port, owner, reclaim:
            self._host = replace(self._host, metrics_port=port)
            self._await_former()
            yield

    def _await_former(self) -> None:
        began, limits = time.monotonic(), self._state.limits
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
            self._notify_once(f"waiting for the end of the session of {who}")
            self._wake.wait(limits.poll_s)

    def _turn(self, now: float) -> int | None:
        if sum(self._signals.values()) > 1:
            return self._kill()
        try:
            return super()._turn(now)
        except UsageError as error:
            if self._incarnation is None:
                raise
            taken = error
        # Another agent has taken this one's place while it was away.
        try:
            # If it is that of a later run, these workers are killed.
            if current_run(self._store.session, self._store.paths) != self._store.nodes.run:
                return self._end_without_job(str(self._store.nodes.unknown()))
        except CoordinationError as away:
            logger.info("%s", away)
            return None
        self._workers.release()
        self._notify(f"{taken}; this agent ends, the workers train on")
        end = AgentEnd.ALREADY_HERE if isinstance(taken, AgentExists) else AgentEnd.ERROR
        return self._ends(end, str(taken), EXIT_CODES[end])

    def _end_without_job(self, reason: str) -> int:
        return self._ends(AgentEnd.OVER, reason, super()._end_without_job(reason))

    def _ends(self, end: AgentEnd, reason: str, code: int) -> int:
        self._ended_as, self._why = end, reason
        return code

    def result(self, exit_code: int) -> AgentResult:
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
        self._workers.watch(orphans)
        for worker in orphans:
            log = self._workers.log_of(worker.attempt_id)
            if log.exists():
                self._output.follow(worker.attempt_id, log, worker.slot, from_now=True)
            process = worker.as_process(now)
            self._state = replace(self._state, processes=(*self._state.processes, process))
            self._notify(f"took over the worker in slot {worker.slot}, process {worker.pid}")
        for number, event in past:  # not shown: that is for `edl events`
            self._last_event = number
            self._on_event(event)
        self._notify_once(self._greeting)

    def _update(self, snapshot: Snapshot, now: float) -> None:
        if not any(host.is_same_agent(self._host) for host in snapshot.hosts):
            self._put_host()  # raises an error if another run or another agent has its place
        self._show_events(snapshot, now)
        super()._update(snapshot, now)
        if not self._asked:  # a host that leaves takes its workers away itself
            self._state = with_placement(self._state, snapshot.assigned, now)
        for process in self._state.living:
            if process.worker is not None:
                self._output.name(process.attempt_id, process.name)
                self._workers.name(process.attempt_id, process.name)
        self._on_snapshot(snapshot)

    def _show_events(self, snapshot: Snapshot, now: float) -> None:
        ready = [m.name for m in snapshot.members if not m.generation and m.stage is Stage.READY]
        for line in self._headlines.take(self._new_events(), snapshot.desired.np, now, ready):
            self._notify(line)

    def _new_events(self) -> Iterator[Event]:
        for event in super()._new_events():
            self._newest_step = max(self._newest_step, event.step)
            self._on_event(event)
            yield event

    def _follow(self, snapshot: Snapshot, now: float) -> None:
        self._template.poll()  # starts it, or reads its messages without a wait
        reason = self._template.why_none
        if reason and reason != NOT_WANTED and not self._no_template_reported:
            no_template(self._store, self._host.name, reason, snapshot)
            self._no_template_reported = True
        # This host's record has the devices that the job may use, and those that it uses.
        state, assigned = self._state, snapshot.assigned
        here = [member for member in foreign(snapshot, state) if member.host == state.host]
        busy = busy_devices(assigned, state.host, state.living, here)
        devices = tuple(sorted(assigned.devices_on(state.host) or ()))
        failing = failing_slots(state)
        if (devices, busy, failing) != (self._host.devices, self._host.busy, self._host.failing):
            self._host = replace(self._host, devices=devices, busy=busy, failing=failing)
        if self._written is not self._host:
            self._put_host()
        self._request_workers(snapshot, now)
        self._handle_drain(snapshot)
        changed = not self._state.draining and self._borrowed.follow(snapshot)
        if self._borrowed.record_returned(snapshot, self._state) or changed:
            self._changed.set()

    def _decide(self, snapshot: Snapshot, now: float) -> SupervisorDecision:
        return decide_agent(snapshot, self._state, now)

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
        before, fewer = snapshot.desired.hosts, given_up.desired
        reason = f"slot {given_up.slot} of host {self._host.name} is disabled"
        self._changed.set()
        if self._set_desired(lambda now: fewer if now == before else now, reason) != fewer:
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
        late = now - self._state.state_since >= self._state.limits.former_s
        has = snapshot.desired.hosts.get(name, 0)
        if has >= asked:
            self._host = replace(self._host, requested_np=0)  # written in the next turn
            if got is not None:  # a host that came later has requested both
                self._notify_once(f"host {name} has a place for {workers(has)}")
            return

        def change(now: Placement) -> Placement:
            return request_workers(snapshot, now, name, asked, got, late)

        if change(snapshot.desired.hosts).get(name, 0) > has:
            reason = f"host {name} joins with {workers(asked)}"
            has = self._set_desired(change, reason).get(name, 0)
            self._changed.set()
        if late or has >= asked or withdrawn(has, got):
            self._host = replace(self._host, requested_np=0)
        if withdrawn(has, got):
            return
        self._got_np = has
        limit = "" if has >= asked else f", not {asked}: the job may have {snapshot.job.sizes}"
        self._notify_once(f"host {name} has a place for {workers(has)}{limit}")

    # --- signals

    def _handle_signal(self, snapshot: Snapshot | None, now: float) -> None:
        """Carry out the first signal once, if one has come: the host leaves, or the job ends."""
        if not self._signals or self._asked:
            return
        cause = _SIGNALS[next(iter(self._signals))]
        if snapshot is None:
            if self._joined:
                self._notify_once(NOT_TOLD)
            else:
                self._direct_end.begin(self._snapshot, self._state.living, cause, now)
            return
        if snapshot is self._refused:
            return
        if snapshot.job.state.over:
            for process in self._state.living:
                if process.ending_since is None and not is_terminating(process):
                    self._end(EndProcess(process.attempt_id, False, cause), now)
        elif self._joined and not (self._ends_job and is_last(snapshot, self._host.name)):
            self._leave(snapshot, cause)
            return
        else:
            self._notify(f"{cause}: the job ends after this step; again kills its workers")
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
        now, living = time.monotonic(), self._state.living
        for process in living if self._direct_end.is_late(now) else ():
            self._end(EndProcess(process.attempt_id, True, "the ring did not end in time"), now)
        if living or not self._direct_end.is_done(now):
            return None
        return self._ends(AgentEnd.STOPPED, TOLD, exit_after(self._signals))

    def _handle_drain(self, snapshot: Snapshot) -> None:
        name = self._host.name
        if snapshot.job.state.over:
            return
        if self._state.draining:
            # Somebody who did not know that this host leaves may have raised its workers again.
            if snapshot.desired.hosts.get(name):
                try:
                    self._set_desired(
                        lambda now: without_host(snapshot, name, now), f"host {name} leaves"
                    )
                    self._changed.set()
                except UsageError as error:
                    self._notify_once(str(error))
            return
        here = next((host for host in snapshot.hosts if host.name == name), None)
        if here is None or not here.leaving:
            return
        self._leave(snapshot, "edl drain")
        if not self._state.draining:
            self._put_host()  # the question is answered
            self._changed.set()

    def _leave(self, snapshot: Snapshot, cause: str) -> None:
        name = self._host.name
        terms = self._leaves if self._signals else NO_TERMS
        try:
            self._set_desired(
                lambda now: without_host(snapshot, name, now), f"{cause}: {name} leaves", terms
            )
        except UsageError as error:
            hint = "; a second signal kills the workers on this host" if self._signals else ""
            self._notify_once(f"{error}{hint}")
            self._refused = snapshot
            return
        hint = "; again kills its workers" if self._signals else ""
        self._why = f"{cause}: host {name} leaves the job"
        self._notify(f"{self._why}{hint}")
        self._state = replace(self._state, draining=True, is_submitter=False)
        self._joined = True  # from now on a signal is about this host alone
        self._asked = bool(self._signals)
        # No worker is to be placed here again.
        self._host = replace(self._host, slots=0, requested_np=0)
        self._put_host()
        self._changed.set()

    def _set_desired(
        self, change: Callable[[Placement], Placement], reason: str, terms: ReclaimTerms = NO_TERMS
    ) -> Placement:
        return self._store.set_desired(change, RequestedBy.LAUNCHER, reason, terms).desired.hosts

    def _put_host(self) -> None:
        host = self._host
        self._store.hosts.put(host, lambda other: has_died_here(other, host))
        self._written, self._state = host, replace(self._state, devices=host.devices)

    def _kill(self) -> int:
        self._workers.kill_all(self._state.limits.killed_s)
        self._notify("the workers on this host were killed")
        name, code = self._host.name, exit_after(self._signals)
        end = AgentEnd.PREEMPTED if self._joined else AgentEnd.STOPPED
        if self._snapshot is not None and self._snapshot.job.state.over:
            end = end_of_job(self._snapshot.job)
        self._ends(end, f"a second signal killed the workers on host {name}", code)
        try:
            if not self._store.session.connected:
                return code
            members = self._store.snapshot().members
            others = [m for m in members if not m.attempt_id.startswith(self._state.token)]
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
            self._notify(str(error))
        return code

    # --- what people see

    def _finish(self, snapshot: Snapshot, code: int, now: float) -> int:
        job = snapshot.job
        if not job.state.over:
            self._notify(f"host {self._host.name} has left job {job.name}")
            has_left = self._state.is_elsewhere or not self._signals
            end_here = AgentEnd.LEFT if has_left else AgentEnd.PREEMPTED
            return self._ends(end_here, self._state.why_elsewhere or self._why, code)
        self._show_events(snapshot, now)
        for line in self._headlines.rest(wanted=0):
            self._notify(line)
        end, reason = f"job {job.name} {job.state}", job.reason or "no reason given"
        self._ends(end_of_job(job), reason, code)
        said, last_words, last = reason.partition(LAST_WORDS)
        # The last line of a worker may be a sentence of edl's that was shown before.
        sentence = last.partition(": ")[2].removeprefix("edl: ") if last_words else ""
        self._output.note(f"{end}: {reason}", sentence, f"{end}: {said}")
        if hint := missing_module_hint(reason, job.spec.command, self._search_path):
            self._notify(hint)
        if (late := failed_late(job, self._state)) is not None:
            self._notify(f"after that, {late.name} {how(late.exit_code or 1)}")
        return code

    def _notify(self, text: str, for_all: bool = False) -> None:
        self._output.note(text)

    def _last_line(self, attempt_id: str) -> str:
        return self._output.finish(attempt_id)

    def _output_tail(self, attempt_id: str) -> str:
        return last_output(self._workers.log_of(attempt_id))


def exit_after(signals: Iterable[signal.Signals]) -> int:
    return exit_status(-next(iter(signals)))
