"""Run a controller of a cluster: it stands for election, and plans while it leads.

One turn of the leader reads the cluster and the runs of its jobs, plans
(:mod:`edl.cluster.plan`), writes the plan under its fence (``plan_writer``), and then carries
out the plan's orders. Nothing is kept in memory that the next leader would need. Any step may be
the last one of this process: the next turn, of whichever controller, does what is left.
"""

from __future__ import annotations

import gc
import logging
import math
import socket
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Self

from edl.clock import Wakeup
from edl.cluster.allocate import KeepAllocation
from edl.cluster.controller.policy_runner import PolicyRunner
from edl.cluster.controller.tenant_requests import TenantRequests
from edl.cluster.fleet.fleet import Fleet
from edl.cluster.fleet.runner import FleetRunner, LeaseManager
from edl.cluster.lifecycle import ClusterEventKind
from edl.cluster.nodes import check_format, check_settings, open_cluster
from edl.cluster.plan import (
    ClusterPlan,
    PlannedEvent,
    PlanPart,
    plan,
    plan_events,
    plan_parts,
    without_parts,
)
from edl.cluster.records import ControllerRecord, LeaseLimits, left_borrowed
from edl.cluster.runs import JobViews, RunSessions, cluster_view
from edl.cluster.store import ClusterSnapshot, ClusterStore
from edl.cluster.view import (
    Action,
    ClusterView,
    CreateRun,
    JobView,
    MeasuredThroughput,
    RunRecords,
    StopRun,
    measurements,
    resume_setting,
    status_period_s,
)
from edl.cluster.writer import (
    MAX_BYTES,
    ClusterWriter,
    ReasonWriter,
    allocation_write,
    assigned_write,
    byte_count,
    event_write,
    hosts_to_remove,
    jobs_to_remove,
    life_write,
    secret_write,
)
from edl.errors import (
    AccessDenied,
    CoordinationError,
    EdlError,
    LeadershipLost,
    NotRemovable,
    PartlyRemoved,
    UnknownJob,
    UnsupportedFormat,
    UsageError,
    some,
)
from edl.host.adoption import is_known_dead
from edl.records import NO_POLICY, Assigned, Job, JobState
from edl.zookeeper.access import Access
from edl.zookeeper.election import Election, FencedSession, Leadership, Write
from edl.zookeeper.nodes import JobNodes, create_job, delete_ended, unlock
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import children
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore, place_run

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Hold the records of a cluster that its leader has read in one turn.


@dataclass(frozen=True)
class LeaderRecords:
    snapshot: ClusterSnapshot  # with the versions of the nodes
    secrets: Mapping[str, str]  # by job; one without it was never started
    kept: Mapping[str, MeasuredThroughput]  # what former runs have measured, by name of the job
    runs: Mapping[str, RunRecords]  # the records of the present or last run, by name of the job
    mark: Callable[[ClusterView], ClusterView] | None  # marks the hosts that are not lent any more
    views: JobViews  # the views of jobs that former turns have made
    unreadable: Mapping[str, str] = field(default_factory=dict)  # job -> why, in a sentence
    unread: Mapping[str, str] = field(default_factory=dict)  # the same; no order is carried out

    @cached_property
    def view(self) -> ClusterView:
        why = self.unreadable, self.unread
        view = cluster_view(self.snapshot, self.runs, self.kept, *why, self.views)
        self.views.keep_only({job.name for job in self.snapshot.jobs})
        return view if self.mark is None else self.mark(view)

    @cached_property
    def job_named(self) -> Mapping[str, JobView]:
        return {job.name: job for job in self.snapshot.jobs}


# ------------------------------------------------------------
# Carry out what the plan of a cluster orders of the runs of its jobs.
#
# A run is an ordinary edl job, whose nodes only its secret opens. So a session that writes runs
# proves the secrets of jobs, one after another, and no node of the cluster may be created in it.


