"""Read a cluster for its page, in one thread, at a rate that does not depend on the browsers.

Each turn reads what `edl cluster status`, `edl list` and `edl events --cluster` read, only the
nodes that changed. When ZooKeeper does not answer, or a record cannot be read, the page keeps what
was known and says since when. When no controller leads, it says so: then nothing decides, and the
reasons are those of the last plan.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from edl.cluster.client.history_file import HistoryFile
from edl.cluster.lifecycle import ClusterEvent
from edl.cluster.status import ClusterJobStatus
from edl.cluster.store import ClusterStore
from edl.core.dashboard.cluster_event_page import ShownClusterEvent, shown_cluster_event
from edl.core.dashboard.cluster_page import (
    ClusterJobSummary,
    ClusterObservation,
    away_cluster_in_words,
    cluster_sections,
)
from edl.core.dashboard.event_page import EventBuffer, EventChoice
from edl.core.dashboard.job_choice import JobChoice, JobPage, chosen_jobs
from edl.core.dashboard.slot_chart import SlotChart, slot_chart
from edl.dashboard.cluster_reading import ClusterReader
from edl.dashboard.page_watcher import PageWatcher
from edl.errors import DataError, EdlError

MOST_INTERVALS = 20_000  # of slots that are read for one chart
CHART_S = 2.0  # for which a chart is answered again
LEAST_S = 60.0  # of a chart
MOST_CHARTS = 16  # that are kept for so long


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
        self._events: EventBuffer[ShownClusterEvent] = EventBuffer()
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
        """Whether a tenant looks, for whom there is no chart, no event and no forecast."""
        return self._reader.is_tenant

    def jobs(self, choice: JobChoice) -> JobPage:
        """Return the jobs that `choice` shows, as they were read last."""
        return chosen_jobs(self._jobs, choice)

    def facts(self, job: str) -> ClusterJobSummary:
        """Return what is shown of `job` beside its status."""
        return self._reader.facts(job, self._clock())

    def events(self, choice: EventChoice) -> Sequence[ShownClusterEvent]:
        """Return the events that `choice` shows, the newest first."""
        return self._events.chosen(choice)

    def chart(self, period_s: float, job: str = "", host: str = "") -> SlotChart:
        """Return who had which slots in the last `period_s` seconds."""
        now_s, about = self._clock(), (period_s, job, host)
        with self._chart_lock:
            known = self._charts.get(about)
            if known is not None and now_s - known[0] < CHART_S:
                return known[1]
            found = self._new_chart(now_s, period_s, job, host)
            if len(self._charts) >= MOST_CHARTS:
                self._charts.clear()
            self._charts[about] = now_s, found
            return found

    def turn(self) -> None:
        """Read the cluster once, and publish its page; what cannot be read is said there."""
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
        self._take(reading)
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

    def _take(self, reading: ClusterObservation) -> None:
        """Keep what was read, for the questions of browsers."""
        jobs = tuple(reading.jobs)
        if jobs != self._jobs:
            self._jobs, self._jobs_version = jobs, self._jobs_version + 1
        hosts = () if reading.status is None else reading.status.hosts
        self._slots = {host.host: host.slots for host in hosts}

    def _read_events(self) -> None:
        """Keep the new events of the cluster; those that cannot be read are counted."""
        skipped: list[int] = []
        found = self._store.events.read_known(self._last, lambda number, _: skipped.append(number))
        self._last = max([self._last, *skipped, *(number for number, _ in found)])
        self._unreadable += len(skipped)
        self._events.add(shown_cluster_event(number, event) for number, event in found)

    def _fill(self) -> None:
        """Add what has happened to the history; a problem is only shown, and tried again."""
        if self._reader.is_tenant:
            return
        try:
            uid = self._store.nodes.uid()
            self._history_version += bool(self._history.fill(self._known_events, uid))
            self._history_problem = ""
        except EdlError as error:
            self._history_problem = str(error)

    def _known_events(self, after: int) -> Sequence[tuple[int, ClusterEvent]]:
        return self._store.events.read_known(after)

    def _new_chart(self, now_s: float, period_s: float, job: str, host: str) -> SlotChart:
        """Return the chart until `now_s`, from the history."""
        if self._reader.is_tenant:
            raise DataError("who had which slots is not shown to a tenant")
        begin_s = now_s - period_s
        found = self._history.slots(begin_s, now_s, most=MOST_INTERVALS, is_newest=True)
        cut_s = found[0].begin_s if len(found) >= MOST_INTERVALS else 0.0
        if not cut_s and found:  # it begins with what is known
            begin_s = min(max(begin_s, found[0].begin_s), now_s - LEAST_S)
        shown = [one for one in found if job in one.job and host in ("", one.host)]
        slots = {name: count for name, count in self._slots.items() if host in ("", name)}
        return slot_chart(shown, slots, begin_s, now_s, cut_s)
