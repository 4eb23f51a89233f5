"""Read a cluster for its page, in one thread, at a rate that does not depend on the browsers.

Each turn reads only the nodes that changed. When ZooKeeper does not answer, or a record cannot be
read, the page keeps what was known and says since when. When no controller leads, it says so: then
nothing decides, and the reasons are those of the last plan.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

from edl.cluster.client.history_file import HistoryFile
from edl.cluster.client.plans import status_of_snapshot
from edl.cluster.records import LeaseTable
from edl.cluster.status import ClusterJobStatus, ClusterStatus, described
from edl.cluster.store import ClusterSnapshot, ClusterStore
from edl.cluster.submission import TenantStore
from edl.cluster.view import JobView
from edl.dashboard.job_watcher import JobWatcher, PageWatcher
from edl.dashboard.view.charts import SlotChart, slot_chart
from edl.dashboard.view.cluster_page import (
    ClusterJobSummary,
    ClusterObservation,
    away_cluster_in_words,
    cluster_sections,
)
from edl.dashboard.view.events import (
    ClusterEventView,
    EventBuffer,
    EventChoice,
    cluster_event_view,
)
from edl.dashboard.view.page import JobChoice, JobPage, chosen_jobs
from edl.errors import DataError, EdlError, UnknownJob, UsageError
from edl.zookeeper.store import JobStore

# --- Read a cluster for its page, as far as the one who looks may read it.


class ClusterReader:
    """A reader of a cluster's records, which reads again only what changed; one thread calls it."""

    def __init__(self, store: ClusterStore) -> None:
        self.store = store
        # the status, with what it was computed from; computed again when any of that has changed
        self._known: tuple[tuple[Any, ...], ClusterStatus] | None = None
        self._leaderless_s = 0.0
        self._jobs: Mapping[str, JobView] = {}

    @property
    def is_tenant(self) -> bool:
        return isinstance(self.store, TenantStore)

    def read(self, now_s: float) -> ClusterObservation:
        store, name = self.store, self.store.paths.name
        said, hosts = store.leader.reasons(), store.nodes.session.hosts
        if isinstance(store, TenantStore):
            jobs = store.jobs.list()
            self._jobs = {job.name: job for job in jobs}
            shown = tuple(described(job, said) for job in jobs)
            return ClusterObservation(
                name, shown, hosts, now_s, said.at_s, viewer=store.nodes.tenant
            )
        snapshot = store.snapshot()
        self._jobs = {job.name: job for job in snapshot.jobs}
        (leases, _), controllers = store.leader.leases(), len(store.leader.controllers())
        self._leaderless_s = 0.0 if controllers else self._leaderless_s or now_s
        queues = snapshot.queues.items()
        return ClusterObservation(
            cluster=name,
            jobs=tuple(described(job, said) for job in snapshot.jobs),
            zookeeper=hosts,
            at_s=now_s,
            reasons_s=said.at_s,
            status=self._status(snapshot, leases, controllers),
            leaderless_s=self._leaderless_s,
            leases=leases,
            tenants=store.tenants.names(),
            queue_tenants={queue: one.tenant for queue, one in queues if one.tenant},
        )

    def facts(self, job: str, now_s: float) -> ClusterJobSummary:
        found = self._jobs.get(job)
        if found is None:
            raise UnknownJob(job, tuple(sorted(self._jobs)), "edl submit")
        hosts = () if self._known is None else self._known[1].hosts
        manifest = found.manifest
        return ClusterJobSummary(
            job=job,
            command=manifest.command,
            cwd=manifest.cwd,
            labels=manifest.labels,
            after=manifest.after,
            checkpoint=manifest.checkpoint,
            hosts={host.host: host.jobs[job] for host in hosts if job in host.jobs},
            slot_s=found.life.attained_s(now_s),
            not_before_s=found.life.not_before_s,
            run=found.life.run,
        )

    def _status(
        self, snapshot: ClusterSnapshot, leases: LeaseTable, controllers: int
    ) -> ClusterStatus:
        about = (snapshot, leases, controllers)
        if self._known is None or self._known[0] != about:
            self._known = about, status_of_snapshot(self.store, *about)
        return self._known[1]


# --- Keep the pages of those jobs of a cluster that somebody looks at: `ClusterJobPages`.


MAX_PAGES = 16  # each has a thread and a session
IDLE_S = 60.0  # after which a page that nobody looks at is closed
IN_USE_S = 5.0  # after a request, in which the page is not closed for another one

# Opens the records of a job in a session of its own.
OpenJob = Callable[[str], AbstractContextManager[JobStore]]