class RunWriter:
    def __init__(self, session_of: Callable[[str], Session]) -> None:
        # how many runs the cluster has; each new one writes its status the less often
        self.count = 0
        self._session_of = session_of

    def carry_out(
        self, order: Action, job: JobView, secret: str, last: RunRecords | None = None
    ) -> str:
        """Do what an order says (`orders`); return why it was refused, empty if it was not."""
        session = self._session_of(order.job)
        session.identify(Access(order.job, secret))
        try:
            if isinstance(order, CreateRun):
                self._create(session, order, job, last)
            elif isinstance(order, StopRun):
                self._stop(session, order)
            else:
                nodes = JobNodes(session, order.job)
                nodes.belong_to(order.run)
                why = order.reason or "the cluster gives it other slots"
                if not place_run(nodes, order.devices, order.version, why, order.batch or 0):
                    return f"the slots of job {order.job} were changed by others"
        except (UsageError, PartlyRemoved, NotRemovable) as error:
            return str(error)
        return ""

    def remove(self, job: str, secret: str) -> bool:
        """Remove the nodes of the last run of a job; return whether they are gone."""
        session, access, paths = self._session_of(job), Access(job, secret), JobPaths(job)
        session.identify(access)
        try:
            # The job's code may have written any addresses and nodes, which would hold up the
            # leader: no port is asked for a process, and of very many nodes a part is removed.
            delete_ended(session, paths, trusted=False)
        except (AccessDenied, NotRemovable) as error:
            if not unlock(session, [access]):
                return True  # a stranger has the name: no nodes of the run are left
            if isinstance(error, NotRemovable):
                raise
            why = "has an ACL by which the job's secret does not open it"
            raise NotRemovable(job, paths.root, why) from error
        except (UsageError, PartlyRemoved) as error:
            logger.info("%s", error)
            return False
        return True

    def _create(
        self, session: Session, order: CreateRun, job: JobView, last: RunRecords | None
    ) -> None:
        hosts = {host: len(devices) for host, devices in order.devices.items()}
        spec = job.manifest.job_spec(resume_setting(job.manifest, job.order, last))
        period_s = status_period_s(spec.settings.status_period_s, self.count)
        settings = replace(spec.settings, status_period_s=period_s)
        spec = replace(spec, np=sum(hosts.values()), settings=settings)
        record = Job(name=order.job, spec=spec, created=time.time(), reserved=True)
        assigned, batch = Assigned(hosts, devices=order.devices), order.batch or 0
        paths = JobPaths(order.job)
        create_job(session, paths, record, assigned, NO_POLICY, order.run, batch, trusted=False)

    @staticmethod
    def _stop(session: Session, order: StopRun) -> None:
        store = JobStore(session, order.job)
        store.nodes.belong_to(order.run)
        p = store.paths
        try:
            # Without processes nobody would save a checkpoint and end the run.
            if order.checkpoint and any(store.nodes.read(children(p.hosts), children(p.members))):
                store.set_job_state(JobState.STOPPING, order.reason)
            else:
                states = (JobState.RUNNING, JobState.STOPPING)
                store.set_job_state(JobState.STOPPED, order.reason, only_from=states)
        except UnknownJob as error:
            logger.info("%s", error)  # another run has its name, or none


# ------------------------------------------------------------
# Write what a plan of a cluster changes, in transactions that ZooKeeper takes.
#
# One transaction has all of a plan, or several if it is too large; then the parts of the plan
# (`plan_parts`) are divided among them. A part that is too large by itself is written with fewer of
# the paths that its hosts are asked for. If it is too large still, it is left out, with the orders
# that follow from it, so that it holds up no other part.


TRANSACTION_BYTES = 400_000  # ZooKeeper takes 1 MB, and each write costs more than its values
TRANSACTION_WRITES = 250  # a busy server must answer within a session's time-out
Events = Sequence[PlannedEvent]


