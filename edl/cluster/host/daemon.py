"""Keep the agents of a cluster's jobs on one host: the process `edl host`.

It reads one node, what is assigned to the host, and makes it so; :mod:`edl.cluster.host_jobs`
decides how. It keeps nothing in memory that matters: it finds its processes by a mark in their
environment, and reads from logs how agents have ended. So it may be killed at any moment, and the
next `edl host` goes on. While ZooKeeper is away it starts and ends nothing, and the jobs train on.
"""

from __future__ import annotations

import logging
import math
import os
import threading
import time
import uuid
from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import Future, wait
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import FrameType

from edl import config
from edl.clock import Wakeup
from edl.cluster.host.agents import AgentOptions, HostAgents, StartOfRun
from edl.cluster.host.logs import LogPlaces, LogServer
from edl.cluster.host.processes import (
    HostLock,
    Slices,
    find_processes,
    find_surely,
    host_mark,
    is_dead,
    signal_process,
)
from edl.cluster.host.users import NO_USERS, JobUsers, SecretFiles, secret_root
from edl.cluster.host_jobs import (
    LIMITS,
    NO_LIMITS,
    HostDecision,
    HostObservation,
    RunProcess,
    SlotLimits,
    decide_host,
)
from edl.cluster.manifest import JobManifest
from edl.cluster.nodes import check_format, own_version
from edl.cluster.records import LACKS, SEPARATOR, HostAssignment, HostOffer, tenant_of
from edl.cluster.store import ClusterStore, HostOwner, HostRegistration
from edl.errors import (
    AccessDenied,
    CoordinationError,
    EdlError,
    HostTaken,
    UnknownCluster,
    UnknownJob,
    UnsupportedFormat,
    UsageError,
)
from edl.host.adoption import machine_name
from edl.host.signals import TO_END, handled
from edl.text import counted
from edl.zookeeper.access import Access
from edl.zookeeper.nodes import current_run
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.reads import exists, ignore_changes
from edl.zookeeper.session import Session

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Read what an agent of an assigned run needs, and say why it cannot be started yet.


MAX_IDENTITIES = 500

"""The number of jobs whose identity a session proves before another session replaces it.

A session keeps all identities, sends them when it connects again, and ZooKeeper compares all of
them with each ACL."""

ASK_S = 5.0  # between two times that all is read of a run that is waited for
NOT_CREATED = "its run has not been created yet"
NOT_LOOKED = "it is not known yet whether this host has {}; its file system does not answer"


WAIT_S = 0.3  # for a look whether paths are there


class PathProbe:
    # A file server that is away makes a look last for ever. So each path has a thread of its own,
    # and one whose look does not end counts as unknown.

    def __init__(self, exists: Callable[[str], bool] = lambda path: exists_here(path)) -> None:
        self._exists = exists
        self._looks: dict[str, Future[bool]] = {}

    def answers(self, paths: Iterable[str], wait_s: float = WAIT_S) -> dict[str, bool]:
        """Return whether each of `paths` is there; one of which that is not known is left out."""
        looks = {path: self._looks.get(path) or self._look(path) for path in paths}
        wait(looks.values(), wait_s)
        # One that ended is looked up anew the next time.
        every = {**self._looks, **looks}
        self._looks = {path: look for path, look in every.items() if not look.done()}
        return {path: look.result() for path, look in looks.items() if path not in self._looks}

    def _look(self, path: str) -> Future[bool]:
        look: Future[bool] = Future()

        def work() -> None:
            look.set_result(self._exists(path))

        # Not of a pool, whose threads Python waits for at its end.
        threading.Thread(target=work, name="edl-paths", daemon=True).start()
        return look


def exists_here(path: str) -> bool:
    """Return whether `path` is there; one that ends with a slash must be a directory."""
    try:
        found = Path(path)
        return found.is_dir() if path.endswith("/") else found.exists()
    except OSError:
        return False


