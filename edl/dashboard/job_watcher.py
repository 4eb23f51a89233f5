"""Read a job for its page, in one thread, at a rate that does not depend on the browsers.

Each turn reads only the nodes that changed. When ZooKeeper does not answer, or a record cannot be
read, the page keeps what was known and says since when; an event that cannot be read is left out
and counted. The page stays after the job has ended, also after it was deleted.
"""

from __future__ import annotations

import logging
import secrets
import socket
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from edl.dashboard.view.events import EventBuffer, EventChoice, EventView, event_view
from edl.dashboard.view.incidents import IncidentView, incident_views
from edl.dashboard.view.outage import ServerProbe, WorkerReports, outage_cause, outage_incident
from edl.dashboard.view.page import (
    JobObservation,
    JobTrace,
    LeaderReport,
    away_in_words,
    page_sections,
    report_age,
    timeline_section,
    unreadable_in_words,
)
from edl.dashboard.view.timeline import SwitchLoss
from edl.errors import CoordinationError, UnknownJob
from edl.http.client import ask_all
from edl.job.profile import Curve
from edl.job.snapshot import Snapshot
from edl.policy.scaling_profile import ScalingProfile
from edl.status import job_status
from edl.text import json_text
from edl.zookeeper.local_server import local_trouble
from edl.zookeeper.reads import ignore_changes
from edl.zookeeper.store import NUMBERS, JobStore

logger = logging.getLogger(__name__)


# --- Ask workers and the servers of ZooKeeper directly, while ZooKeeper does not answer.


MAX_ASKED = 8  # workers, the first ranks
ASK_S = 1.0  # for a worker to answer
MAX_SERVERS = 7  # of ZooKeeper
CONNECT_S = 0.5  # for a server to take a connection


def ask_workers(snapshot: Snapshot, run: str) -> WorkerReports:
    generation = snapshot.generation
    members = generation.members[:MAX_ASKED] if generation is not None else ()
    answers = ask_all({one.id: (one.address, one.port) for one in members}, ASK_S)
    return WorkerReports.of(run, {worker: one.report for worker, one in answers.items()})


def probe_servers(hosts: str) -> Mapping[str, ServerProbe]:
    """Try to connect to each server of ZooKeeper, one after the other; nothing is sent."""
    servers = [one.strip() for one in hosts.split("/")[0].split(",")][:MAX_SERVERS]
    return {one: found for one in servers if (found := _probe(one)) is not None}


def _probe(server: str) -> ServerProbe | None:
    """Return what `server`, as "host:port", does with a connection; None: it has no address."""
    host, _, port = server.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), CONNECT_S):
            return ServerProbe.OPEN
    except ConnectionRefusedError:
        return ServerProbe.REFUSED
    except (socket.gaierror, ValueError, OverflowError):
        return None
    except OSError:
        return ServerProbe.SILENT


# --- Keep the newest page as JSON, and give each browser the sections that it does not have yet.


@dataclass(frozen=True)
class PageSection:
    content: bytes  # the section as JSON
    version: int  # the version of the page that changed it last


@dataclass(frozen=True)
class PublishedPage:
    """The newest page: its sections, each with the version that changed it."""

    # random, of this server and this start of the job; a browser with another gets the whole page
    instance: str = field(default_factory=lambda: secrets.token_hex(8))
    version: int = 0  # it grows with each change
    sections: Mapping[str, PageSection] = field(default_factory=dict)

    def with_sections(self, sections: Mapping[str, Any]) -> PublishedPage:
        version, new = self.version + 1, dict(self.sections)
        for name, value in sections.items():
            content = json_text(value)
            if name not in new or new[name].content != content:
                new[name] = PageSection(content, version)
        changed = any(one.version == version for one in new.values())
        return replace(self, version=version, sections=new) if changed else self

    def patch(self, instance: str = "", since: int = 0) -> bytes:
        """Return, as JSON, the sections that changed after version `since` of `instance`."""
        known = since if instance == self.instance else 0
        parts = ",".join(
            f'"{name}":{one.content.decode()}'
            for name, one in self.sections.items()
            if one.version > known
        )
        head = f'"instance":"{self.instance}","version":{self.version}'
        return f'{{{head},"sections":{{{parts}}}}}'.encode()


