"""Build the agent of this host for one job, from the settings and the job's record."""

from __future__ import annotations

import json
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.text import Text

from edl import __version__, config
from edl.config import Config
from edl.errors import EdlError, RingError, RunEnded, UsageError
from edl.host.address import own_address
from edl.host.adoption import machine_name
from edl.host.agent import Agent
from edl.host.command import check_command
from edl.host.decide import AgentLimits
from edl.host.output import Output
from edl.host.workers import EVENTS, log_directory
from edl.http.client import METRICS_PATH, TARGETS_PATH
from edl.http.exposition import MetricsHandler
from edl.http.server import DaemonServer, HttpRequest
from edl.job.run import check_run_token, why_run_is_over
from edl.job.snapshot import Snapshot
from edl.metric import BUILD_INFO, ZOOKEEPER_CONNECTED, Sample
from edl.metrics import EventCounts, job_samples, scrape_targets
from edl.records import Host, Job
from edl.spec import variable
from edl.status import job_line, job_status
from edl.text import counted, workers
from edl.zookeeper.access import Access, candidates, keep, stored
from edl.zookeeper.nodes import current_run, delete_ended, job_names, list_jobs, unlock
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Serve the job's metrics: `GET /metrics`, `/targets` (for Prometheus to find all), and `/health`.