class AssignedRuns:
    def __init__(
        self,
        store: ClusterStore,
        connect: Callable[[], Session],
        paths: PathProbe,
        clock: Callable[[], float] = time.monotonic,
        users: JobUsers = NO_USERS,
    ) -> None:
        self._store = store
        self.paths = paths
        # called when a run has been created for which `start_of` had to wait; it must not block
        self.on_created: Callable[[], None] = ignore_changes
        self._connect = connect
        # Its own, because what a session creates is closed with the secret that it has proved last.
        self._session: Session | None = None
        self._clock = clock
        self._users = users
        # Jobs and their runs, watched in the session -> when all was read last.
        self._awaited: dict[tuple[str, str], float] = {}

    def start_of(self, job: str, run: str) -> StartOfRun | str:
        # An agent that came before its run was created would find that the run is over.
        if self._waits_for(job, run) and self._clock() - self._awaited[job, run] < ASK_S:
            return NOT_CREATED
        try:
            manifest = self._store.jobs.get(job).manifest
            secret = self._store.jobs.secret(job)
        except UnknownJob:
            return f"the cluster has no job {job}"
        except CoordinationError as error:
            if not self._store.nodes.session.connected:
                raise
            return f"its records cannot be read: {error}"  # they are of a newer edl, for example
        if why := self._closed(job):
            return why
        if secret is None:
            return NOT_CREATED
        secrets = self._lacks(manifest) or self._secrets_of(manifest)
        if isinstance(secrets, str):
            return secrets
        try:
            if self._current_run(job, secret) != run:
                self._awaited[job, run] = self._clock()
            if self._waits_for(job, run):
                return NOT_CREATED
        except AccessDenied:
            self._awaited.pop((job, run), None)
            return f"the name {job} is taken by a job that has another secret"
        return StartOfRun(run, manifest, secret, secrets)

    def keep_only(self, assigned: Collection[tuple[str, str]]) -> None:
        # ZooKeeper keeps watches for as long as the session lives.
        if not self._awaited.keys() <= set(assigned):
            self.close()

    def _waits_for(self, job: str, run: str) -> bool:
        if (job, run) not in self._awaited:
            return False
        session = self._session
        if session is None or not session.connected:
            self._awaited.clear()  # they are asked for in another session
            return False
        # Only this is asked: while a controller creates a thousand runs, hosts wait for most of
        # them.
        node = exists(f"{JobPaths(job).run}/{run}", self._created)
        if session.read_all("wait for a run", [node])[0] is None:
            return True
        del self._awaited[job, run]
        return False

    def _created(self) -> None:
        # on kazoo's connection thread
        self.on_created()

    def _closed(self, job: str) -> str:
        """Return why no job of a tenant runs here, as a sentence; empty: it may."""
        # The controller gives it no slots here, but one of an older edl does.
        if self._users.of_tenants or SEPARATOR not in job:
            return ""
        tenant = tenant_of(job, self._store.tenants.names())
        why = f"`edl host` names no user for jobs of tenant {tenant}; add --user {tenant}=USER"
        return why if tenant else ""

    def _lacks(self, manifest: JobManifest) -> str:
        there = self.paths.answers(manifest.required_paths)
        for path, what in manifest.required_paths.items():
            if not there.get(path, False):
                return f"{LACKS}{what}" if path in there else NOT_LOOKED.format(what)
        return ""

    def close(self) -> None:
        """End the session for the nodes of jobs; the next `start_of` opens another one."""
        session, self._session = self._session, None
        self._awaited.clear()
        if session is not None:
            session.close()

    def _secrets_of(self, manifest: JobManifest) -> Mapping[str, bytes] | str:
        try:
            found = self._store.secrets.contents(manifest.secrets)
        except CoordinationError as error:
            if not self._store.nodes.session.connected:
                raise
            return str(error)  # it was sealed by a stranger
        missing = [name for name in manifest.secrets if name not in found]
        if missing:
            return f"the cluster has no secret {missing[0]}; `edl secret set {missing[0]}`"
        return found

    def _current_run(self, job: str, secret: str) -> str | None:
        """Return the token of the present run of a job; None if it has none."""
        session = self._session
        if session and not (session.connected and len(session.identities) < MAX_IDENTITIES):
            self.close()
        if self._session is None:
            self._session = self._connect()
        access = Access(job, secret)
        if access not in self._session.identities:
            self._session.identify(access)
        return current_run(self._session, JobPaths(job))


POLL_S = 1.0
SOON_S = 0.2  # after something was done
MISSING_S = 5.0  # before it is looked again whether data is there
ONE_SIGNAL_S = 0.5  # signals that come closer together are one: a group and its leader got it
TAKEN_BACK_S = 10.0  # for the leader to take back what a leaving host had
FORMER_S = 2.0  # beyond a session time-out, for the offer of a former `edl host` to vanish