class PlanWriter:
    def __init__(
        self, store: ClusterStore, writer: ClusterWriter, say: Callable[[str], None]
    ) -> None:
        self._store = store
        self._writer = writer
        self._say = say
        self._said = ""

    def write(self, read: LeaderRecords, planned: ClusterPlan) -> tuple[ClusterPlan, Events] | None:
        """Write the plan `planned` and its events; return what was written, None: plan again."""
        events = plan_events(read.view, planned)
        fitting, left_out = [], []
        for part in plan_parts(read.view, planned):
            writes = self._of_part(read, planned, part, events)
            if byte_count(writes) > MAX_BYTES:
                left_out.append(part)
            else:
                fitting.append(writes)
        sentence = "; ".join(
            f"cannot write what changes together for {some(part.jobs) or 'no job'} on "
            f"{some(part.hosts) or 'no host'}: it has more than {MAX_BYTES} bytes"
            for part in left_out
        )
        if sentence and sentence != self._said:
            self._say(sentence)
        self._said = sentence
        if left_out:
            planned = without_parts(read.view, planned, left_out)
            events = plan_events(read.view, planned)
        every = list(fitting)
        if planned.allocation is not None:
            version = read.snapshot.allocation_version
            every.insert(0, [allocation_write(self._store.paths, planned.allocation, version)])
        rest = (one for one in events if one.job not in planned.lives)
        every += [[write] for write in self._of_events(rest)]
        if all(self._writer.commit(writes) for writes in _transactions(every)):
            return planned, events
        # A record has changed meanwhile; of several transactions the first ones may be written.
        return None

    def _of_part(
        self, read: LeaderRecords, planned: ClusterPlan, part: PlanPart, events: Events
    ) -> list[Write]:
        paths, jobs = self._store.paths, read.job_named
        lives = {name: planned.lives[name] for name in part.jobs}
        return [
            *(life_write(paths, jobs[name], life) for name, life in lives.items()),
            # before the job is assigned to hosts, which need its secret
            *(
                secret_write(paths, name)
                for name, life in lives.items()
                if life.run and name not in read.secrets
            ),
            *(
                assigned_write(paths, read.view.host_named[one], planned.assigned[one])
                for one in part.hosts
            ),
            *self._of_events(one for one in events if one.job in lives),
        ]

    def _of_events(self, events: Iterable[PlannedEvent]) -> Iterator[Write]:
        return (event_write(self._store.paths, self._store.events.new(*one)) for one in events)


def _transactions(parts: Sequence[Sequence[Write]]) -> list[list[Write]]:
    """Put the writes of parts, each of which has to be in one transaction, into few of them."""
    found: list[list[Write]] = [[]]
    size = 0
    for writes in parts:
        part_size = byte_count(writes)
        size += part_size
        is_full = len(found[-1]) + len(writes) > TRANSACTION_WRITES
        if found[-1] and (is_full or size > TRANSACTION_BYTES):
            found.append([])
            size = part_size
        found[-1] += writes
    return [one for one in found if one]


# ------------------------------------------------------------
# Remove the ended jobs of a cluster that are not kept, with the nodes of their last runs.
#
# The code of a job may have written anything into the nodes of its run, so the removal of one may
# fail, each time, or take many turns. The removal of others must not wait for that.


REMOVALS_S = 1.0  # of one turn, to remove jobs: something else may be urgent meanwhile
REMOVER_REST_S = 60.0  # before edl tries again what ZooKeeper's administrator has to do