# --- Keep a page up to date in one thread, whoever looks: `PageWatcher`.


TURN_S = 1.0  # between two looks at what is shown
END_S = 15.0  # for a turn to end when the server does


class PageWatcher(ABC):
    """A page that a thread brings up to date; use it as a context manager."""

    def __init__(self, what: str) -> None:
        self.page = PublishedPage()  # the newest page; any thread may read it
        self._what = what
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="edl-dashboard", daemon=True)

    def __enter__(self) -> Self:
        self.turn()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join(END_S)

    @property
    def pause_s(self) -> float:
        return TURN_S

    @abstractmethod
    def turn(self) -> None:
        """Read what the page shows once, and publish it; what cannot be read is said there."""

    def publish(self, sections: dict[str, Any]) -> None:
        self.page = self.page.with_sections(sections)

    def notify(self, tone: str, text: str) -> None:
        self.publish({"notice": {"tone": tone, "text": text, "stale": True}})

    def _run(self) -> None:
        while not self._ends.wait(self.pause_s):
            try:
                self.turn()
            except Exception as error:
                logger.exception("the page of %s is not up to date", self._what)
                text = f"the page cannot be brought up to date, a defect of edl: {error!r}"
                self.notify("bad", text)


OVER_S = 5.0  # between two looks at a job that has ended, or is not there
LEARNED_S = 5.0  # between two looks at what it has measured


def are_events_gone(last: int, first: int) -> bool:
    """Return whether a log has lost events between two that a reader has read of it."""
    # The log of a job that ZooKeeper had lost goes on at a multiple of `NUMBERS`.
    is_written_again = last >= 0 and first % NUMBERS == 0
    return first > last + 1 and not is_written_again


