"""The routes of the API: about jobs, about the cluster itself, and about the past."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Path, Query, Request, Response

from edl.api.records import (
    MANIFEST,
    AuditList,
    DrainStatus,
    EventEntry,
    EventList,
    JobHistoryList,
    JobList,
    LogList,
    PlanList,
    PolicySetting,
    PriorityUpdate,
    SecretEntry,
    SecretList,
    SlotIntervalList,
    Submitted,
    WaitResult,
    answer_schemas,
    takes,
    takes_record,
)
from edl.api.requests import JSON, YAML, HttpError, answer, sent_manifest, sent_record, who
from edl.client.waiting import flat_of_cluster
from edl.cluster.client.client import STATES, Cluster
from edl.cluster.client.history_file import MAX_ROWS, HistoryFile
from edl.cluster.lifecycle import ClusterEvent
from edl.cluster.policies.registry import POLICIES
from edl.cluster.records import Wanted
from edl.cluster.status import ClusterJobDetails, ClusterJobStatus, ClusterStatus, SchedulerHints
from edl.cluster_policies import is_own
from edl.errors import CoordinationError, DataError, TimedOut, UnknownJob, UsageError

# ------------------------------------------------------------
# Ask a cluster from a few threads, each with a ZooKeeper session of its own.
#
# A client of a cluster must not be shared between threads, and a request to ZooKeeper blocks. So
# the event loop of the HTTP server hands each question to one of `THREADS` threads.


THREADS = 16  # ZooKeeper writes the submissions of so many to its disk together
QUESTIONS = 1000  # of one session, each perhaps about another job
FREE_S = 5.0  # how long a request waits for a thread
T = TypeVar("T")


class ClusterPool:
    def __init__(
        self, connect: Callable[[], Cluster], threads: int = THREADS, free_s: float = FREE_S
    ) -> None:
        self._connect = connect
        self._free_s = free_s
        self._free = asyncio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(threads, "edl-api")
        self._own = threading.local()
        self._clients: list[Cluster] = []

    async def ask(self, by: str, question: Callable[[Cluster], T]) -> T:
        """Call `question` with a connected client in one of the threads; return its result."""
        try:
            async with asyncio.timeout(self._free_s):
                await self._free.acquire()
        except TimeoutError:
            raise HttpError(
                503,
                "Busy",
                f"the API has had no thread free for {self._free_s:g} s; try again later",
            ) from None
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, by, question)
        asked.add_done_callback(lambda _: self._free.release())
        # It goes on if the caller is cancelled: what it writes is written in any case.
        return await asyncio.shield(asked)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def _ask(self, by: str, question: Callable[[Cluster], T]) -> T:
        client: Cluster | None = getattr(self._own, "client", None)
        if client is None:
            client = self._connect()
            client.__enter__()
            self._own.client, self._own.asked = client, 0
            self._clients.append(client)
        client.by = by
        try:
            found = question(client)
        except CoordinationError:
            # The session may have the identity of a job: ZooKeeper may not have heard the change.
            self._drop(client)
            raise
        self._own.asked += 1
        if self._own.asked >= QUESTIONS:
            self._drop(client)
        return found

    def _drop(self, client: Cluster) -> None:
        self._own.client = None
        self._clients.remove(client)
        client.close()


# ------------------------------------------------------------
# Wait for the end of a job by polling it, within a time limit.


POLL_S = 0.5  # between two polls of a job that is waited for


async def wait_for_end(
    poll: Callable[[], Awaitable[ClusterJobStatus]],
    timeout_s: float,
    is_cut_short: Callable[[], Awaitable[bool]],
    away: tuple[type[Exception], ...],
    poll_s: float = POLL_S,
) -> ClusterJobStatus:
    """Return the status of a job that is over; at the end of the time, its status then."""
    deadline = time.monotonic() + timeout_s
    submitted_s: float | None = None
    while True:
        now: ClusterJobStatus | None = None
        problem: Exception | None = None
        try:
            now = await poll()
        except away as error:
            problem = error
        else:
            submitted_s = now.submitted_s if submitted_s is None else submitted_s
            if now.submitted_s != submitted_s:
                raise UnknownJob(now.name, (now.name,))
            if now.is_over:
                return now
        left_s = deadline - time.monotonic()
        if left_s <= 0 or await is_cut_short():
            if now is not None:
                return now
            assert problem is not None
            raise problem
        await asyncio.sleep(min(poll_s, left_s))


MAX_WAIT_S = 60.0  # of one request; a proxy between may have a time-out, too
MAX_EVENTS = 1000  # in one answer
NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
of_jobs = APIRouter(prefix="/v1", tags=["jobs"])


Job = Annotated[str, Path(description="Name of a job.", pattern=NAME)]
MAX_LISTED = 10_000  # jobs, as many as a cluster may have
Limit = Annotated[int, Query(description="No more than so many.", ge=1, le=MAX_LISTED)]
EventLimit = Annotated[int, Query(description="No more than so many.", ge=1, le=MAX_EVENTS)]
After = Annotated[int, Query(description="Only events with a greater number.", ge=-1, le=2**53)]


class Api:
    """The cluster of the API, for one request of an authenticated caller."""

    def __init__(self, request: Request, by: Annotated[str, Depends(who)]) -> None:
        self.request = request
        self._by = by
        self._pool: ClusterPool = request.app.state.pool

    async def ask(self, question: Callable[[Cluster], T]) -> T:
        return await self._pool.ask(self._by, question)

    async def ask_history(self, question: Callable[[HistoryFile], T]) -> T:
        history: HistoryReader = self.request.app.state.history
        return await self.ask(lambda cluster: question(history.of(cluster)))

    async def answer(self, question: Callable[[Cluster], Any], status: int = 200) -> Response:
        return answer(self.request, await self.ask(question), status)


Asked = Annotated[Api, Depends(Api)]


@of_jobs.post(
    "/jobs",
    status_code=201,
    responses=answer_schemas(Submitted, 201, "The job is in ZooKeeper."),
    openapi_extra=takes((JSON, MANIFEST), (YAML, MANIFEST)),
)
async def submit(
    api: Asked,
    key: Annotated[
        str | None,
        Query(
            description="Names this submission: the same key again is the same job.", max_length=256
        ),
    ] = None,
) -> Response:
    """Submit a job. It is answered when it is written; if in doubt, send it again with its key."""
    manifest = sent_manifest(api.request)
    return await api.answer(lambda one: Submitted(one.submit(manifest, key)), 201)


@of_jobs.get("/jobs", responses=answer_schemas(JobList))
async def list_jobs(
    api: Asked,
    queue: Annotated[str | None, Query(description="Only jobs of this queue.")] = None,
    state: Annotated[
        str | None,
        Query(description="Only jobs in this state.", json_schema_extra={"enum": list(STATES)}),
    ] = None,
    after: Annotated[
        str | None, Query(description="Only jobs submitted after the job of this name.")
    ] = None,
    limit: Limit = MAX_LISTED,
) -> Response:
    """List the jobs of the cluster, in the order of submission."""
    found = await api.ask(lambda one: one.list(queue, state))
    if after is not None:
        every = await api.ask(lambda one: one.list(None, None))
        names = [job.name for job in every]
        if after not in names:
            raise UnknownJob(after, tuple(names), "edl submit")
        later = set(names[names.index(after) + 1 :])
        found = tuple(job for job in found if job.name in later)
    return answer(api.request, JobList(found[:limit]))


@of_jobs.get("/jobs/{job}", responses=answer_schemas(ClusterJobDetails))
async def show(api: Asked, job: Job) -> Response:
    """Show all that is known of a job."""
    return await api.answer(lambda one: one.show(job))


@of_jobs.get("/jobs/{job}/logs", responses=answer_schemas(LogList))
async def logs(
    api: Asked,
    job: Job,
    worker: Annotated[
        str | None, Query(description="Only of this worker, such as w0.", pattern="^w[0-9]{1,9}$")
    ] = None,
    last_bytes: Annotated[int, Query(description="Of each log.", ge=1, le=1 << 20)] = 16384,
) -> Response:
    """Show the ends of the logs of a job's workers, from all hosts, 4 MiB at most."""
    return await api.answer(lambda one: LogList(one.logs(job, worker, last_bytes)))


