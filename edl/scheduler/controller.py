"""Run a controller of a cluster: it stands for election, and plans while it leads.

One turn of the leader reads the cluster and the runs of its jobs, plans
(:mod:`edl.core.cluster.plan`), writes the plan under its fence (``plan_writer``), and then carries
out the plan's orders. Nothing is kept in memory that the next leader would need. Any step may be
the last one of this process: the next turn, of whichever controller, does what is left.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial

from edl.coordination.access import Access
from edl.coordination.cluster.format import check_format, check_settings
from edl.coordination.cluster.job_reader import StoredJob
from edl.coordination.cluster.nodes import open_cluster
from edl.coordination.cluster.runs import JobViews
from edl.coordination.cluster.store import ClusterStore
from edl.coordination.cluster.writer import (
    ClusterWriter,
    event_write,
    hosts_to_remove,
    jobs_to_remove,
)
from edl.coordination.election import Election, Leadership
from edl.coordination.fenced_session import FencedSession
from edl.coordination.session import Session
from edl.core.cluster.events import ClusterEventKind
from edl.core.cluster.held_slots import HeldSlots
from edl.core.cluster.lease_records import LeaseLimits, left_borrowed
from edl.core.cluster.measured_throughput import MeasuredThroughput, measurements
from edl.core.cluster.orders import CreateRun, Order
from edl.core.cluster.plan import ClusterPlan, plan
from edl.core.cluster.plan_events import PlannedEvent
from edl.core.cluster.records import ControllerRecord
from edl.core.cluster.view import ClusterView
from edl.errors import CoordinationError, EdlError, LeadershipLost, UnsupportedFormat, UsageError
from edl.scheduler.fleet.fleet import Fleet
from edl.scheduler.fleet.fleet_runner import FleetRunner
from edl.scheduler.fleet.lease_keeper import LeaseKeeper
from edl.scheduler.job_remover import JobRemover
from edl.scheduler.leader_records import LeaderRecords
from edl.scheduler.liveness import LivenessProbe, LivenessServer
from edl.scheduler.plan_writer import PlanWriter
from edl.scheduler.policy_runner import PolicyRunner
from edl.scheduler.reason_writer import ReasonWriter
from edl.scheduler.run_sessions import RunSessions
from edl.scheduler.runs import RunWriter
from edl.scheduler.tenant_requests import TenantRequests
from edl.scheduler.wakeup import Wakeup

logger = logging.getLogger(__name__)

SESSION_S = 2.0  # a controller that is silent for so long does not lead any more
# On a machine that is too busy for that, a controller would read a large cluster again and again,
# and lose its session meanwhile. So after each session that it has lost it asks for twice as long.
MOST_SESSION_S = 16.0
LOOK_S = 5.0  # the longest time between two looks, though nothing is seen to change
FOLLOW_S = 0.25  # the same of a controller that does not lead: so soon it notices a death
REST_S = 0.5  # the longest rest after a turn, which else is as long as the turn took
AGAIN_S = 0.5  # between two tries while ZooKeeper is away
ORDERS_S = 1.0  # of one turn, to carry out orders: something else may be urgent meanwhile
BUSY_S = 10.0  # between two removals of ended jobs while each turn has something else to do
HOUSEKEEPING_S = 60.0  # between two removals of what is old, and of garbage

Say = Callable[[str], None]


class Controller:
    """A controller of a cluster: it takes part in the election, and plans while it leads."""

    def __init__(
        self,
        hosts: str,
        access: Access,
        about: ControllerRecord,
        say: Say,
        connect_timeout_s: float = 10.0,
        lender: tuple[Fleet, LeaseLimits] | None = None,
    ) -> None:
        self._lender = lender
        self._runner: FleetRunner | None = None
        self._access = access
        self._about = about
        self._say = say
        self._said = ""
        self._wakeup = Wakeup()
        self._stopping = False
        self._session = Session(hosts, SESSION_S, connect_timeout_s)
        self._term: ControllerTerm | None = None
        self._policies = PolicyRunner(say)
        self._probe = LivenessProbe()
        self._collected_s = time.monotonic()

    def stop(self) -> None:
        """Let `run` resign and return soon; safe in a signal handler."""
        self._stopping = True
        self._wakeup.set()

    def run(self) -> None:
        """Take part in the election and lead when it is won, until `stop`."""
        with ExitStack() as stack:
            stack.callback(self._policies.close)
            stack.callback(self._end_term)
            port = stack.enter_context(LivenessServer(self._about.address)).port
            stack.enter_context(self._session).add_listener(lambda _: self._wakeup.set())
            store = ClusterStore(
                open_cluster(self._session, self._access),
                by=f"the controller {self._about.controller}",
                on_change=self._wakeup.set,
            )
            about = replace(self._about, port=port)
            election = store.leader.election(about.controller, about.to_json())
            while not self._stopping:
                self._collect_garbage()
                began_s = time.monotonic()
                wait_s = self._turn(store, election)
                time.sleep(min(REST_S, time.monotonic() - began_s))
                self._wakeup.wait(wait_s)
            self._resign(election)
            self._tell_borrowed(store)

    def _tell_borrowed(self, store: ClusterStore) -> None:
        """Say which hosts stay borrowed, if no other controller lives that could give them back."""
        if self._lender is None:
            return
        try:
            said = left_borrowed(store.leader.leases()[0])
            if said and not store.leader.controllers():
                self._say(said)
        except CoordinationError as error:
            logger.info("it is not known which hosts are borrowed: %s", error)

    def _collect_garbage(self) -> None:
        """Collect garbage now and then, if Python does not do so by itself."""
        # With thousands of jobs it takes 0.2 s, in which no other thread runs, not even the one
        # that keeps the session. Python would do so in every other turn.
        if not gc.isenabled() and time.monotonic() - self._collected_s >= HOUSEKEEPING_S:
            gc.collect()
            self._collected_s = time.monotonic()

    def _turn(self, store: ClusterStore, election: Election) -> float:
        """Take part in the election once; if this controller leads, read, plan and write once."""
        try:
            self._lengthen_sessions()
            check_format(store.nodes, self._wakeup.set)
            election.enter()
            leadership = election.leads(self._wakeup.set)
            if leadership is None:
                self._end_term()
                self._policies.close()
                return self._follow(election)
            if self._term is None or self._term.number != leadership.term:
                self._term = self._begin(store, leadership)
            return self._term.turn()
        except LeadershipLost as error:
            self._end_term()
            self._say_once(f"{error}")
            return 0.0
        except UnsupportedFormat:
            self._resign(election)
            raise
        except CoordinationError as error:
            self._say_once(f"cannot plan: {error}")
            return AGAIN_S
        except EdlError as error:
            self._say_once(f"cannot plan: {error}")
            return LOOK_S
        except Exception as error:  # whatever a policy does: jobs go on, and the next turn may work
            logger.exception("a turn has failed")
            self._say_once(f"cannot plan: {error!r}; the log has more")
            return LOOK_S

    def _lengthen_sessions(self) -> None:
        of_runs = [] if self._term is None else self._term.run_sessions.sessions
        for session in (self._session, *of_runs):
            wanted_s = min(MOST_SESSION_S, SESSION_S * 2.0 ** max(0, session.epoch - 1))
            if wanted_s > session.session_timeout_s:
                session.ask_for(wanted_s)

    def _begin(self, store: ClusterStore, leadership: Leadership) -> ControllerTerm:
        """Begin to lead the cluster: log it as an event, print it, and return the new term."""
        self._end_term()
        connect = partial(self._connect, leadership)
        sessions = RunSessions(connect, self._wakeup.set, self._say)
        term = ControllerTerm(
            store, leadership, sessions, self._wakeup.set, self._say, self._policies
        )
        term.begin(self._about)
        if self._lender is not None:
            fleet, limits = self._lender
            self._runner = FleetRunner(fleet, self._wakeup.set, after=self._runner)
            term.borrow(self._runner, limits)
            self._runner.start()
        self._say_once(f"leads cluster {self._access.job} in term {leadership.term}")
        return term

    def _connect(self, leadership: Leadership) -> FencedSession:
        """Open a session in which runs are read and written during the term of `leadership`."""
        timeout_s, connect_s = self._session.session_timeout_s, self._session.connect_timeout_s
        session = FencedSession(self._session.hosts, timeout_s, connect_s)
        session.start()
        try:
            session.add_listener(lambda _: self._wakeup.set())
            session.identify(self._access)
            session.lead(leadership)
        except CoordinationError:
            session.close()
            raise
        return session

    def _end_term(self) -> None:
        """Lead no more: drop the term, if there is one, and order nothing of the engine."""
        if self._term is not None:
            self._term.run_sessions.close()
        self._term = None
        if self._runner is not None:
            self._runner.stop()  # the next term's waits for it

    def _follow(self, election: Election) -> float:
        """Remove dead controllers that are before this one from `election`, without waiting."""
        ahead = [ControllerRecord.from_json(one) for one in election.records_ahead()]
        if ahead:
            self._say_once(f"waits: {ahead[0]} leads cluster {self._access.job}")
        for dead in self._probe.dead(ahead):
            if election.remove(dead.controller):
                self._say(f"the controller of {dead} has died")
        return FOLLOW_S

    def _resign(self, election: Election) -> None:
        """Leave `election`, so that another controller leads at once; an error is only logged."""
        try:
            election.leave()
        except CoordinationError as error:
            logger.info("could not resign, so the session has to end: %s", error)

    def _say_once(self, sentence: str) -> None:
        """Show `sentence` to the user, unless it was the last one that this method has shown."""
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)


class ControllerTerm:
    """One term of the leader of a cluster; `turn` plans once and carries the plan out."""

    def __init__(
        self,
        store: ClusterStore,
        leadership: Leadership,
        run_sessions: RunSessions,
        wake: Callable[[], None],
        say: Say,
        policies: PolicyRunner,
    ) -> None:
        self.number = leadership.term
        self._store = store
        self._say = say
        # Records have times of former leaders, on other hosts. So no host's own clock counts.
        self._now_s = store.events.clock = leadership.clock.now_s
        self._writer = ClusterWriter(store, leadership)
        self.run_sessions = run_sessions
        self._runs = RunWriter(run_sessions.session_of)
        self._remover = JobRemover(self._runs, self._writer.remove_job, say)
        self._views = JobViews()
        self._plans = PlanWriter(store, self._writer, say)
        self._reasons = ReasonWriter(self._writer)
        self._tenants = TenantRequests(store, self._writer, wake)
        self._policies = policies
        self._leases: LeaseKeeper | None = None
        self._refused: dict[str, str] = {}  # job -> why its last order was refused
        self._removed_s = time.monotonic()  # when ended jobs were removed last
        self._tidied_s = 0.0  # by the monotonic clock

    def begin(self, about: ControllerRecord) -> None:
        """Write to the cluster's event log that the controller `about` describes leads now."""
        event = self._store.events.new(
            ClusterEventKind.LEADER,
            f"{about} leads in term {self.number}, with edl {about.version}",
        )
        self._writer.commit([event_write(self._store.paths, event)])

    def borrow(self, runner: FleetRunner, limits: LeaseLimits) -> None:
        """From now on, borrow hosts from an engine, within `limits`; `runner` talks to it."""
        self._leases = LeaseKeeper(self._store, self._writer, runner, limits, self._say)

    def turn(self) -> float:
        """Read, plan, write and carry out; return how long to wait for a change, in seconds."""
        read = self._read()
        now_s = self._now_s()
        found = self._plan(read, now_s)
        written = self._plans.write(read, found)
        if written is None:
            return 0.0  # something has changed: look again
        found, events = written
        self._tell(events)
        lives = {job.name: job.life for job in read.snapshot.jobs} | dict(found.lives)
        self._runs.count = sum(life.state.has_run for life in lives.values())
        self._carry_out(read, found)
        tell_s = self._reasons.tell(found.reasons, lives, now_s, found.surplus)
        tell_s = min(tell_s, self._tenants.serve(read.snapshot.hosts, found, lives, now_s))
        if self._leases is not None:
            self._leases.turn(with_assignments(read.view, found), now_s)
        if not found.acts or time.monotonic() - self._removed_s >= BUSY_S:
            self._tidy(read)
        look_s = AGAIN_S if read.unread else LOOK_S
        return max(0.0, min(look_s, tell_s, found.next_s - self._now_s()))

    def _plan(self, read: LeaderRecords, now_s: float) -> ClusterPlan:
        """Return the plan that follows from the records `read` at the time `now_s`."""
        settings = read.snapshot.settings
        policy = self._policies.policy(settings)
        try:
            found = plan(read.view, policy, now_s)
        except UsageError as error:
            return plan(read.view, self._policies.failed(str(error)), now_s)
        except Exception as error:  # whatever a policy does
            logger.exception("the policy %s has failed", settings.policy)
            why = f"the policy {settings.policy} has failed, see the leader's log: {error!r}"
            return plan(read.view, self._policies.failed(why), now_s)
        if not isinstance(policy, HeldSlots):
            self._policies.worked()
        return found

    def _tell(self, events: Sequence[PlannedEvent]) -> None:
        """Show the events of a plan; if a job changes its state, not the event about its slots."""
        changed = {one.job for one in events if one.kind is ClusterEventKind.STATE}
        for one in events:
            if one.kind is not ClusterEventKind.SLOTS or one.job not in changed:
                self._say(f"job {one.job}: {one.reason}" if one.job else one.reason)

    def _read(self) -> LeaderRecords:
        """Return the records of the cluster and of its jobs' runs, as ZooKeeper has them now."""
        snapshot = self._store.snapshot()
        check_settings(self._store.paths.name, snapshot.settings)
        names = [job.name for job in snapshot.jobs]
        secrets, kept = self._store.jobs.secrets_and_measured(names)
        mark = self._leases.marked if self._leases is not None else _unmarked
        count = sum(job.life.state.has_run for job in snapshot.jobs)
        runs = self.run_sessions.read(secrets, count)
        why = self.run_sessions.unreadable, self.run_sessions.unread
        return LeaderRecords(snapshot, secrets, kept, runs, mark, self._views, *why)

    def _carry_out(self, read: LeaderRecords, found: ClusterPlan) -> None:
        """Carry out the orders of the plan `found`, one after another, for a limited time."""
        deadline_s = time.monotonic() + ORDERS_S
        for order in sorted(found.orders, key=lambda one: bool(self._refused.get(one.job))):
            if time.monotonic() >= deadline_s:
                return
            if order.job in read.unread:
                continue
            job = read.job_named[order.job]
            refused = self._refusal_of(order, job, read)
            if refused and refused != self._refused.get(job.name):
                self._say(f"job {job.name}: {type(order).__name__} was refused: {refused}")
            self._refused[job.name] = refused

    def _refusal_of(self, order: Order, job: StoredJob, read: LeaderRecords) -> str:
        """Carry out one order; return why it was refused, "" if it was not."""
        secret = read.secrets.get(job.name) or self._writer.job_secret(job.name)
        try:
            if isinstance(order, CreateRun):
                self._keep_measured(read, job)
            return self._runs.carry_out(order, job, secret, read.runs.get(job.name))
        except LeadershipLost:
            raise
        except Exception as error:  # whatever the job's code has written
            logger.info("an order for job %s has failed", job.name, exc_info=True)
            return f"{error}"

    def _keep_measured(self, read: LeaderRecords, job: StoredJob) -> None:
        """Write what the last run of `job` has measured into the job's own record."""
        kept = read.kept.get(job.name, MeasuredThroughput())
        now, _ = measurements(kept, read.runs.get(job.name), job.order)
        if now != kept and (now.steps or now.curve):
            self._writer.keep_measured(job.name, now)

    def _tidy(self, read: LeaderRecords) -> None:
        """Remove records of ended jobs that are not kept; at times also old events and hosts."""
        self._removed_s = time.monotonic()
        doomed = jobs_to_remove(read.snapshot.jobs, self._now_s())
        self._remover.remove(doomed, read.secrets, read.unread)
        if time.monotonic() - self._tidied_s >= HOUSEKEEPING_S and self._writer.trim_events():
            self._tidied_s = time.monotonic()
            for host in hosts_to_remove(read.snapshot.hosts, self._now_s()):
                self._writer.remove_host(host)


def _unmarked(view: ClusterView) -> ClusterView:
    return view


def with_assignments(view: ClusterView, found: ClusterPlan) -> ClusterView:
    """Return `view` with what is assigned to its hosts after the plan `found` was written."""
    hosts = (replace(h, assigned=found.assigned.get(h.name, h.assigned)) for h in view.hosts)
    return replace(view, hosts=tuple(hosts))