class HostDaemon:
    def __init__(
        self,
        store: ClusterStore,
        host: str,
        offer: HostOffer,
        mark: str,
        agents: HostAgents,
        runs: AssignedRuns,
        say: Callable[[str], None],
        leave_within_s: float | None = None,
    ) -> None:
        self._nodes = store.nodes
        self._session = store.nodes.session
        self._cluster = store.paths.name
        self._host = host
        self._offer = offer
        self._mark = mark
        self._agents = agents
        self._runs = runs
        self._say = say
        self._leave_within_s = leave_within_s
        owner = HostOwner(uuid.uuid4().hex, machine_name(), os.getpid())
        self._registration = HostRegistration(store.nodes, host, owner)
        self._wake = Wakeup()
        self._epoch = 0  # of the session in which the host is registered
        self._signals = 0
        self._signalled_s = -math.inf
        self._left_s = 0.0  # when the host began to leave; 0: it does not
        self._empty_s = 0.0  # since when nothing lives on the leaving host; 0: something does
        self._ending_s: Mapping[tuple[str, str], float] = {}
        self._terminated: frozenset[tuple[int, int]] = frozenset()
        self._obstacles: dict[str, tuple[str, str, float]] = {}  # job -> run, why, until when
        self._is_away = False

    def wake(self) -> None:
        self._wake.set()

    def run(self) -> None:
        self._session.add_listener(lambda state: self.wake())
        self._agents.on_exit = self._runs.on_created = self.wake
        with handled(TO_END, self._on_signal):
            self._register_first()
            self._say(
                f"host {self._host} offers {counted(self._offer.slots, 'slot')} to cluster "
                f"{self._cluster}"
            )
            try:
                self._loop()
            except HostTaken:
                self._end_all()
                raise
            finally:
                self._runs.close()
                self._agents.tidy(HostAssignment(), self._find(HostAssignment()))
        self._say(f"host {self._host} has left cluster {self._cluster}")

    # --- the loop

    def _loop(self) -> None:
        failed = ""
        while True:
            wait_s = POLL_S
            try:
                found = self._turn(time.monotonic())
                if found is None:
                    return
                wait_s = found
                self._note_away("")
            except HostTaken:
                raise
            except (CoordinationError, UnknownCluster, UnsupportedFormat) as error:
                self._note_away(str(error))
                if self._leaves_alone(time.monotonic()):
                    return
            except Exception as error:
                # It does not end the host, because its jobs would end with it; it is logged once.
                if repr(error) != failed:
                    logger.exception("the host could not do all of its work; it tries again")
                failed = repr(error)
                if self._begins_to_leave(time.monotonic()) and self._is_late(time.monotonic()):
                    self._end_all()
                    return
            self._wake.wait(wait_s)

    def _turn(self, now_s: float) -> float | None:
        if not self._session.connected:
            raise CoordinationError("ZooKeeper is away")
        check_format(self._nodes, self.wake)
        self._leave_or_register(now_s)
        # The order matters, see `HostReport`: read, look, decide, report, act.
        assigned, version = self._registration.assigned(self.wake)
        found = self._find(assigned)
        seen = HostObservation(
            version,
            found,
            self._agents.observe(assigned, found, now_s),
            {},
            self._ending_s,
            self._terminated & {one.identity for one in found},
            leaves=self._left_s > 0,
            kills=self._is_late(now_s),
        )
        starts, obstacles = self._prepare(assigned, self._decide(assigned, seen, now_s), now_s)
        decision = self._decide(assigned, replace(seen, obstacles=obstacles), now_s)
        self._registration.report(decision.report)
        if self._has_left(assigned, found, now_s):
            self._registration.withdraw()
            return None
        self._agents.limit(assigned)
        self._act(decision, starts, seen.terminated, now_s)
        self._agents.tidy(assigned, found)
        if decision.starts:
            self._agents.prune((job, entry.run) for job, entry in assigned.jobs.items())
        if decision.starts or decision.signals:
            return SOON_S
        if decision.next_s is not None:
            return min(POLL_S, max(0.0, decision.next_s - now_s))
        return POLL_S

    def _decide(
        self, assigned: HostAssignment, seen: HostObservation, now_s: float
    ) -> HostDecision:
        move_s, within_s = LIMITS.move_s, self._leave_within_s
        # the leader has at most half of the time to move the host's jobs away
        if within_s is not None:
            move_s = min(move_s, within_s / 2)
        return decide_host(assigned, seen, now_s, replace(LIMITS, move_s=move_s))

    def _find(self, assigned: HostAssignment) -> tuple[RunProcess, ...]:
        find = partial(find_processes, self._mark, self._agents.users)
        found = find_surely(find, assigned)
        known = {one.pid for one in found}
        return (*found, *(one for one in self._agents.children() if one.pid not in known))

    def _prepare(
        self, assigned: HostAssignment, decision: HostDecision, now_s: float
    ) -> tuple[dict[str, StartOfRun], dict[str, str]]:
        entries = assigned.jobs.items()
        self._runs.keep_only({(job, entry.run) for job, entry in entries if not entry.ends})
        starts: dict[str, StartOfRun] = {}
        obstacles: dict[str, tuple[str, str, float]] = {}
        for job in decision.starts:
            run = assigned.jobs[job].run
            known = self._obstacles.get(job)
            if known is not None and known[0] == run and now_s < known[2]:
                obstacles[job] = known
                continue
            start = self._runs.start_of(job, run)
            if isinstance(start, StartOfRun):
                starts[job] = start
            else:
                until_s = now_s + (0.0 if start == NOT_CREATED else MISSING_S)
                obstacles[job] = (run, start, until_s)
                if known is None or known[:2] != (run, start):
                    logger.info("job %s cannot start: %s", job, start)
        self._obstacles = obstacles
        if not decision.starts:
            self._runs.close()
        return starts, {job: why for job, (_, why, _) in obstacles.items()}

    def _act(
        self,
        decision: HostDecision,
        starts: Mapping[str, StartOfRun],
        terminated: frozenset[tuple[int, int]],
        now_s: float,
    ) -> None:
        for order in decision.signals:
            signal_process(order)
        signalled = {order.process.identity for order in decision.signals if not order.kill}
        self._terminated = terminated | signalled
        self._ending_s = decision.ending_s
        for job in decision.starts:
            try:
                self._agents.start(starts[job])
            except (OSError, ValueError) as error:  # a text that no process can have is the latter
                self._agents.failed_to_start(job, starts[job].run, error, now_s)

    # --- to come and to go

    def _register_first(self) -> None:
        # By then the session of a dead process must have ended.
        deadline_s = time.monotonic() + self._session.granted_s + FORMER_S
        while True:
            try:
                self._register()
            except UnknownCluster:
                raise
            except UsageError:
                if time.monotonic() >= deadline_s or self._signals:
                    raise
                self._wake.wait(SOON_S)
            else:
                return

    def _register(self) -> None:
        epoch = self._session.epoch
        self._registration.register(self._offer, is_dead)
        self._epoch = epoch

    def _leave_or_register(self, now_s: float) -> None:
        """Offer the host again in a new session; offer it as leaving after the first signal."""
        if self._epoch != self._session.epoch:
            try:
                self._register()
            except UnknownCluster:
                raise
            except UsageError as error:
                raise HostTaken(self._host, str(error)) from error
        if self._begins_to_leave(now_s) and not self._offer.leaves:
            offer, self._offer = self._offer, replace(self._offer, leaves=True)
            try:
                self._register()
            except EdlError:
                self._offer = offer
                raise

    def _begins_to_leave(self, now_s: float) -> bool:
        """Return whether the host leaves; note when the first signal came."""
        if self._signals and not self._left_s:
            self._left_s = now_s
            self._say(f"host {self._host} leaves; a second signal kills what lives here")
        return self._left_s > 0

    def _leaves_alone(self, now_s: float) -> bool:
        self._epoch = 0  # the host may not be registered any more
        if not self._begins_to_leave(now_s):
            return False
        # While ZooKeeper is away nothing is ended before.
        if self._is_late(now_s):
            self._end_all()
            return True
        return self._has_left(None, self._find(HostAssignment()), now_s)

    def _is_late(self, now_s: float) -> bool:
        if not self._left_s:
            return False
        limit_s = math.inf if self._leave_within_s is None else self._leave_within_s
        return self._signals > 1 or now_s - self._left_s >= limit_s

    def _has_left(
        self, assigned: HostAssignment | None, processes: tuple[RunProcess, ...], now_s: float
    ) -> bool:
        """Return whether the host has left: nothing lives, and the leader has taken all back."""
        if not self._left_s or processes:
            self._empty_s = 0.0
            return False
        self._empty_s = self._empty_s or now_s
        waited_s = now_s - self._empty_s
        is_empty = assigned is not None and not assigned.jobs
        return is_empty or self._signals > 1 or waited_s >= TAKEN_BACK_S

    def _end_all(self) -> None:
        ending_s: Mapping[tuple[str, str], float] = {}
        terminated: frozenset[tuple[int, int]] = frozenset()
        while found := self._find(HostAssignment()):
            now_s = time.monotonic()
            seen = HostObservation(-1, found, {}, {}, ending_s, terminated)
            decision = decide_host(HostAssignment(), replace(seen, kills=self._signals > 1), now_s)
            for order in decision.signals:
                signal_process(order)
                terminated |= {order.process.identity}
            ending_s = decision.ending_s
            if any(now_s - since_s > 60.0 for since_s in ending_s.values()):
                logger.warning("processes do not end: %s", [one.pid for one in found])
                return
            time.sleep(SOON_S)

    def _note_away(self, reason: str) -> None:
        if bool(reason) != self._is_away:
            self._is_away = bool(reason)
            self._say(
                f"{reason}; the jobs train on, and nothing is started or ended here"
                if reason
                else "ZooKeeper is back"
            )

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now_s = time.monotonic()
        if now_s - self._signalled_s >= ONE_SIGNAL_S:
            self._signals += 1
            self._signalled_s = now_s
        self._wake.set()


