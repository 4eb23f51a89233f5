"""Keep the pages of those jobs of a cluster that somebody looks at: :class:`ClusterJobPages`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass

from edl.coordination.job_store import JobStore
from edl.dashboard.job_watcher import JobWatcher
from edl.dashboard.published_page import PublishedPage
from edl.errors import UsageError

MOST_PAGES = 16  # each has a thread and a session
IDLE_S = 60.0  # after which a page that nobody looks at is closed
IN_USE_S = 5.0  # after a request, in which the page is not closed for another one

OpenJob = Callable[[str], AbstractContextManager[JobStore]]
"""Opens the records of a job in a session of its own."""


@dataclass
class WatchedPage:
    """The page of one job, which is kept up to date."""

    watcher: JobWatcher  # keeps it up to date
    resources: ExitStack  # ends the watcher and its session
    used_s: float  # when somebody asked for it last, by the clock of `ClusterJobPages`


class ClusterJobPages:
    """The pages of the jobs of a cluster, opened when a browser asks, closed when none does."""

    # Its methods run on the event loop of the server; what waits for ZooKeeper runs in threads.

    def __init__(self, open_job: OpenJob, clock: Callable[[], float] = time.monotonic) -> None:
        self._open_job = open_job
        self._clock = clock
        self._pages: dict[str, WatchedPage] = {}
        self._lock = asyncio.Lock()

    async def watcher(self, job: str) -> JobWatcher:
        """Return the watcher of the job named `job`; it is opened if need be."""
        async with self._lock:
            now_s = self._clock()
            found = self._pages.get(job)
            if found is None:
                await self._make_room(now_s)
                found = await asyncio.to_thread(self._opened, job)
                self._pages[job] = found
            found.used_s = now_s
            return found.watcher

    def page(self, job: str, watcher: JobWatcher) -> PublishedPage:
        """Return the newest page of the job, and note that somebody looks at it."""
        if job in self._pages:
            self._pages[job].used_s = self._clock()
        return watcher.page

    async def close_idle(self) -> None:
        """Close the pages that nobody has looked at for `IDLE_S` (60) seconds."""
        async with self._lock:
            now_s = self._clock()
            for job in [j for j, one in self._pages.items() if now_s - one.used_s >= IDLE_S]:
                await asyncio.to_thread(self._pages.pop(job).resources.close)

    def close(self) -> None:
        for job in tuple(self._pages):
            self._pages.pop(job).resources.close()

    async def _make_room(self, now_s: float) -> None:
        """Close the page that was used least recently if there are as many as there may be."""
        if len(self._pages) < MOST_PAGES:
            return
        oldest = min(self._pages, key=lambda job: self._pages[job].used_s)
        if now_s - self._pages[oldest].used_s < IN_USE_S:
            raise UsageError(
                f"this server shows {MOST_PAGES} jobs at a time, and somebody looks at each of "
                "them; close the page of another job, or use `edl dashboard JOB`"
            )
        await asyncio.to_thread(self._pages.pop(oldest).resources.close)

    def _opened(self, job: str) -> WatchedPage:
        """Return the page of `job`, which was read once; an error closes what was opened."""
        with ExitStack() as stack:
            store = stack.enter_context(self._open_job(job))
            watcher = stack.enter_context(JobWatcher(store))
            return WatchedPage(watcher, stack.pop_all(), self._clock())