class JobRemover:
    def __init__(
        self,
        runs: RunWriter,
        remove_record: Callable[[JobView], object],
        say: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._runs = runs
        self._remove_record = remove_record
        self._say = say
        self._clock = clock
        self._failed_s: dict[str, float] = {}  # job -> when its run was not removed last
        self._stuck: dict[str, str] = {}  # job -> why an administrator has to remove its run

    def remove(
        self, jobs: Sequence[JobView], secrets: Mapping[str, str], unread: Collection[str]
    ) -> None:
        """Remove jobs, one after another, for `REMOVALS_S` (1 s); the next call goes on."""
        deadline_s = self._clock() + REMOVALS_S
        names = {job.name for job in jobs}
        self._failed_s = {name: at for name, at in self._failed_s.items() if name in names}
        self._stuck = {name: why for name, why in self._stuck.items() if name in names}
        for job in sorted(jobs, key=lambda one: self._failed_s.get(one.name, -math.inf)):
            if self._clock() >= deadline_s:
                return
            name, secret = job.name, secrets.get(job.name)
            rests = name in self._stuck and self._clock() - self._failed_s[name] < REMOVER_REST_S
            if name in unread or rests:
                continue
            try:
                # Without a secret it was never started.
                removed = secret is None or self._runs.remove(name, secret)
                self._stuck.pop(name, None)
            except LeadershipLost:
                raise
            except NotRemovable as error:
                removed = False
                if self._stuck.get(name) != str(error):
                    self._say(str(error))
                self._stuck[name] = str(error)
            except Exception:  # whatever the job's code has written
                removed = False
                logger.info("cannot remove the last run of job %s", name, exc_info=True)
            if removed:
                self._remove_record(job)
            else:
                self._failed_s[name] = self._clock()


# ------------------------------------------------------------
# Find out at once that the process of another controller has died.
#
# ZooKeeper ends the session of a dead controller only after its time-out. So each controller
# listens on a port, and those that wait ask the ports of those before them in the election. Where
# nobody listens any more, the process is dead, and may be removed: the fence refuses its writes.


ASK_S = 0.5  # for the port of another controller to answer
BACKLOG = 64


class LivenessServer:
    def __init__(self, address: str) -> None:
        self._address = address
        self._socket = socket.socket()
        self._thread = threading.Thread(target=self._answer, name="edl-liveness", daemon=True)
        self.port = 0  # which the system chooses

    def __enter__(self) -> Self:
        try:
            self._socket.bind((self._address, 0))
        except OSError as error:
            self._socket.close()
            raise UsageError(
                f"cannot listen at {self._address}: {error.strerror}; give --address with an "
                "address of this machine"
            ) from None
        self._socket.listen(BACKLOG)
        self.port = self._socket.getsockname()[1]
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # this wakes the thread
        self._socket.close()
        self._thread.join(ASK_S)

    def _answer(self) -> None:
        while True:
            try:
                self._socket.accept()[0].close()
            except OSError:
                return


class LivenessProbe:
    def __init__(self) -> None:
        self._answered: set[str] = set()

    def dead(self, controllers: Iterable[ControllerRecord]) -> list[ControllerRecord]:
        found = []
        for one in controllers:
            if is_known_dead(one.machine, one.pid):
                found.append(one)
                continue
            refused = _is_refused(one)
            if refused is False:
                self._answered.add(one.controller)
            # What refuses the connection of one that has never answered may be a firewall.
            elif refused and one.controller in self._answered:
                found.append(one)
        return found


def _is_refused(controller: ControllerRecord) -> bool | None:
    """Return whether the port of `controller` refuses a connection; None: it is not known."""
    if not controller.port:
        return None
    try:
        socket.create_connection((controller.address, controller.port), ASK_S).close()
    except ConnectionRefusedError:
        return True
    except OSError as error:
        logger.debug("%s does not answer: %s", controller, error)
        return None
    return False


SESSION_S = 2.0  # a controller that is silent for so long does not lead any more
# On a machine that is too busy for that, a controller would read a large cluster again and again,
# and lose its session meanwhile. So after each session that it has lost it asks for twice as long.
MAX_SESSION_S = 16.0
POLL_S = 5.0  # the longest time between two reads, though nothing is seen to change
FOLLOW_S = 0.25  # the same of a controller that does not lead: so soon it notices a death
REST_S = 0.5  # the longest rest after a turn, which else is as long as the turn took
AGAIN_S = 0.5  # between two tries while ZooKeeper is away
ORDERS_S = 1.0  # of one turn, to carry out orders: something else may be urgent meanwhile
BUSY_S = 10.0  # between two removals of ended jobs while each turn has something else to do
HOUSEKEEPING_S = 60.0  # between two removals of what is old, and of garbage
Say = Callable[[str], None]


class Controller:
    def __init__(
        self,
        hosts: str,
        access: Access,
        record: ControllerRecord,
        say: Say,
        connect_timeout_s: float = 10.0,
        lender: tuple[Fleet, LeaseLimits] | None = None,
    ) -> None:
        self._lender = lender
        self._runner: FleetRunner | None = None
        self._access = access
        self._about = record
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
                # With thousands of jobs it takes 0.2 s, in which no other thread runs, not even the
                # one that keeps the session. Python would do so in every other turn.
                if not gc.isenabled() and time.monotonic() - self._collected_s >= HOUSEKEEPING_S:
                    gc.collect()
                    self._collected_s = time.monotonic()
                began_s = time.monotonic()
                wait_s = self._turn(store, election)
                time.sleep(min(REST_S, time.monotonic() - began_s))
                self._wakeup.wait(wait_s)
            self._resign(election)
            if self._lender is not None:
                try:
                    borrowed = left_borrowed(store.leader.leases()[0])
                    if borrowed and not store.leader.controllers():
                        self._say(borrowed)
                except CoordinationError as error:
                    logger.info("it is not known which hosts are borrowed: %s", error)

    def _turn(self, store: ClusterStore, election: Election) -> float:
        try:
            of_runs = [] if self._term is None else self._term.run_sessions.sessions
            for session in (self._session, *of_runs):
                wanted_s = min(MAX_SESSION_S, SESSION_S * 2.0 ** max(0, session.epoch - 1))
                if wanted_s > session.session_timeout_s:
                    session.ask_for(wanted_s)
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
            return POLL_S
        except Exception as error:  # whatever a policy does: jobs go on, and the next turn may work
            logger.exception("a turn has failed")
            self._say_once(f"cannot plan: {error!r}; the log has more")
            return POLL_S

    def _begin(self, store: ClusterStore, leadership: Leadership) -> ControllerTerm:
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
        try:
            election.leave()
        except CoordinationError as error:
            logger.info("could not resign, so the session has to end: %s", error)

    def _say_once(self, sentence: str) -> None:
        if sentence != self._said:
            self._said = sentence
            self._say(sentence)


class ControllerTerm:
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
        self._leases: LeaseManager | None = None
        self._refused: dict[str, str] = {}  # job -> why its last order was refused
        self._removed_s = time.monotonic()  # when ended jobs were removed last
        self._tidied_s = 0.0  # by the monotonic clock

    def begin(self, record: ControllerRecord) -> None:
        event = self._store.events.new(
            ClusterEventKind.LEADER,
            f"{record} leads in term {self.number}, with edl {record.version}",
        )
        self._writer.commit([event_write(self._store.paths, event)])

    def borrow(self, runner: FleetRunner, limits: LeaseLimits) -> None:
        self._leases = LeaseManager(self._store, self._writer, runner, limits, self._say)

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
            hosts = (
                replace(h, assigned=found.assigned.get(h.name, h.assigned)) for h in read.view.hosts
            )
            self._leases.turn(replace(read.view, hosts=tuple(hosts)), now_s)
        if not found.acts or time.monotonic() - self._removed_s >= BUSY_S:
            self._tidy(read)
        poll_s = AGAIN_S if read.unread else POLL_S
        return max(0.0, min(poll_s, tell_s, found.next_s - self._now_s()))

    def _plan(self, read: LeaderRecords, now_s: float) -> ClusterPlan:
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
        if not isinstance(policy, KeepAllocation):
            self._policies.worked()
        return found

    def _tell(self, events: Sequence[PlannedEvent]) -> None:
        """Show the events of a plan; if a job changes its state, not the event about its slots."""
        changed = {one.job for one in events if one.kind is ClusterEventKind.STATE}
        for one in events:
            if one.kind is not ClusterEventKind.SLOTS or one.job not in changed:
                self._say(f"job {one.job}: {one.reason}" if one.job else one.reason)

    def _read(self) -> LeaderRecords:
        snapshot = self._store.snapshot()
        check_settings(self._store.paths.name, snapshot.settings)
        names = [job.name for job in snapshot.jobs]
        secrets, kept = self._store.jobs.secrets_and_measured(names)
        mark = self._leases.marked if self._leases is not None else None
        count = sum(job.life.state.has_run for job in snapshot.jobs)
        runs = self.run_sessions.read(secrets, count)
        why = self.run_sessions.unreadable, self.run_sessions.unread
        return LeaderRecords(snapshot, secrets, kept, runs, mark, self._views, *why)

    def _carry_out(self, read: LeaderRecords, planned: ClusterPlan) -> None:
        deadline_s = time.monotonic() + ORDERS_S
        for order in sorted(planned.orders, key=lambda one: bool(self._refused.get(one.job))):
            if time.monotonic() >= deadline_s:
                return
            if order.job in read.unread:
                continue
            job, last = read.job_named[order.job], read.runs.get(order.job)
            secret = read.secrets.get(job.name) or self._writer.job_secret(job.name)
            try:
                if isinstance(order, CreateRun):
                    # What the last run has measured outlives its nodes.
                    kept = read.kept.get(job.name, MeasuredThroughput())
                    measured, _ = measurements(kept, last, job.order)
                    if measured != kept and (measured.steps or measured.curve):
                        self._writer.keep_measured(job.name, measured)
                refused = self._runs.carry_out(order, job, secret, last)
            except LeadershipLost:
                raise
            except Exception as error:  # whatever the job's code has written
                logger.info("an order for job %s has failed", job.name, exc_info=True)
                refused = f"{error}"
            if refused and refused != self._refused.get(job.name):
                self._say(f"job {job.name}: {type(order).__name__} was refused: {refused}")
            self._refused[job.name] = refused

    def _tidy(self, read: LeaderRecords) -> None:
        """Remove records of ended jobs that are not kept; at times also old events and hosts."""
        self._removed_s = time.monotonic()
        doomed = jobs_to_remove(read.snapshot.jobs, self._now_s())
        self._remover.remove(doomed, read.secrets, read.unread)
        if time.monotonic() - self._tidied_s >= HOUSEKEEPING_S and self._writer.trim_events():
            self._tidied_s = time.monotonic()
            for host in hosts_to_remove(read.snapshot.hosts, self._now_s()):
                self._writer.remove_host(host)
