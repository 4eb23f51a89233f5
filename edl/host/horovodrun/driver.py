"""Talk to the elastic driver of horovodrun, for the process in one of its slots.

When the hosts have changed, the driver notifies the process with rank 0. It then waits until every
slot has asked it for its new rank. Only after the last request does it assign the slots again,
start processes in new slots, and answer. In stock Horovod the workers stop training for that. Here
a thread of `edl-worker` asks, and the workers train on.

A *round* is this exchange, from the notification to the answers. The process that was notified puts
a key into the driver's key-value store, where the processes of all other slots look for it. The
driver empties that store whenever it assigns the slots again, so no process, not even one that was
started later, takes the key of an earlier round for a new round. A slot must ask exactly once in a
round, because the driver would count a second request as another slot's. (Sources:
horovod/runner/elastic/driver.py, registration.py, rendezvous.py; http/http_server.py.)
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psutil

from edl.config import HorovodSlot
from edl.errors import EdlError
from edl.host.horovodrun.last_answer import find_horovodrun, is_horovodrun
from edl.http.client import fetch, http_put

logger = logging.getLogger(__name__)
REQUEST_S = 2.0
ASKED = "/edl/asked"
IDENTITY = "/edl/job"


@dataclass(frozen=True)
class DriverLimits:
    poll_s: float = 0.25  # between two looks of one slot into the driver's store
    polls_per_s: float = 50.0  # by all slots together: the driver serves each with a thread
    gone_s: float = 3.0  # refused connections to the driver for so long: it has ended
    refuse_s: float = 5.0  # for a driver that is busy to take note of a refusal
    answer_s: float = 86400.0  # the driver answers when all slots have asked, at any time


@dataclass(frozen=True)
class RankAssignment:
    """The driver's answer to a slot that asked for its rank: its place among the slots in use."""

    rank: int  # negative if the driver does not use this slot
    local_size: int | None  # of this host; None if the driver does not use this slot
    size: int  # on all hosts; not to be relied on if this slot is not used


class Driver:
    """The client of horovodrun's driver for one slot, for any thread. Round: all slots ask anew."""

    def __init__(self, slot: HorovodSlot, limits: DriverLimits | None = None) -> None:
        self._slot = slot
        self._limits = limits or DriverLimits()
        self._wake: Callable[[], None] = lambda: None
        self._hosts_changed = threading.Event()  # the driver has notified rank 0 of that
        self._may_ask = threading.Event()
        self._begins = threading.Event()  # whether a round may begin when it is asked for
        self._begins.set()
        self._answering = threading.Lock()  # the newest answer, and whether to ask again after it
        self._identity_due = threading.Event()  # the driver's store may not have the identity
        self._stop = threading.Event()
        self._identity: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="edl-driver", daemon=True)
        self._refused_since: float | None = None
        self.answers = True  # the driver has answered each request of this slot
        # before the first answer, with what the driver started this process
        self.newest = RankAssignment(slot.rank, slot.local_size, slot.size)
        self.asking = False  # waits for an answer; until then the driver counts on us

    def start(self, wake: Callable[[], None]) -> None:
        from horovod.runner.elastic.worker import WorkerNotificationManager  # a slow import

        self._wake = wake
        manager = WorkerNotificationManager()
        manager.register_listener(self)
        slot = self._slot
        try:
            manager.init(slot.address, slot.port, slot.interface, slot.host, slot.slot)
        except RuntimeError as error:
            raise EdlError(f"the driver of horovodrun at {slot.driver}: {error}") from error
        self._thread.start()

    def close(self) -> None:
        self._stop.set()

    def on_hosts_updated(self, timestamp: int, result: Any) -> None:
        """Begin a round; Horovod calls this in a thread of its own, on rank 0."""
        self.ask()

    def ask(self) -> None:
        self._hosts_changed.set()

    def begin_no_round(self) -> None:
        """Begin no further round, for good; rounds that others begin are answered."""
        self._begins.clear()

    def allow(self, allowed: bool, answer: RankAssignment) -> None:
        """Say, after `answer` is carried out, whether this slot may ask; each answer forbids it."""
        with self._answering:
            allowed = allowed and answer is self.newest
            (self._may_ask.set if allowed else self._may_ask.clear)()

    @property
    def gone(self) -> bool:
        """Whether the driver has ended: its port has refused connections for `gone_s` seconds."""
        since = self._refused_since
        return since is not None and time.monotonic() - since >= self._limits.gone_s

    def asked(self) -> bool:
        """Return whether this slot has to ask for its rank or waits for it; may take 2 s."""
        return self.asking or self._request(fetch, ASKED) is not None

    # --- which job this driver's is

    def identify(self, identity: Mapping[str, str]) -> None:
        # The thread repeats it until it succeeds, and after each assignment, which empties the
        # store.
        self._identity = dict(identity)
        self._identity_due.set()
        self._publish_identity()

    def refuse(self, reason: str) -> None:
        """Publish in the driver's store that there will be no job, so that no process waits."""
        if self._identity is not None:
            return
        body = json.dumps({"refused": reason}).encode()
        deadline = time.monotonic() + self._limits.refuse_s
        while not self._put(IDENTITY, body) and time.monotonic() < deadline:
            time.sleep(self._limits.poll_s)

    def identity(self, timeout_s: float) -> dict[str, str] | None:
        deadline = time.monotonic() + timeout_s
        while True:
            identity = _fetched(self._slot.address, self._slot.port)
            if "refused" in identity:
                raise EdlError(f"this driver has no job: {identity['refused']}")
            if _is_identity(identity):
                return identity
            if time.monotonic() >= deadline:
                return None
            time.sleep(self._limits.poll_s)

    # --- the thread

    def _run(self) -> None:
        limits = self._limits
        while not self._stop.wait(max(limits.poll_s, self._slot.size / limits.polls_per_s)):
            if not self._publish_identity():
                continue  # without a job no slot asks, so no request would be answered
            if self._hosts_changed.is_set() and self._begins.is_set() and self._put(ASKED, b"1"):
                self._hosts_changed.clear()
            asked = self._request(fetch, ASKED) is not None
            if asked and self._may_ask.is_set() and self.answers:
                self.answers = self._ask()  # to ask again would count twice

    def _publish_identity(self) -> bool:
        if self._identity_due.is_set() and self._put(IDENTITY, json.dumps(self._identity).encode()):
            self._identity_due.clear()
        return not self._identity_due.is_set()

    def _ask(self) -> bool:
        """Wait, a day at most, until all slots have asked; store the answer in `newest`."""
        slot = self._slot
        path = f"/rank_and_size/{slot.host}:{slot.slot}"
        self.asking = True
        try:
            status, body = fetch(slot.address, slot.port, path, self._limits.answer_s)
            if status != 200:
                raise ValueError(f"status {status}")
            rank, size, _, local_size = (int(word) for word in body.decode().split(",")[:4])
        except (EdlError, OSError, ValueError) as error:
            logger.warning("the driver of horovodrun did not answer: %s", error)
            return False
        finally:
            self.asking = False
        with self._answering:
            self._may_ask.clear()
            self.newest = RankAssignment(rank, local_size if rank >= 0 else None, size)
        if self._identity is not None:
            self.identify(self._identity)
        self._wake()
        return True

    def _put(self, path: str, body: bytes) -> bool:
        return self._request(http_put, path, body) is not None

    def _request(self, method: Callable[..., tuple[int, bytes]], *words: Any) -> bytes | None:
        try:
            status, body = method(self._slot.address, self._slot.port, *words, REQUEST_S)
        except ConnectionRefusedError:
            if self._refused_since is None:
                self._refused_since = time.monotonic()
            return None
        except (EdlError, OSError):  # it is busy, or cut off from here
            self._refused_since = None
            return None
        self._refused_since = None
        return body if status == 200 else None


