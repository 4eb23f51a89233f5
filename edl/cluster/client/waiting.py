"""Read what a cluster says of its jobs and hosts, and wait with a deadline until it is so."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import TypeVar

from edl.client.waiting import USUAL, ClientLimits
from edl.cluster.candidates import throughput_curve
from edl.cluster.client.plans import measured_view
from edl.cluster.lifecycle import ClusterEvent, ClusterEventKind, LifeResult, LifeState
from edl.cluster.status import ClusterJobDetails, ClusterJobStatus, described
from edl.cluster.store import ClusterStore
from edl.errors import CoordinationError, TimedOut, UnknownJob
from edl.host.process import EXIT_CODES, AgentEnd
from edl.zookeeper.events import OnUnreadable, leave_out

AWAY_S = 600.0  # without an answer of ZooKeeper, after which a wait without a time limit ends
TIMED_OUT = 124  # the exit code of `edl wait` whose time is over; that of timeout(1)
HALTED = EXIT_CODES[AgentEnd.STOPPED]  # of `edl wait` for a job that a user has halted
DELETED = EXIT_CODES[AgentEnd.NO_SUCH_JOB]  # of `edl wait` for a job that a user has deleted


class JobCondition(Enum):
    """A condition that a job is waited for to meet; the value says that it does not yet."""

    TRAINS = "does not train"
    ENDS = "has not ended"

    @property
    def state(self) -> LifeState:
        return LifeState.RUNNING if self is JobCondition.TRAINS else LifeState.ENDED


OnStatus = Callable[[ClusterJobStatus], None]  # called when the state or its reason has changed
T = TypeVar("T")


def ignore_status(_status: ClusterJobStatus) -> None:
    """Do nothing with a job's status: the `on_status` of callers that do not want it."""


def details(store: ClusterStore, name: str, now_s: float) -> ClusterJobDetails:
    job, reasons, hosts = store.jobs.get(name), store.leader.reasons(), store.hosts.list()
    entries = {host.name: host.assigned.jobs[name] for host in hosts if name in host.assigned.jobs}
    history: list[ClusterEvent] = []
    for _, event in events(store, name):
        if event.kind is ClusterEventKind.SUBMITTED:  # a former job had the name
            history = []
        history.append(event)
    return ClusterJobDetails(
        job=described(job, reasons),
        manifest=job.manifest,
        run=job.life.run,
        devices={host: one.devices for host, one in entries.items() if one.devices},
        leaving={host: one.leaving for host, one in entries.items() if one.leaving},
        not_before_s=job.life.not_before_s,
        slot_s=job.life.attained_s(now_s),
        throughput=throughput_curve(measured_view(store, job), job.life.slots, now_s),
        history=tuple(history),
    )


def events(
    store: ClusterStore,
    job: str | None = None,
    after: int = -1,
    unreadable: OnUnreadable = leave_out,
) -> list[tuple[int, ClusterEvent]]:
    found = store.events.read_known(after, unreadable)
    return [one for one in found if job is None or one[1].job == job]


def wait_for_job(
    store: ClusterStore,
    name: str,
    until: JobCondition,
    timeout_s: float | None,
    on_status: OnStatus,
    limits: ClientLimits = USUAL,
) -> ClusterJobStatus:
    order: int | None = None
    said: tuple[object, str] | None = None

    def read() -> ClusterJobStatus:
        nonlocal order, said
        job = store.jobs.get(name)
        if order not in (None, job.order):
            raise UnknownJob(name, (name,))
        order = job.order
        now = described(job, store.leader.reasons())
        if said != (now.state, now.reason):
            said = (now.state, now.reason)
            on_status(now)
        return now

    for found in poll_cluster(read, timeout_s, limits):
        if found.is_over or found.state is until.state:
            return found
    state = "" if said is None else f": it is {said[0]} ({said[1]})"
    raise TimedOut(name, f"job {name} {until.value} after {timeout_s:g} s{state}; it goes on")


def wait_exit_code(job: ClusterJobStatus) -> int:
    codes: Mapping[LifeResult | None, int] = {
        LifeResult.FINISHED: 0,
        LifeResult.FAILED: job.exit_code or 1,
        LifeResult.DELETED: DELETED,
        None: HALTED,
    }
    return codes[job.result]


def poll_cluster(
    read: Callable[[], T], timeout_s: float | None, limits: ClientLimits
) -> Iterator[T]:
    begun = answered = time.monotonic()
    while True:
        away: CoordinationError | None = None
        try:
            found = read()
        except CoordinationError as error:
            away = error
        else:
            answered = time.monotonic()
            yield found
        now = time.monotonic()
        is_late = timeout_s is not None and now - begun >= timeout_s
        if away is not None and (is_late or now - answered >= AWAY_S):
            raise away
        if is_late:
            return
        time.sleep(limits.poll_s)