@of_jobs.get("/jobs/{job}/hints", responses=answer_schemas(SchedulerHints))
async def hints(api: Asked, job: Job) -> Response:
    """Show how fast a job trains, for other schedulers; `sched_hints` has the words of AdaptDL."""
    return await api.answer(lambda one: one.hints(job))


@of_jobs.delete("/jobs/{job}", responses=answer_schemas(Wanted))
async def delete(
    api: Asked,
    job: Job,
    submitted_s: Annotated[
        float | None,
        Query(
            description="Only the job that was submitted then, as its status says, and only if it "
            "was not deleted before: so the request may be sent again.",
            ge=0,
        ),
    ] = None,
) -> Response:
    """End a job for good, with a checkpoint; remove the records of one that has ended."""
    return await api.answer(lambda one: one.delete(job, submitted_s))


@of_jobs.post("/jobs/{job}/halt", responses=answer_schemas(Wanted))
async def halt(api: Asked, job: Job) -> Response:
    """Let a job stop with a checkpoint and give its slots to others, until it is resumed."""
    return await api.answer(lambda one: one.halt(job))


@of_jobs.post("/jobs/{job}/resume", responses=answer_schemas(Wanted))
async def resume(api: Asked, job: Job) -> Response:
    """Let a halted job go on when it gets slots."""
    return await api.answer(lambda one: one.resume(job))