class JobMetrics(AbstractContextManager[int]):
    def __init__(
        self,
        address: str,
        port: int | None,
        zookeeper: str,
        connected: Callable[[], bool],
        notify: Callable[[str], None],
    ) -> None:
        self._address = address
        self._port = port
        self._zookeeper = zookeeper
        self._connected = connected
        self._notify = notify
        self._server: DaemonServer | None = None
        self._snapshot: Snapshot | None = None
        self.counts = EventCounts()

    def __enter__(self) -> int:
        if self._port is None:
            return 0
        server = DaemonServer(self._address, self._port, health=dict)
        server.add_route(METRICS_PATH, MetricsHandler(self._samples))
        server.add_route(TARGETS_PATH, self._targets)
        try:
            server.start()
        except RingError as error:
            self._notify(f"no metrics of the job are served here: {error}")
            return 0
        self._server = server
        self._notify(f"metrics are at http://{self._address}:{server.port}{METRICS_PATH}")
        return server.port

    def __exit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()

    def on_snapshot(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def _samples(self) -> Iterable[Sample]:
        """Return the values of all metrics; until the job's records are known, only of a few."""
        yield BUILD_INFO(1, __version__)
        if self._snapshot is None:
            yield ZOOKEEPER_CONNECTED(int(self._connected()))
        else:
            status = job_status(self._snapshot, self._zookeeper)
            yield from job_samples(status, self.counts, self._connected())

    def _targets(self, _request: HttpRequest) -> tuple[int, bytes]:
        """Answer where the metrics are; 503, so that Prometheus keeps its list, until known."""
        if self._snapshot is None:
            return 503, b"[]"
        return 200, json.dumps(scrape_targets(self._snapshot)).encode()


# ------------------------------------------------------------
# Remove the records of jobs that ended long ago, of this user alone (their secret is stored here).


COLLECT_EVERY_S = 3600.0
COLLECT_GRACE_S = (
    1.0  # a removal under way goes on for so long at the agent's end: jobs may be short
)
COLLECT_END_S = 2.0  # and so long is waited for it


class JobGarbageCollector:
    """A context manager that removes old ended jobs from ZooKeeper while its `with` block runs."""

    # At entry only if the user has more jobs than are kept, then every hour; never the agent's own.

    def __init__(self, store: JobStore, state: Path, retention: Retention) -> None:
        self._session = store.session
        self._own = store.name
        self._state = state
        self._retention = retention
        self._ends = threading.Event()
        self._until_s = math.inf  # on the monotonic clock
        self._thread = threading.Thread(target=self._run, name="edl-retention", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._until_s = time.monotonic() + COLLECT_GRACE_S
        self._ends.set()
        self._thread.join(COLLECT_END_S)

    def _run(self) -> None:
        hourly = False
        while True:
            try:
                if self._retention.is_due(len(self._of_this_user()), hourly):
                    self._remove()
            except (EdlError, OSError, ValueError) as error:  # ZooKeeper is away; a file is damaged
                logger.warning("ended jobs stay in ZooKeeper for now: %s", error)
            if self._ends.wait(COLLECT_EVERY_S):
                return
            hourly = True

    def _of_this_user(self) -> list[str]:
        return sorted(stored(self._state, job_names(self._session)))

    def _remove(self) -> None:
        near = self._session
        with Session(near.hosts, near.session_timeout_s, near.connect_timeout_s) as session:
            names = [name for name in self._of_this_user() if name != self._own]
            known = [
                Access(name, one) for name in names for one in candidates(self._state, name, None)
            ]
            mine = unlock(session, known)
            for name in outdated(list_jobs(session, mine), self._retention, time.time()):
                if time.monotonic() >= self._until_s:
                    return
                try:
                    delete_ended(session, JobPaths(name))
                except EdlError as error:
                    logger.info("job %s stays for now: %s", name, error)


@dataclass(frozen=True)
class Display:
    output: Output  # the agent enters it
    on_snapshot: Callable[[Snapshot], None] | None = None  # at each reading


def this_host(settings: Config, slots: int, zookeeper: str) -> Host:
    address = own_address(settings.address, settings.network_interface, zookeeper)
    return Host(settings.host, slots, address, os.getpid(), machine=machine_name())


def submitter_agent(
    store: JobStore,
    job: Job,
    here: Host,
    settings: Config,
    display: Display,
    or_join: bool = False,
    replaced_events: str = "",
) -> Agent:
    if replaced_events:  # of an earlier job of the same name
        try:
            logs = log_directory(config.state_dir(), job.name, fresh=False)
            (logs / EVENTS).write_text(replaced_events)
        except OSError as error:
            logger.warning("the events of the last run of job %s are lost: %s", job.name, error)
    greeting = f"job {job.name} starts with {workers(job.spec.np)}"
    return _agent(
        store,
        job,
        here,
        settings,
        display,
        f"{greeting}; ZooKeeper is at {store.session.hosts}",
        requested_np=job.spec.np if or_join else 0,
        joined=or_join,
        ends_job=or_join,
        fresh=True,
    )


def joining_agent(
    store: JobStore,
    settings: Config,
    display: Display,
    slots: int | None,
    np: int | None,
    ends_job: bool = False,
) -> Agent:
    record = store.snapshot().job
    if record.state.over:
        raise UsageError(f"job {record.name} {record.state.phrase}; nothing can join it")
    here = _host_of(record, settings, slots, store.session.hosts)
    check_command(record.spec.command, Path(record.spec.cwd), config.environment().get("PATH"))
    if np is not None and not 1 <= np <= here.slots:
        raise UsageError(
            f"-np is {np} and --slots is {here.slots}; -np must lie between 1 and --slots"
        )
    greeting = _offer(here, record)
    if np is None:
        greeting += f"; use them with `edl scale {record.name} --np N`"
    return _agent(
        store,
        record,
        here,
        settings,
        display,
        greeting,
        requested_np=np or 0,
        joined=True,
        ends_job=ends_job,
    )


def agent_of_run(
    store: JobStore, run: str, settings: Config, display: Display, slots: int | None
) -> Agent:
    """Build the agent of a host that joins one run of a job and no other; `run()` starts it."""
    check_run_token(run)
    current = current_run(store.session, store.paths)
    if current is None:
        raise store.nodes.unknown()
    store.nodes.belong_to(run)  # before the record is read, which may be that of a later run
    record = store.snapshot().job
    if why := why_run_is_over(record, run, current):
        raise RunEnded(why)
    here = _host_of(record, settings, slots, store.session.hosts)
    # The command is not checked here: a worker that cannot start leaves a log, and ends the run.
    greeting = f"{_offer(here, record)}, run {run}"
    return _agent(store, record, here, settings, display, greeting, joined=True, of_run=True)


def _host_of(record: Job, settings: Config, slots: int | None, zookeeper: str) -> Host:
    if record.driver:
        raise UsageError(
            f"job {record.name} was started by horovodrun, which places its workers; let its "
            "host discovery script name this host"
        )
    if slots is None:
        slots = record.sizes.max_np or record.spec.np
    if slots < 1:
        raise UsageError(f"--slots is {slots}; a host needs at least 1")
    return this_host(settings, slots, zookeeper)


def _offer(here: Host, record: Job) -> str:
    return f"host {here.name} offers {counted(here.slots, 'slot')} to job {record.name}"


def worker_environment(
    job: Job, hosts: str, here: Host, secret: str, interface: str, run: str = ""
) -> dict[str, str]:
    return {
        **({"NCCL_SOCKET_IFNAME": interface} if interface else {}),
        # So setproctitle writes no title over what /proc/PID/environ shows: by that the next agent,
        # and `edl host`, find the worker. The title is cut to the length of the command line.
        "SPT_NOENV": "1",
        **config.environment_for_worker(),
        "EDL_JOB": job.name,
        "EDL_RUN": run,
        "EDL_SECRET": secret,
        "EDL_ZOOKEEPER": hosts,
        "EDL_HOST": here.name,
        "EDL_ADDRESS": here.address,
        # Asked of ZooKeeper before the worker can read it in the job's record.
        variable("session_timeout_s"): f"{job.spec.settings.session_timeout_s:g}",
        "PYTHONUNBUFFERED": "1",
    }


def _agent(
    store: JobStore,
    job: Job,
    here: Host,
    settings: Config,
    display: Display,
    greeting: str,  # shown once the host is registered
    requested_np: int = 0,  # that the agent requests then
    joined: bool = False,  # the first signal makes the host leave instead of ending the job
    ends_job: bool = False,  # it ends the job all the same if no other host is to have workers
    fresh: bool = False,  # the job starts now: logs of an earlier job of its name are put aside
    of_run: bool = False,  # it joins one run of the job and no other (`edl agent`)
) -> Agent:
    session = store.session
    assert session.access is not None
    secret = session.access.secret
    state, run = config.state_dir(), store.nodes.run
    keep(state, job.name, secret)
    collector = JobGarbageCollector(
        store, state, Retention(settings.keep_jobs, settings.keep_jobs_s)
    )
    metrics = JobMetrics(
        here.address,
        settings.metrics_port,
        session.hosts,
        lambda: session.connected,
        display.output.note,
    )

    def on_snapshot(snapshot: Snapshot) -> None:
        metrics.on_snapshot(snapshot)
        if display.on_snapshot is not None:
            display.on_snapshot(snapshot)

    return Agent(
        store,
        here,
        job,
        display.output,
        worker_environment(job, session.hosts, here, secret, settings.network_interface, run),
        log_directory(state, job.name, fresh),
        greeting,
        AgentLimits(
            start_timeout_s=job.spec.settings.start_timeout_s,
            backoff_max_s=settings.backoff_max_s,
            frozen_s=settings.frozen_s,
            suspended_s=settings.suspended_s,
        ),
        np=requested_np,
        joined=joined,
        ends_job=ends_job,
        of_run=of_run,
        on_snapshot=on_snapshot,
        on_event=metrics.counts.add,
        stack_signal=settings.stack_signal,
        meanwhile=_beside(collector, metrics),
        borrowed_file=Path(settings.borrowed_file).absolute() if settings.borrowed_file else None,
        reclaim_s=settings.reclaim_s,
        leave_within_s=settings.leave_within_s,
    )


@contextmanager
def _beside(collector: JobGarbageCollector, metrics: JobMetrics) -> Iterator[int]:
    with collector, metrics as port:
        yield port


# ------------------------------------------------------------
# The status line that stays at the foot of an agent's terminal.


class LiveLine:
    """The status line of a job: progress, time left, world size, samples/s, epoch, step."""

    def __init__(self, job: str, width: Callable[[], int] | None = None) -> None:
        self._job = job
        self._width = width
        self._snapshot: Snapshot | None = None

    def update(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot

    def render(self) -> Text:
        width = None if self._width is None else self._width()
        parts = job_line(self._job, self._snapshot, width)
        return Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def agent_display(job: str, screen: Console, quiet: bool = False) -> Display:
    line = LiveLine(job, lambda: screen.width)
    return Display(Output(screen, line.render, shows_workers=not quiet), line.update)


# ------------------------------------------------------------
# Decide which ended jobs are removed from ZooKeeper, where they would otherwise stay for ever.
#
# `outdated` names them; `Retention.is_due` says when to look.


@dataclass(frozen=True)
class Retention:
    """The limits for keeping a user's ended jobs in ZooKeeper; jobs beyond them are removed."""

    jobs: int  # ended ones to keep, the newest first
    time_s: float  # after a job's end

    def is_due(self, known: int, hourly: bool) -> bool:
        return hourly or known > self.jobs


def outdated(jobs: Iterable[Job], retention: Retention, now_s: float) -> tuple[str, ...]:
    """Return the names of the ended jobs to remove, the oldest first; `now_s` is since 1970."""
    ended = sorted((job for job in jobs if job.state.over), key=_ended_at)
    surplus = len(ended) - retention.jobs
    return tuple(
        job.name
        for number, job in enumerate(ended)
        if number < surplus or now_s - _ended_at(job) > retention.time_s
    )


def _ended_at(job: Job) -> float:
    return job.ended or job.created  # nobody may have been left to write it down
