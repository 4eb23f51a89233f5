"""Serve the logs of a host's jobs over HTTP to those who know the cluster's secret, or the job's.

Two kinds of paths are answered, to signed GET requests only (:mod:`edl.http.signing`, with the key
of the cluster, or of the job that the path names):

- ``/logs/JOB``: the logs of a job on this host, as JSON: name -> size in bytes;
- ``/logs/JOB/NAME?file=F&from=N&wait_s=S``: a part of a log. The body is a JSON object in one line,
  a :class:`LogPart`, and then the bytes, at most ``PART_BYTES``.

A log is a row of two files: when a worker's log is full, the worker renames it, and begins a new
one. So a place in a log is a file, by its number, and an offset in it. Without ``file``, reading
begins with the older one; with ``from=-N`` it begins N bytes before the end. If nothing has been
written after that place, the answer waits for it, at most ``MAX_WAIT_S`` seconds.

Only jobs that had an agent of this host are answered, and only files of which this module makes up
the names: nothing of a request becomes a path. Their users may have put something else there, so
:mod:`edl.cluster.host.logs` opens them.
"""

from __future__ import annotations

import asyncio
import json
import math
import os
import shutil
import stat
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO
from urllib.parse import parse_qs

from edl.cluster.host.users import JobUsers
from edl.cluster.records import LOGS_PATH, PART_BYTES, LogPart
from edl.host.adoption import last_use_s
from edl.host.logs import former, named_logs
from edl.http.server import DaemonServer, HttpRequest, Response
from edl.http.signing import Authenticator, http_key
from edl.text import is_name

# ------------------------------------------------------------
# Open the files of a log as a process that may read more than the user who wrote them.
#
# The user of a job's workers owns the directory of their logs, and may put anything there: a link
# to a secret of root's, a link in place of a directory, a pipe that nobody writes. So no link is
# followed, nothing waits, and what was opened is asked for its owner, not the path.


_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


@dataclass(frozen=True)
class LogOwner:
    """Whose files are read as a job's logs, and where."""

    below: Path  # a directory of logs, or of such directories; no link is followed below
    uid: int  # the number of the user who must own each file


def open_log(log: Path, owner: LogOwner | None, stack: ExitStack) -> dict[int, BinaryIO]:
    directory = stack.enter_context(_directory(log, owner))
    found = {}
    for name in (log.name, former(log).name):  # if it is renamed meanwhile, none is missed
        try:
            file = stack.enter_context(os.fdopen(os.open(name, _READ, dir_fd=directory), "rb"))
        except FileNotFoundError:
            continue
        about = os.fstat(file.fileno())
        is_owners = owner is None or about.st_uid == owner.uid
        if not (stat.S_ISREG(about.st_mode) and is_owners):
            raise PermissionError(f"{log} belongs to another user, or is no file")
        found[about.st_ino] = file
    if not found:
        raise FileNotFoundError(f"there is no log {log}")
    return dict(reversed(found.items()))


def bytes_in(log: Path, owner: LogOwner | None = None) -> int | None:
    """Return the bytes in a log and its older file; None if `open_log` would refuse it."""
    try:
        with ExitStack() as stack:
            files = open_log(log, owner, stack).values()
            return sum(os.fstat(file.fileno()).st_size for file in files)
    except OSError:
        return None


@contextmanager
def _directory(log: Path, owner: LogOwner | None) -> Iterator[int]:
    """Open the directory of a log, without following a link below that of its `owner`."""
    above = log.parent if owner is None else owner.below
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_DIRECTORY
    found = os.open(above, flags)
    try:
        for part in log.parent.relative_to(above).parts:
            inner = os.open(part, flags | os.O_NOFOLLOW, dir_fd=found)
            os.close(found)
            found = inner
        yield found
    finally:
        os.close(found)


# ------------------------------------------------------------
# Find the logs of a host's jobs, and remove the oldest.


KEPT_RUNS = 100
KEPT_S = 86400.0
OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


@dataclass(frozen=True)
class LogPlaces:
    workers: Path  # a folder for each job, whose `logs` has the workers' logs
    agents: Path  # the directory with the logs of the agents of this host, one for each run
    users: JobUsers = field(default_factory=JobUsers)  # who have the logs of their workers

    def of_agent(self, job: str, run: str) -> Path:
        return self.agents / f"{job}-{run}.log"

    def has_log(self, job: str, run: str) -> bool:
        """Return whether the log of a run's agents exists, so that one has run on this host."""
        try:
            return self.of_agent(job, run).exists()
        except OSError:  # such as a stale handle of a file server
            return False

    def of_workers(self, job: str) -> Path:
        return self._jobs(job) / job / "logs"

    def state(self, job: str) -> Path:
        return self._jobs(job).parent

    def _jobs(self, job: str) -> Path:
        user = self.users.find(job)
        return self.workers if user is None else user.jobs

    def owner(self, job: str) -> int:
        user = self.users.find(job)
        return os.geteuid() if user is None else user.uid

    def of_log(self, job: str, log: Path) -> LogOwner:
        if log.parent != self.agents:
            return LogOwner(self.of_workers(job).parent.parent, self.owner(job))
        about = self.agents.stat()
        # It has opened them itself, if no other user can write there.
        is_ours = about.st_uid == os.geteuid() and not about.st_mode & OTHERS_WRITE
        return LogOwner(self.agents, os.geteuid() if is_ours else self.owner(job))

    def of_job(self, job: str) -> dict[str, Path]:
        """Return the logs of a job by name; empty if it had no agent here."""
        agents = {f"agent-{run}": path for path, name, run in self._agent_logs() if name == job}
        return {**named_logs(self.of_workers(job)), **agents} if agents and is_name(job) else {}

    def prune(self, assigned: Iterable[tuple[str, str]], now_s: float | None = None) -> None:
        stay = {self.of_agent(job, run) for job, run in assigned}
        aged = sorted((_written_s(path), path, job) for path, job, _ in self._agent_logs())
        now_s = time.time() if now_s is None else now_s
        for written_s, path, _ in aged[:-KEPT_RUNS]:
            if path not in stay and now_s - written_s > KEPT_S:
                path.unlink(missing_ok=True)
                path.with_name(f"{path.name}.1").unlink(missing_ok=True)
        left = {job for _, job, _ in self._agent_logs()}
        for job in {job for _, _, job in aged} - left:
            if self.users.find(job) is not None:
                continue  # another user's directory may lead anywhere
            logs = self.of_workers(job)
            if now_s - last_use_s(logs) > KEPT_S:  # other hosts may share the directory
                shutil.rmtree(logs, ignore_errors=True)

    def _agent_logs(self) -> list[tuple[Path, str, str]]:
        found = []
        for path in sorted(self.agents.glob("*.log")):
            job, _, run = path.stem.rpartition("-")
            found.append((path, job, run))
        return found


def _written_s(log: Path) -> float:
    """Return when a log was last written, in seconds since 1970; 0 if it was removed."""
    try:
        return log.stat().st_mtime
    except OSError:
        return 0.0


MAX_WAIT_S = 20.0
MAX_WAITING = 64  # requests that wait at once; further ones get what is there
POLL_S = 0.3  # of a log for which a request waits


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
        return await self._part(logs[name], place, min(wait_s, MAX_WAIT_S), owner)

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
        may_wait = self._waiting < MAX_WAITING
        self._waiting += 1
        try:
            while True:
                part, content = await asyncio.to_thread(read_part, log, *place, owner=owner)
                waits = may_wait and not self._closes and time.monotonic() < deadline
                if content or part.missed or not waits:
                    break
                place = part.file, part.next
                await asyncio.sleep(POLL_S)
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