@of_jobs.put(
    "/jobs/{job}/priority",
    responses=answer_schemas(Wanted),
    openapi_extra=takes_record(PriorityUpdate),
)
async def set_priority(api: Asked, job: Job) -> Response:
    """Change the priority of a job; jobs of a higher one get slots first."""
    new = sent_record(api.request, PriorityUpdate).priority
    return await api.answer(lambda one: one.priority(job, new))


@of_jobs.get("/jobs/{job}/wait", responses=answer_schemas(WaitResult))
async def wait(
    api: Asked,
    job: Job,
    timeout_s: Annotated[
        float, Query(description="How long to wait, in seconds.", ge=0.0, le=MAX_WAIT_S)
    ] = 30.0,
) -> Response:
    """Wait until a job has ended, or a user has halted it, but no longer than the time-out."""

    async def poll() -> ClusterJobStatus:
        return await api.ask(lambda one: _status(one, job))

    async def is_cut_short() -> bool:
        return api.request.app.state.ends or await api.request.is_disconnected()

    away = CoordinationError, HttpError  # ZooKeeper hesitates, and so each thread may be busy
    now = await wait_for_end(poll, timeout_s, is_cut_short, away)
    return answer(api.request, WaitResult(now.is_over, now))


@of_jobs.get("/jobs/{job}/events", responses=answer_schemas(EventList))
async def events_of_job(
    api: Asked, job: Job, after: After = -1, limit: EventLimit = MAX_EVENTS
) -> Response:
    """Read the oldest events about a job after a number, at most 1,000."""
    return await api.answer(lambda one: _events(one, job, after, limit))


@of_jobs.get("/events", responses=answer_schemas(EventList))
async def events(api: Asked, after: After = -1, limit: EventLimit = MAX_EVENTS) -> Response:
    """Read the oldest events of the cluster after a number, at most 1,000."""
    return await api.answer(lambda one: _events(one, None, after, limit))


def _status(cluster: Cluster, job: str) -> ClusterJobStatus:
    seen: list[ClusterJobStatus] = []
    try:
        return cluster.wait(job, 0.0, seen.append)
    except TimedOut:
        return seen[-1]


def _events(cluster: Cluster, job: str | None, after: int, limit: int) -> EventList:
    found: list[tuple[int, ClusterEvent]] = list(cluster.events(job, after))[:limit]
    return EventList(tuple(EventEntry(**flat_of_cluster(*one)) for one in found))


of_cluster = APIRouter(prefix="/v1", tags=["cluster"])
Host = Annotated[str, Path(description="Name of a host.", pattern=NAME)]


@of_cluster.get("/cluster", responses=answer_schemas(ClusterStatus))
async def status(api: Asked) -> Response:
    """Show which controller leads, the policy, the hosts and the slots in use."""
    return await api.answer(lambda one: one.status())


@of_cluster.get("/plan", responses=answer_schemas(PlanList))
async def plan(
    api: Asked,
    policy: Annotated[
        str | None, Query(description="Another policy than that of the cluster.")
    ] = None,
) -> Response:
    """Show which slots each job would get if the policy were asked now; nothing is changed."""
    if policy is not None:
        check_registered(policy)
    return await api.answer(lambda one: PlanList(one.policy.plan(policy)))


@of_cluster.get("/policy", responses=answer_schemas(PolicySetting))
async def show_policy(api: Asked) -> Response:
    """Show by which policy the cluster gives slots."""
    now = await api.ask(lambda one: one.policy.get())
    return answer(api.request, PolicySetting(now.policy, now.parameters))