# ------------------------------------------------------------
# Put the parts of `edl host` together, from what it was told.


@dataclass(frozen=True)
class HostSettings:
    settings: config.Config  # the settings of this process, with the name of the host
    address: str  # the network address of the host
    devices: tuple[int, ...]  # the numbers of the devices that it offers, one for each slot
    labels: Mapping[str, str]
    kind: str = ""  # the kind of machine, for policies that tell fast from slow ones; may be empty
    users: JobUsers = field(default_factory=JobUsers)  # the users as whom the jobs run
    limits: SlotLimits = NO_LIMITS  # the most that a job may use here, for each of its slots
    lease: str = ""  # the lease under which another engine lends the host; empty: under none


def run_host_daemon(store: ClusterStore, options: HostSettings, say: Callable[[str], None]) -> None:
    host, cluster, session = options.settings.host, store.paths.name, store.nodes.session
    access = store.nodes.access
    mark = host_mark(access.secret, cluster, host)
    lock = HostLock(mark)
    if not lock.take():
        raise UsageError(
            f"another `edl host` of host {host} of cluster {cluster} lives on this machine, though "
            "it may be frozen; end it, or give this one another name with --host"
        )
    within_s = options.settings.leave_within_s
    places = LogPlaces(
        config.state_dir() / "jobs",
        config.state_dir() / "clusters" / cluster / "agents" / host,
        options.users,
    )
    agents = HostAgents(
        AgentOptions(
            host,
            mark,
            len(options.devices),
            options.address,
            session.hosts,
            options.settings.network_interface,
            within_s,
        ),
        places,
        config.environment(),
        SecretFiles(secret_root(mark, config.state_dir())),
        options.users,
        None if options.limits.is_empty else Slices(options.limits, mark),
    )
    server = LogServer(options.address, cluster, access.secret, places, partial(_secret_of, store))
    offer = HostOffer(
        slots=len(options.devices),
        devices=options.devices,
        labels=options.labels,
        kind=options.kind,
        address=options.address,
        version=own_version(),
        lease=options.lease,
        tenants=tuple(sorted(options.users.of_tenants)),
    )

    def connect() -> Session:
        other = Session(session.hosts, session.session_timeout_s, session.request_timeout_s)
        other.start()
        return other

    runs = AssignedRuns(store, connect, PathProbe(), users=options.users)
    with server:
        served = replace(offer, port=server.port)
        HostDaemon(store, host, served, mark, agents, runs, say, within_s).run()


def _secret_of(store: ClusterStore, job: str) -> str | None:
    """Return the secret of a job's runs; None if there is none, or ZooKeeper is away."""
    try:
        return store.jobs.secret(job)
    except CoordinationError:
        return None