class JobWatcher(PageWatcher):
    """The page of one job, kept up to date by a thread; use it as a context manager."""

    # Any thread may read `page`, and call `events` and `switch`.

    def __init__(
        self,
        store: JobStore,
        clock: Callable[[], float] = time.time,
        steady_clock: Callable[[], float] = time.monotonic,
        ask: Callable[[Snapshot, str], WorkerReports] = ask_workers,
        probe: Callable[[str], Mapping[str, ServerProbe]] = probe_servers,
    ) -> None:
        super().__init__(f"job {store.name}")
        self._store = store
        self._clock, self._steady_clock = clock, steady_clock
        self._ask, self._probe = ask, probe
        self.used_s = steady_clock()  # when somebody looked at the page last
        self._forget()

    def _forget(self) -> None:
        """Forget what is known of the job, because another start of it has begun."""
        self._created, self._token = 0.0, ""
        self._reading: JobObservation | None = None  # the last one
        self._trace = JobTrace()
        self._events: EventBuffer[EventView] = EventBuffer()
        self._report = LeaderReport()
        self._last = -1
        self._unreadable = 0
        self._is_cut = False  # events are gone, and the trace does not say so yet
        self._learned: ScalingProfile = ScalingProfile()
        self._profile: Curve | None = None
        self._learned_due_s = 0.0
        self._away_since_s: float | None = None
        self._asked: WorkerReports | None = None  # what they last answered in this outage
        self._asked_at_s = 0.0
        self._over = False

    def page_in_use(self) -> PublishedPage:
        """Return the newest page, and note that somebody looks at it."""
        self.used_s = self._steady_clock()
        return self.page

    def events(self, choice: EventChoice) -> Sequence[EventView]:
        return self._events.chosen(choice)

    def switch(self, generation: int) -> SwitchLoss | None:
        return self._trace.timeline.switch_of(generation)

    @property
    def pause_s(self) -> float:
        return OVER_S if self._over else TURN_S

    def turn(self) -> None:
        now_s = self._clock()
        try:
            reading = self._read(now_s)
        except UnknownJob as error:
            self._over, self._away_since_s = True, None
            self._notify("warning", f"{error}. The page stays, as it was known last.")
            return
        except CoordinationError as error:
            since_s = self._away_since_s = self._away_since_s or now_s
            now_s = self._clock()  # the answer was waited for
            self.publish({"now_s": now_s})
            if self._store.session.connected:
                self._notify("bad", unreadable_in_words(str(error), since_s, now_s))
            else:
                self._show_outage(since_s, now_s)
            return
        self._away_since_s = self._asked = None
        self._reading = reading
        self._over = reading.snapshot.job.state.over
        self._trace = self._trace.with_reading(reading)
        sections = page_sections(reading, self._trace)
        events = {
            "last": self._last,
            "counts": self._events.counts(),
            "unreadable": self._unreadable,
        }
        read_s = round(now_s)
        self.publish(
            {**sections, "events": events, "notice": None, "read_s": read_s, "now_s": read_s}
        )

    def _show_outage(self, since_s: float, now_s: float) -> None:
        hosts, reading = self._store.session.hosts, self._reading
        trouble, text = local_trouble(hosts), away_in_words(hosts, since_s, now_s)
        if reading is None or reading.snapshot.job.state.over:
            self._notify("bad", f"{text} {trouble}".rstrip())
            return
        cause = outage_cause(trouble, self._probe(hosts))
        self._trace = self._trace.with_outage(cause.why, since_s, now_s)
        asked = self._ask(reading.snapshot, self._token)
        asked = asked.after(self._asked, now_s - self._asked_at_s)
        self._asked, self._asked_at_s = asked, now_s
        step = reading.snapshot.status.step
        lasts = outage_incident(cause, now_s - since_s, now_s, step, asked)
        self._notify("bad", f"{text} Only the first entry of what happened is new.", lasts)

    def _notify(self, tone: str, text: str, outage: IncidentView | None = None) -> None:
        if self._reading is not None:
            reading = self._reading
            status = job_status(reading.snapshot, reading.zookeeper)
            known = incident_views(self._trace.incidents, status, 0.0)
            timeline = self._trace.timeline
            if outage is not None:
                known, timeline = [outage, *known], timeline.with_outage(outage.at_s)
            self.publish({"incidents": known, "timeline": timeline_section(timeline)})
        self.notify(tone, text)

    def _read(self, now_s: float) -> JobObservation:
        store = self._store
        snapshot: Snapshot = store.snapshot(ignore_changes)
        if snapshot.job.created != self._created:
            self._forget()
            self._created, self._token = snapshot.job.created, store.nodes.run
            self.page = PublishedPage()
        if now_s >= self._learned_due_s:
            self._learned, self._profile = store.policy.learned(), store.profile.get()
            self._learned_due_s = now_s + LEARNED_S
        self._trace = self._trace.with_hosts(snapshot)
        self._read_events(now_s)
        steady_s = self._steady_clock()
        self._report = self._report.at(snapshot.status.updated_at_s, now_s, steady_s)
        age = report_age(snapshot, self._report, steady_s)
        hosts = store.session.hosts
        return JobObservation(snapshot, self._learned, self._profile, hosts, now_s, age)

    def _read_events(self, now_s: float) -> None:
        """Put the new events of the log into the trace; say there if older ones are gone."""
        skipped: list[int] = []
        found = self._store.events.read_known(self._last, lambda number, _: skipped.append(number))
        numbers = sorted([*skipped, *(number for number, _ in found)])
        if not numbers:
            return
        self._is_cut = self._is_cut or are_events_gone(self._last, numbers[0])
        self._last = numbers[-1]
        self._unreadable += len(skipped)
        if found and self._is_cut:
            self._trace, self._is_cut = self._trace.cut(found[0][1].time), False
        self._events.add(event_view(number, event, self._store.name) for number, event in found)
        self._trace = self._trace.with_events((event for _, event in found), now_s)
