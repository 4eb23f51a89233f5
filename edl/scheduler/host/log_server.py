"""Serve the logs of a host's jobs over HTTP to those who know the cluster's secret, or the job's.

Two kinds of paths are answered, to signed GET requests only (:mod:`edl.http.signing`, with the key
of the cluster, or of the job that the path names):

- ``/logs/JOB``: the logs of a job on this host, as JSON: name -> size in bytes;
- ``/logs/JOB/NAME?file=F&from=N&wait_s=S``: a part of a log. The body is a JSON object in one line,
  a :class:`LogPart`, and then the bytes, at most ``PART_BYTES``.

A log is a row of two files: when a worker's log is full, the worker renames it, and begins a new
one. So a place in a log is a file, by its number, and an offset in it. Without ``file``, reading
begins with the older one; with ``from=-N`` it begins N bytes before the end. If nothing has been
written after that place, the answer waits for it, at most ``MOST_WAIT_S`` seconds.

Only jobs that had an agent of this host are answered, and only files of which this module makes up
the names: nothing of a request becomes a path. Their users may have put something else there, so
:mod:`edl.scheduler.host.log_files` opens them.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs

from edl.core.cluster.log_part import LOGS_PATH, PART_BYTES, LogPart
from edl.http.connection import HttpRequest, Response
from edl.http.server import DaemonServer
from edl.http.signing import Authenticator, http_key
from edl.scheduler.host.log_files import LogOwner, bytes_in, open_log
from edl.scheduler.host.log_places import LogPlaces

MOST_WAIT_S = 20.0
MOST_WAITING = 64  # requests that wait at once; further ones get what is there
LOOK_S = 0.3  # how often a log is looked at for which a request waits


class LogServer(DaemonServer):
    """The HTTP server of `edl host`; a context manager, or `start()` and `close()`."""

    def __init__(
        self,
        address: str,
        cluster: str,
        secret: str,
        places: LogPlaces,
        secret_of: Callable[[str], str | None] = lambda job: None,
    ) -> None:
        guard = Authenticator(http_key(secret, cluster))
        guard.worker = 0
        super().__init__(address, guard=guard)
        self._guard = guard
        self._places = places
        self._secret_of = secret_of
        self._waiting = 0
        self._closes = False

    async def answer_other(self, request: HttpRequest) -> Response:
        """Return the answer to an HTTP request for the logs of a job's workers on this host."""
        if request.path != LOGS_PATH and not request.path.startswith(f"{LOGS_PATH}/"):
            return Response(404)
        if request.method != "GET":
            return Response(405)
        given, target = request.authorization, request.target
        job, _, name = request.path.removeprefix(f"{LOGS_PATH}/").partition("/")
        if not self._guard.accepts(given, request.method, target, request.body):
            key = await asyncio.to_thread(self._key_of, job) if given else None
            if not key or not self._guard.accepts(given, request.method, target, request.body, key):
                return Response(401, nonce=self._guard.nonce())
        places = self._places
        logs = await asyncio.to_thread(places.of_job, job)
        if not name:
            found = {name: bytes_in(log, places.of_log(job, log)) for name, log in logs.items()}
            sizes = {name: size for name, size in found.items() if size is not None}
            return Response(200, json.dumps(sizes).encode(), "application/json")
        query = {key: values[-1] for key, values in parse_qs(request.query).items()}
        try:
            place = int(query.get("file", "0")), int(query.get("from", "0"))
            wait_s = float(query.get("wait_s", "0"))
        except ValueError:
            return Response(400)
        if name not in logs or math.isnan(wait_s):
            return Response(404 if name not in logs else 400)
        owner = places.of_log(job, logs[name])
        return await self._part(logs[name], place, min(wait_s, MOST_WAIT_S), owner)

    def _key_of(self, job: str) -> str | None:
        secret = self._secret_of(job) if self._places.of_job(job) else None
        return http_key(secret, job) if secret else None

    def let_go(self) -> None:
        """Answer requests that wait for more of a log with what is written; the server closes."""
        self._closes = True

    async def _part(
        self, log: Path, place: tuple[int, int], wait_s: float, owner: LogOwner
    ) -> Response:
        """Return the HTTP answer with the part of a log that begins at a place."""
        deadline = time.monotonic() + wait_s
        may_wait = self._waiting < MOST_WAITING
        self._waiting += 1
        try:
            while True:
                part, content = await asyncio.to_thread(read_part, log, *place, owner=owner)
                waits = may_wait and not self._closes and time.monotonic() < deadline
                if content or part.missed or not waits:
                    break
                place = part.file, part.next
                await asyncio.sleep(LOOK_S)
        except OSError:
            return Response(404)  # it was removed meanwhile, or is not the user's
        finally:
            self._waiting -= 1
        return Response(200, json.dumps(part.to_json()).encode() + b"\n" + content)


def read_part(
    log: Path,
    file: int,
    begin: int,
    most: int = PART_BYTES,
    owner: LogOwner | None = None,
) -> tuple[LogPart, bytes]:
    """Return what is in a log after a place, and the place after that."""
    with ExitStack() as stack:
        files = open_log(log, owner, stack)
        oldest, newest = next(iter(files)), next(reversed(files))
        chosen = file
        if not file:
            chosen = newest if begin < 0 else oldest
        missed = chosen not in files
        if missed:  # it was replaced twice, or removed
            chosen, begin = oldest, 0
        size = os.fstat(files[chosen].fileno()).st_size
        if begin > size:  # it is another file, to which the number was given again
            missed, begin = True, 0
        begin = max(0, size + begin) if begin < 0 else begin
        content = _read(files[chosen], begin, most)
        if not content and chosen != newest:
            chosen, begin = newest, 0
            content = _read(files[chosen], begin, most)
    return LogPart(chosen, begin + len(content), missed and file != 0), content


def _read(file: BinaryIO, begin: int, most: int) -> bytes:
    file.seek(begin)
    return file.read(most)