def _is_identity(identity: Mapping[str, str]) -> bool:
    return {"job", "secret", "zookeeper"} <= set(identity)


def _fetched(address: str, port: int) -> dict[str, str]:
    try:
        status, body = fetch(address, port, IDENTITY, REQUEST_S)
        identity = json.loads(body) if status == 200 else None
    except (EdlError, OSError, ValueError):
        return {}
    return identity if isinstance(identity, dict) else {}


# ------------------------------------------------------------
# The process of horovodrun that started this process, its options and its job.


DISCOVERY_S = 30.0  # for a host discovery script


@dataclass(frozen=True)
class ElasticLimits:
    np: int  # to start with
    min_np: int  # `np` if horovodrun was given none
    max_np: int | None  # None: as many as there are slots
    reset_limit: int | None = None  # of the slots' assignment; None: no limit
    discovery: str = ""  # the command line of the host discovery script
    slots: int = 1  # of a host for which the script names no number


@dataclass(frozen=True)
class Launcher:
    """A process of horovodrun that is an ancestor of this process, as `find_launcher` saw it."""

    pid: int
    started: str  # tells it from another process of that number, here or on another machine
    command: tuple[str, ...]

    def limits(self) -> ElasticLimits | None:
        """Return the options of horovodrun, by Horovod's own parser; None: they cannot be read."""
        from horovod.runner.launch import parse_args  # a slow import

        words = next(i for i, word in enumerate(self.command) if is_horovodrun(word)) + 1
        try:
            with _arguments(self.command[words - 1 :]):
                args = parse_args()
        except SystemExit:
            return None
        if args.num_proc is None:
            return None
        return ElasticLimits(
            args.num_proc,
            args.min_num_proc or args.num_proc,
            args.max_num_proc,
            args.reset_limit,
            args.host_discovery_script or "",
            args.slots or 1,
        )

    def may_limit_resets(self) -> bool:
        """Return whether horovodrun may have been given --reset-limit, also shortened to --res."""
        return any(word.startswith("--res") for word in self.command)

    def identity(self) -> dict[str, str] | None:
        try:
            connections = psutil.Process(self.pid).net_connections("tcp4")
        except psutil.Error:
            return None
        ports = {c.laddr.port for c in connections if c.status == psutil.CONN_LISTEN}
        found = (_fetched("127.0.0.1", port) for port in sorted(ports))
        return next(filter(_is_identity, found), None)


def discovered(limits: ElasticLimits) -> dict[str, int] | None:
    """Run the host discovery script once, as the driver does; return slots by host, or None."""
    try:
        done = subprocess.run(
            limits.discovery,
            shell=True,  # as Horovod does: it is the user's command line
            capture_output=True,
            text=True,
            timeout=DISCOVERY_S,
            check=True,
        )
        found = {}
        for line in done.stdout.split():
            host, _, slots = line.partition(":")
            found[host] = int(slots or limits.slots)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    return found


def find_launcher() -> Launcher | None:
    return Launcher(*found) if (found := find_horovodrun()) is not None else None


@contextmanager
def _arguments(words: tuple[str, ...]) -> Iterator[None]:
    before = sys.argv
    sys.argv = list(words)
    try:
        yield
    finally:
        sys.argv = before
