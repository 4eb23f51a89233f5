"""Read the logs of a cluster's job from all hosts that have some."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Annotated
from urllib.parse import quote, urlencode

from edl.client.connection import choose_job
from edl.cluster.records import LOGS_PATH, PART_BYTES, HostedLog, HostOffer, LogPart, chosen_logs
from edl.cluster.store import ClusterStore
from edl.errors import AccessDenied, CoordinationError, RendezvousFailed, UnknownJob, UsageError
from edl.events import EndedDetails
from edl.host.devices import worker_hosts
from edl.http.client import send_change
from edl.http.signing import http_key
from edl.record import Record
from edl.zookeeper.access import Access

# ------------------------------------------------------------
# Read the logs of a cluster's jobs from the `edl host` of the host on which they are.
#
# `HostLogs` reads those of one host.


ANSWER_S = 10.0  # for `edl host` to answer, beyond the time that it waits for something to be there
WAIT_S = 10.0  # that it waits so, each time
LogPlace = tuple[int, int]  # the number of a file of a log, and an offset in it
BEGINNING: LogPlace = (0, 0)
_FILES = 2  # of a log
MISSED = b"\nedl: what was written here is gone: nobody read it in time\n"


@dataclass(frozen=True)
class HostLogs:
    host: str  # the name of the host
    offer: HostOffer  # what the host offers, with the address and port at which `edl host` listens
    access: Access  # the name and the secret of the cluster

    def names(self, job: str) -> Mapping[str, int]:
        status, body = self._get(f"{LOGS_PATH}/{quote(job, safe='')}", 0.0)
        found = json.loads(body) if status == 200 else {}
        return {str(name): int(size) for name, size in found.items()}

    def read(self, job: str, name: str, last: int = 0, follow: bool = False) -> Iterator[bytes]:
        """Yield what is in a log, in parts; with `follow` without end, as it is written."""
        place = (0, -last)
        if not follow:
            yield from (content for content, _ in self.parts(job, name, place, last or math.inf))
        while follow:
            content, place = self.part(job, name, place, WAIT_S)
            yield content

    def parts(
        self, job: str, name: str, place: LogPlace, most: float
    ) -> Iterator[tuple[bytes, LogPlace]]:
        size = ends = 0
        # A worker may write as fast as this reads.
        while ends < _FILES:
            content, place = self.part(job, name, place)
            if not content:
                return
            yield content, place
            size += len(content)
            ends += len(content) < PART_BYTES
            if size >= most:
                return

    def part(
        self, job: str, name: str, place: LogPlace = BEGINNING, wait_s: float = 0.0
    ) -> tuple[bytes, LogPlace]:
        path = f"{LOGS_PATH}/{quote(job, safe='')}/{quote(name, safe='')}"
        query = urlencode({"file": place[0], "from": place[1], "wait_s": wait_s})
        status, body = self._get(f"{path}?{query}", wait_s)
        if status == 404:
            raise UsageError(f"host {self.host} has no log {name} of job {job}")
        head, _, content = body.partition(b"\n")
        part = LogPart.from_json(json.loads(head))
        return MISSED + content if part.missed else content, (part.file, part.next)

    def _get(self, path: str, wait_s: float) -> tuple[int, bytes]:
        """Send a signed GET; return the status (200 or 404) and the body of the answer."""
        where = f"`edl host` of host {self.host} at {self.offer.address}:{self.offer.port}"
        if not self.offer.port:
            raise CoordinationError(f"host {self.host} does not serve the logs of its jobs")
        key = http_key(self.access.secret, self.access.job)
        limit_s = ANSWER_S + wait_s
        try:
            status, body = send_change(
                key, 0, "GET", self.offer.address, self.offer.port, path, limit_s
            )
        except (OSError, RendezvousFailed) as error:
            raise CoordinationError(f"{where} does not answer: {error}") from None
        if status not in (200, 404):
            raise CoordinationError(f"{where} has refused to give logs, with status {status}")
        return status, body


AT_ONCE = 16  # hosts that are asked which logs they have
MAX_BYTES = 1 << 22  # of the ends of all logs of a job together


@dataclass(frozen=True)
class LogEnd(Record):
    """The end of what a worker of a job of a cluster has printed."""

    worker: Annotated[str, "name of the worker; empty: `missing` is about a host"]
    host: Annotated[str, "the host with its log; empty: the end was kept when the worker ended"]
    text: Annotated[str, "the end of the log, with � for bytes that are no UTF-8"]
    missing: Annotated[str, "why something is missing, in a sentence; empty: nothing is"] = ""


class ClusterJobLogs:
    """A reader of the logs of a job's workers on all hosts; it remembers how far each was read."""

    def __init__(self, store: ClusterStore, job: str, worker: str | None) -> None:
        self._store = store
        self._access = store.nodes.access
        self._job = store.jobs.full_name(job)
        self._signs = store.jobs.log_access(job)
        self._worker = worker
        self._hosts: Mapping[str, HostLogs] = {}
        self._logs: list[HostedLog] = []
        self._places: dict[HostedLog, LogPlace] = {}
        self._sizes: dict[HostedLog, int] = {}  # by the last poll, in bytes
        # the names of all logs of workers that there are, by the last `poll`
        self.names: tuple[str, ...] = ()
        self.silent: dict[str, str] = {}  # host -> why it was not read, of the last `poll`
        # worker -> the end of its output, of workers of the last run that have ended
        self.tails: dict[str, str] = {}

    @property
    def found(self) -> bool:
        return bool(self._logs)

    def poll(self) -> None:
        offers = {host.name: host.offer for host in self._store.hosts.list()}
        self._hosts = {
            name: HostLogs(name, offer, self._signs)
            for name, offer in offers.items()
            if offer is not None
        }
        self.silent = {
            name: f"host {name} offers nothing now" for name, offer in offers.items() if not offer
        }
        with ThreadPoolExecutor(AT_ONCE) as pool:
            sizes = dict(pool.map(self._found, self._hosts.values()))
        where, self.tails = self._workers()
        logs = chosen_logs(sizes, where)
        self._sizes = {log: sizes[log.host][log.name] for log in logs}
        self.names = tuple(dict.fromkeys(log.name for log in logs))
        self._logs = [log for log in logs if self._worker in (None, log.name)]
        self.silent = {
            host: why
            for host, why in self.silent.items()
            if (on := [worker for worker, at in where.items() if at == host])
            if self._worker in (None, *on)
        }

    @property
    def logs(self) -> tuple[HostedLog, ...]:
        return tuple(self._logs)

    def end(self, log: HostedLog, last_bytes: int) -> bytes:
        """Return the last bytes of `log`; empty if it is gone, or its host silent."""
        try:
            return b"".join(self._hosts[log.host].read(self._job, log.name, last_bytes))[
                -last_bytes:
            ]
        except UsageError:  # it was removed, as too old
            return b""
        except CoordinationError as error:
            self.silent[log.host] = str(error)
            return b""

    def read(self) -> Iterator[tuple[HostedLog, Iterator[bytes]]]:
        for log in self._logs:
            yield log, self._parts(log)

    def _parts(self, log: HostedLog) -> Iterator[bytes]:
        if log.host in self.silent:
            return
        place = self._places.get(log, BEGINNING)
        try:
            parts = self._hosts[log.host].parts(self._job, log.name, place, self._sizes[log])
            for content, self._places[log] in parts:
                yield content
        except UsageError:  # it was removed, as too old
            return
        except CoordinationError as error:
            self.silent[log.host] = str(error)

    def _found(self, host: HostLogs) -> tuple[str, Mapping[str, int]]:
        """Return a host's name and the sizes of its logs by name; note it if it does not answer."""
        try:
            return host.host, host.names(self._job)
        except CoordinationError as error:
            self.silent[host.host] = str(error)
            return host.host, {}

    def _workers(self) -> tuple[dict[str, str], dict[str, str]]:
        session = self._store.nodes.session
        try:
            store = choose_job(session, self._job, secret=self._store.jobs.secret(self._job))
            known = store.events.read_known()
            events = [event for _, event in known]
            where = worker_hosts(store.snapshot(), events)
        except (UnknownJob, AccessDenied):  # it was never started, or its records were removed
            return {}, {}
        finally:
            session.identify(self._access)
        ends = [event.details for event in events if isinstance(event.details, EndedDetails)]
        tails = {one.worker: one.output_tail for one in ends if one.worker is not None}
        return where, {worker: tail for worker, tail in tails.items() if tail}


def log_ends(
    store: ClusterStore, job: str, worker: str | None, last_bytes: int
) -> tuple[LogEnd, ...]:
    life = store.jobs.get(job).life
    if not life.run:
        raise UsageError(f"job {job} has not started yet, so it has no logs: it is {life.state}")
    reader = ClusterJobLogs(store, job, worker)
    reader.poll()
    found, left = [], MAX_BYTES
    for log in reader.logs:
        if left < last_bytes:
            why = f"the answer has {MAX_BYTES} bytes already; ask for {log.name} alone"
            found.append(LogEnd(log.name, log.host, "", why))
            continue
        text = reader.end(log, last_bytes)
        left -= len(text)
        why = reader.silent.get(log.host, "")
        found.append(LogEnd(log.name, log.host, text.decode(errors="replace"), why))
    seen = {one.worker for one in found}
    kept = {name: tail for name, tail in reader.tails.items() if worker in (None, name)}
    found += [LogEnd(name, "", tail) for name, tail in sorted(kept.items()) if name not in seen]
    found += [LogEnd("", host, "", why) for host, why in sorted(reader.silent.items())]
    if worker is not None and not found:
        raise UsageError(f"job {job} has no log of {worker}")
    return tuple(found)