class ClusterJobPages:
    """The pages of the jobs of a cluster, opened when a browser asks, closed when none does."""

    # Its methods run on the event loop of the server; what waits for ZooKeeper runs in threads.

    def __init__(self, open_job: OpenJob, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_job = open_job
        self._clock = clock
        # job -> the watcher of its page, and what ends that with its session
        self._pages: dict[str, tuple[JobWatcher, ExitStack]] = {}
        self._lock = asyncio.Lock()

    async def watcher(self, job: str) -> JobWatcher:
        async with self._lock:
            if job not in self._pages:
                await self._make_room()
                self._pages[job] = await asyncio.to_thread(self._opened, job)
            watcher, _ = self._pages[job]
            watcher.page_in_use()
            return watcher

    async def close_idle(self) -> None:
        async with self._lock:
            for job in [job for job in self._pages if self._unused_s(job) >= IDLE_S]:
                await asyncio.to_thread(self._close, job)

    def close(self) -> None:
        for job in tuple(self._pages):
            self._close(job)

    def _close(self, job: str) -> None:
        _, resources = self._pages.pop(job)
        resources.close()

    def _unused_s(self, job: str) -> float:
        return self._clock() - self._pages[job][0].used_s

    async def _make_room(self) -> None:
        """Close the page that was used least recently if there are as many as there may be."""
        if len(self._pages) < MAX_PAGES:
            return
        oldest = max(self._pages, key=self._unused_s)
        if self._unused_s(oldest) < IN_USE_S:
            raise UsageError(
                f"this server shows {MAX_PAGES} jobs at a time, and somebody looks at each of "
                "them; close the page of another job, or use `edl dashboard JOB`"
            )
        await asyncio.to_thread(self._close, oldest)

    def _opened(self, job: str) -> tuple[JobWatcher, ExitStack]:
        with ExitStack() as stack:
            store = stack.enter_context(self._open_job(job))
            watcher = stack.enter_context(JobWatcher(store, steady_clock=self._clock))
            return watcher, stack.pop_all()


MAX_INTERVALS = 20_000  # of slots that are read for one chart
CHART_S = 2.0  # for which a chart is answered again
MIN_S = 60.0  # of a chart
MAX_CHARTS = 16  # that are kept for so long


class ClusterWatcher(PageWatcher):
    """The page of one cluster, kept up to date by a thread; use it as a context manager."""

    # Any thread may read `page`, and call `jobs`, `facts`, `events` and `chart`.

    def __init__(
        self,
        store: ClusterStore,
        history: HistoryFile,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(f"cluster {store.paths.name}")
        self._store = store
        self._reader = ClusterReader(store)
        self._history = history
        self._clock = clock
        self._events: EventBuffer[ClusterEventView] = EventBuffer()
        self._last = -1
        self._unreadable = 0
        self._jobs: tuple[ClusterJobStatus, ...] = ()
        self._jobs_version = 0
        self._slots: Mapping[str, int] = {}
        self._history_version = 0
        self._history_problem = ""
        self._charts: dict[tuple[float, str, str], tuple[float, SlotChart]] = {}
        self._chart_lock = threading.Lock()
        self._away_since_s: float | None = None

    @property
    def is_tenant(self) -> bool:
        return self._reader.is_tenant

    def jobs(self, choice: JobChoice) -> JobPage:
        return chosen_jobs(self._jobs, choice)

    def facts(self, job: str) -> ClusterJobSummary:
        return self._reader.facts(job, self._clock())

    def events(self, choice: EventChoice) -> Sequence[ClusterEventView]:
        return self._events.chosen(choice)

    def chart(self, period_s: float, job: str = "", host: str = "") -> SlotChart:
        now_s, about = self._clock(), (period_s, job, host)
        with self._chart_lock:
            known = self._charts.get(about)
            if known is not None and now_s - known[0] < CHART_S:
                return known[1]
            found = self._new_chart(now_s, period_s, job, host)
            if len(self._charts) >= MAX_CHARTS:
                self._charts.clear()
            self._charts[about] = now_s, found
            return found

    def turn(self) -> None:
        now_s = self._clock()
        try:
            reading = self._reader.read(now_s)
            if not self._reader.is_tenant:
                self._read_events()
        except EdlError as error:
            self._away_since_s = self._away_since_s or now_s
            text = away_cluster_in_words(str(error), self._away_since_s, now_s)
            self.notify("bad", text)
            return
        self._away_since_s = None
        self._fill()
        jobs = tuple(reading.jobs)
        if jobs != self._jobs:
            self._jobs, self._jobs_version = jobs, self._jobs_version + 1
        hosts = () if reading.status is None else reading.status.hosts
        self._slots = {host.host: host.slots for host in hosts}
        self.publish(
            {
                **cluster_sections(reading),
                "jobs": {"version": self._jobs_version},
                "history": {"version": self._history_version, "problem": self._history_problem},
                "events": {
                    "last": self._last,
                    "counts": self._events.counts(),
                    "unreadable": self._unreadable,
                },
                "notice": None,
                "read_s": round(now_s),
            }
        )

    def _read_events(self) -> None:
        skipped: list[int] = []
        found = self._store.events.read_known(self._last, lambda number, _: skipped.append(number))
        self._last = max([self._last, *skipped, *(number for number, _ in found)])
        self._unreadable += len(skipped)
        self._events.add(cluster_event_view(number, event) for number, event in found)

    def _fill(self) -> None:
        """Add what has happened to the history; a problem is only shown, and tried again."""
        if self._reader.is_tenant:
            return
        try:
            uid = self._store.nodes.uid()
            self._history_version += bool(self._history.fill(self._store.events.read_known, uid))
            self._history_problem = ""
        except EdlError as error:
            self._history_problem = str(error)

    def _new_chart(self, now_s: float, period_s: float, job: str, host: str) -> SlotChart:
        if self._reader.is_tenant:
            raise DataError("who had which slots is not shown to a tenant")
        begin_s = now_s - period_s
        found = self._history.slots(begin_s, now_s, most=MAX_INTERVALS, is_newest=True)
        cut_s = found[0].begin_s if len(found) >= MAX_INTERVALS else 0.0
        if not cut_s and found:  # it begins with what is known
            begin_s = min(max(begin_s, found[0].begin_s), now_s - MIN_S)
        shown = [one for one in found if job in one.job and host in ("", one.host)]
        slots = {name: count for name, count in self._slots.items() if host in ("", name)}
        return slot_chart(shown, slots, begin_s, now_s, cut_s)