@of_cluster.put(
    "/policy", responses=answer_schemas(PolicySetting), openapi_extra=takes_record(PolicySetting)
)
async def set_policy(api: Asked) -> Response:
    """Let another policy give slots from now on; the jobs go on running."""
    new = sent_record(api.request, PolicySetting)
    check_registered(new.policy)
    now = await api.ask(lambda one: one.policy.set(new.policy, new.parameters))
    return answer(api.request, PolicySetting(now.policy, now.parameters))


@of_cluster.post("/hosts/{host}/drain", responses=answer_schemas(DrainStatus))
async def drain(api: Asked, host: Host) -> Response:
    """Let a host have no jobs from now on; they shrink, or move to other hosts."""
    await api.ask(lambda one: one.hosts.drain(host))
    return answer(api.request, DrainStatus(host, True))


@of_cluster.post("/hosts/{host}/undrain", responses=answer_schemas(DrainStatus))
async def undrain(api: Asked, host: Host) -> Response:
    """Let a host that was drained have jobs again."""
    await api.ask(lambda one: one.hosts.undrain(host))
    return answer(api.request, DrainStatus(host, False))


@of_cluster.get("/secrets", responses=answer_schemas(SecretList))
async def secrets(
    api: Asked,
    after: Annotated[str, Query(description="Only those whose names come after this one.")] = "",
    limit: Limit = MAX_LISTED,
) -> Response:
    """List the names of the secrets that the cluster keeps for jobs."""
    found = await api.ask(lambda one: one.secrets.list())
    entries = [SecretEntry(one.name, one.set_s, one.by) for one in found if one.name > after]
    return answer(api.request, SecretList(tuple(entries[:limit])))


def check_registered(name: str) -> None:
    """Raise an error if `name` is the name of a user's own policy, which would be imported here."""
    if is_own(name):
        known = ", ".join(POLICIES)
        raise UsageError(
            f"over HTTP a policy must be one of {known}; use `edl cluster policy {name}` for your "
            "own"
        )


FRESH_S = 1.0  # how old an answer may be
FILLING_S = 2.0  # how long a request waits for another one to add what is new
of_history = APIRouter(prefix="/v1/history", tags=["history"])
JobName = Annotated[str | None, Query(description="Only what is about the job of this name.")]
RowLimit = Annotated[int, Query(description="No more than so many.", ge=1, le=MAX_ROWS)]
Seconds = Annotated[float, Query(ge=0.0, le=1e12)]


class HistoryReader:
    """The history of a cluster, with the events until `FRESH_S` seconds ago; threads share it."""

    def __init__(self, file: HistoryFile) -> None:
        self._file = file
        self._filling = threading.Lock()
        self._filled_s = float("-inf")

    def of(self, cluster: Cluster) -> HistoryFile:
        """Return the file, after new events of `cluster` were added to it."""
        if self._filling.acquire(timeout=FILLING_S):
            try:
                if time.monotonic() - self._filled_s >= FRESH_S:
                    self._file.fill(lambda after: cluster.events(after=after), cluster.uid)
                    self._filled_s = time.monotonic()
            finally:
                self._filling.release()
        elif not self._file.is_chosen:
            raise DataError("the history of the cluster is read for the first time; ask again")
        return self._file


@of_history.get("/jobs", responses=answer_schemas(JobHistoryList))
async def history_of_jobs(
    api: Asked,
    job: JobName = None,
    since_s: Seconds = 0.0,
    limit: RowLimit = 100,
) -> Response:
    """List jobs, also removed ones, with their slot-seconds; those submitted last come first."""
    found = await api.ask_history(lambda one: one.jobs(time.time(), job, since_s, limit))
    return answer(api.request, JobHistoryList(found))


@of_history.get("/slots", responses=answer_schemas(SlotIntervalList))
async def history_of_slots(
    api: Asked,
    begin_s: Seconds = 0.0,
    end_s: Seconds = 1e12,
    job: JobName = None,
    limit: RowLimit = MAX_ROWS,
) -> Response:
    """List who had which slots between two times, as a Gantt chart shows it, the earliest first."""
    found = await api.ask_history(lambda one: one.slots(begin_s, end_s, job, limit))
    return answer(api.request, SlotIntervalList(found))


@of_history.get("/audit", responses=answer_schemas(AuditList))
async def audit(
    api: Asked,
    after: After = -1,
    job: JobName = None,
    limit: RowLimit = MAX_ROWS,
) -> Response:
    """List what users have asked for, the oldest first."""
    found = await api.ask_history(lambda one: one.audit(after, job, limit))
    return answer(api.request, AuditList(found))
