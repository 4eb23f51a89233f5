"""The elastic driver of horovodrun, as the process in one of its slots sees it.

The driver counts. When the hosts have changed it tells the process with rank 0, and then waits
until every slot has asked it for its new rank: only after the last one has asked does it place
the slots anew, start processes in new ones, and answer. Stock Horovod stops training for that.
Here it is a thread's business, of processes that do not train.

Whoever was called puts a key into the driver's own key-value store, where all others look. The
driver empties that store whenever it places the slots anew, so the key means this round and no
other, for those that were started meanwhile, too. A slot must ask exactly once a round: the
driver would count a second question as another slot's. (horovod/runner/elastic/driver.py,
registration.py, rendezvous.py; http/http_server.py.)
"""

from __future__ import annotations

import json
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from edl.config import HorovodSlot
from edl.errors import EdlError
from edl.http.client import fetch, put

logger = logging.getLogger(__name__)

REQUEST_S = 2.0
ASKED = "/edl/asked"
IDENTITY = "/edl/job"


@dataclass(frozen=True)
class DriverLimits:
    """How often the driver is asked, and how long its answers may take, in seconds."""

    poll_s: float = 0.25
    polls_per_s: float = 50.0  # by all slots together: the driver serves each with a thread
    gone_s: float = 3.0  # nobody listens where the driver did
    refuse_s: float = 5.0  # for a driver that is busy to take note of a refusal
    answer_s: float = 86400.0  # it answers when all have asked, which has no limit of its own


@dataclass(frozen=True)
class Answer:
    """The driver's answer: our rank among ``size`` slots.

    ``local_size``: slots of this host that it uses; None: not this one.
    """

    rank: int
    local_size: int | None
    size: int


class Driver:
    """The driver's protocol for ``slot``."""

    def __init__(self, slot: HorovodSlot, limits: DriverLimits | None = None) -> None:
        self._slot = slot
        self._limits = limits or DriverLimits()
        self._wake: Callable[[], None] = lambda: None
        self._hosts_changed = threading.Event()  # rank 0 was called for that
        self._may_ask = threading.Event()
        self._begins = threading.Event()  # a round, when called for
        self._begins.set()
        self._answering = threading.Lock()  # the newest answer, and whether to ask again after it
        self._identity_due = threading.Event()  # the driver's store may not have the identity
        self._stop = threading.Event()
        self._identity: dict[str, str] | None = None
        self._thread = threading.Thread(target=self._run, name="edl-driver", daemon=True)
        self._refused_since: float | None = None
        self.answers = True  # it has not left a question of ours without an answer
        self.newest = Answer(slot.rank, slot.local_size, slot.size)
        self.asking = False  # the driver owes an answer, and counts on this process until then

    def start(self, wake: Callable[[], None]) -> None:
        """Listen to the driver from now on; ``wake`` is called when it has answered.

        Raises:
            EdlError: it does not take our address.
        """
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
        """Called by Horovod, in a thread of its own. Whole seconds tell nothing: not looked at."""
        self.ask()

    def ask(self) -> None:
        """Let all slots ask the driver for a new placement."""
        self._hosts_changed.set()

    def begin_no_round(self) -> None:
        """Tell nobody to ask any more. A round that has begun goes on."""
        self._begins.clear()

    def allow(self, allowed: bool, answer: Answer) -> None:
        """Whether a question may be asked now: what the last answer said must be done first.

        ``answer``: the one that this was decided for; nothing is allowed if it is not the newest.
        """
        with self._answering:
            allowed = allowed and answer is self.newest
            (self._may_ask.set if allowed else self._may_ask.clear)()

    @property
    def gone(self) -> bool:
        """Whether the driver has ended: nobody listens at its port any more."""
        since = self._refused_since
        return since is not None and time.monotonic() - since >= self._limits.gone_s

    def asked(self) -> bool:
        """Whether this slot is to ask, or does."""
        return self.asking or self._get(ASKED) is not None

    # --- which job this driver's is

    def identify(self, identity: Mapping[str, str]) -> None:
        """Let all other processes of this driver know the job; again and again until it has it."""
        self._identity = dict(identity)
        self._identity_due.set()
        self._publish_identity()

    def refuse(self, reason: str) -> None:
        """There will be no job: let nobody wait for it."""
        if self._identity is not None:
            return
        body = json.dumps({"refused": reason}).encode()
        deadline = time.monotonic() + self._limits.refuse_s
        while not self._put(IDENTITY, body) and time.monotonic() < deadline:
            time.sleep(self._limits.poll_s)

    def identity(self, timeout_s: float) -> dict[str, str] | None:
        """What :meth:`identify` was given in another process; None: nothing in time.

        Raises:
            EdlError: :meth:`refuse` was called.
        """
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
                continue  # who cannot find the job does not ask: no question would be answered
            if self._hosts_changed.is_set() and self._begins.is_set() and self._put(ASKED, b"1"):
                self._hosts_changed.clear()
            asked = self._get(ASKED) is not None
            if asked and self._may_ask.is_set() and self.answers:
                self.answers = self._ask()  # to ask again would count twice

    def _publish_identity(self) -> bool:
        """Put the identity into the driver's store unless it is there; whether it is."""
        if self._identity_due.is_set() and self._put(IDENTITY, json.dumps(self._identity).encode()):
            self._identity_due.clear()
        return not self._identity_due.is_set()

    def _ask(self) -> bool:
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
            self.newest = Answer(rank, local_size if rank >= 0 else None, size)
        if self._identity is not None:
            self.identify(self._identity)
        self._wake()
        return True

    def _get(self, path: str) -> bytes | None:
        return self._request(fetch, path)

    def _put(self, path: str, body: bytes) -> bool:
        return self._request(put, path, body) is not None

    def _request(self, method: Callable[..., tuple[int, bytes]], *words: Any) -> bytes | None:
        """The body of the answer, if that is a success. Every request may show the end."""
        try:
            status, body = method(self._slot.address, self._slot.port, *words, REQUEST_S)
        except ConnectionRefusedError:
            if self._refused_since is None:
                self._refused_since = time.monotonic()
            return None
        except (EdlError, OSError):
            return None  # it is busy, or cut off from here
        self._refused_since = None
        return body if status == 200 else None


def read_identity(address: str, port: int) -> dict[str, str] | None:
    """Which job the driver at that port has; None: it has none yet, or is no driver."""
    identity = _fetched(address, port)
    return identity if _is_identity(identity) else None


def _is_identity(identity: Mapping[str, str]) -> bool:
    return {"job", "secret", "zookeeper"} <= set(identity)


def _fetched(address: str, port: int) -> dict[str, str]:
    """What stands under IDENTITY; empty when nothing does."""
    try:
        status, body = fetch(address, port, IDENTITY, REQUEST_S)
        identity = json.loads(body) if status == 200 else None
    except (EdlError, OSError, ValueError):
        return {}
    return identity if isinstance(identity, dict) else {}
