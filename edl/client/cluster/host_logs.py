"""Read the logs of a cluster's jobs from the `edl host` of the host on which they are.

:class:`HostLogs` reads those of one host.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from urllib.parse import quote, urlencode

from edl.coordination.access import Access
from edl.core.cluster.log_part import LOGS_PATH, PART_BYTES, LogPart
from edl.core.cluster.records import HostOffer
from edl.errors import CoordinationError, RendezvousFailed, UsageError
from edl.http.client import send_change
from edl.http.signing import http_key

ANSWER_S = 10.0  # for `edl host` to answer, beyond the time that it waits for something to be there
WAIT_S = 10.0  # that it waits so, each time
LogPlace = tuple[int, int]  # the number of a file of a log, and an offset in it
BEGINNING: LogPlace = (0, 0)
_FILES = 2  # of a log
MISSED = b"\nedl: what was written here is gone: nobody read it in time\n"


@dataclass(frozen=True)
class HostLogs:
    """The logs on one host of a cluster, read over HTTP."""

    host: str  # the name of the host
    offer: HostOffer  # what the host offers, with the address and port at which `edl host` listens
    access: Access  # the name and the secret of the cluster

    def names(self, job: str) -> Mapping[str, int]:
        """Return the sizes in bytes of the logs of `job` on this host, by the name of the log."""
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
        """Yield what is in a log after a place now, in parts, each with the place after it."""
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
        """Return the part of a log that begins at a place, and the place after it."""
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
