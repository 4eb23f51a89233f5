"""Keep one ZooKeeper session open, with calls that answer or fail in bounded time.

kazoo reconnects in the background without end. Here a call waits ``request_timeout_s`` at most, for
each 250 requests that it sends, and then raises CoordinationError, so no thread hangs when
ZooKeeper is away. ``epoch`` tells one session from the next, as the ephemeral nodes of an earlier
one are gone. A session belongs to a job (``access``): all nodes that it creates are closed to
others. What kazoo says goes to the logger ``edl.zookeeper.kazoo`` at DEBUG, without keys.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Self

import kazoo.protocol.connection
import kazoo.retry
from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NoAuthError,
    NodeExistsError,
    NoNodeError,
    NotEmptyError,
    OperationTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
)
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.retry import KazooRetry

from edl.errors import AccessDenied, ConfigError, CoordinationError, ZooKeeperUnreachable
from edl.zookeeper.access import Access
from edl.zookeeper.kazoo_client import Client, QuietLog, shut_within
from edl.zookeeper.reads import (
    UNREADABLE,
    InOrder,
    Issue,
    WatchedReads,
    can_be_read_together,
    exists,
    read_together,
    watch_together,
)

logger = logging.getLogger(__name__)
CHANCE = random.Random()
"""For threads of ours: Python's shared generator is the script's, which may have seeded it.

kazoo draws its pauses from that, in its own thread: two scripts with `keras.utils.set_random_seed`
would begin with other weights, now and then.
"""

for _module in (kazoo.protocol.connection, kazoo.retry):
    _module.random = CHANCE

AWAY = (
    ConnectionLoss,
    ConnectionClosedError,
    SessionExpiredError,
    OperationTimeoutError,
    KazooTimeoutError,
)
BATCH = 250  # requests that are sent together: a time limit must be enough for all of them
_EXPIRING_S = 1.0  # until a client learns that its session is over
ANSWERS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
"""The errors of calls that ZooKeeper understood and refused; callers in this package catch them."""


class Refused(Exception):
    """The error of a transaction that changed nothing, because one of its operations failed."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"operation {index} failed: {type(error).__name__} {error}")
        self.index = index
        self.error = error

    def is_missing(self, index: int) -> bool:
        return self.index == index and isinstance(self.error, NoNodeError)


class Session:
    """A connection to ZooKeeper with one session at a time; a new session follows a lost one."""

    # Any thread may call the methods, but no listener may call ZooKeeper, and threads that create
    # nodes must agree on when `identify` is called: it decides to whom these are open.

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = 10.0,
        access: Access | None = None,
    ) -> None:
        self.hosts = hosts
        self.access = access
        self._identities = {} if access is None else {access: None}  # in order
        self.session_timeout_s = session_timeout_s
        self.connect_timeout_s = connect_timeout_s
        self.request_timeout_s = _request_timeout_s(session_timeout_s)
        self._client: Client | None = None
        self._epoch = 0
        self._lost = True
        self._closing = False
        self._is_shut = False  # the client; kazoo's must not be closed by two threads at once
        self._shutting = threading.Lock()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[str], None]] = []
        self._watched = WatchedReads()
        self._sending = threading.RLock()  # held while a thread sends, and during identify
        self._has_multi_read = True

    def start(self) -> None:
        if self._client is not None:
            raise CoordinationError("this session was started before; make a new one")
        try:
            client = Client(
                hosts=self.hosts,
                timeout=self.session_timeout_s,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
                command_retry=KazooRetry(max_tries=1),
                handler=InOrder(),
                logger=QuietLog(logging.getLogger("edl.zookeeper.kazoo"), {}),
                auth_data=None if self.access is None else {("digest", self.access.credential)},
                default_acl=None if self.access is None else self.access.acl,
            )
        except ValueError as error:
            raise ConfigError(
                "zookeeper", f"{self.hosts!r} is not a list of host:port: {error}"
            ) from error
        client.add_listener(self._on_state)
        self._client = client
        if not client.start_async().wait(self.connect_timeout_s):
            self._closing = True
            self._shut_once(0.0)
            raise ZooKeeperUnreachable(self.hosts, self.connect_timeout_s)
        with self._changed:
            self._changed.wait_for(lambda: self._epoch > 0, self.connect_timeout_s)

    def close(self) -> None:
        """End the session and its ephemeral nodes; listeners are not called. Idempotent."""
        self._closing = True
        with self._changed:
            self._changed.notify_all()
        self._shut_once(self.request_timeout_s)

    def _shut_once(self, limit_s: float) -> None:
        with self._shutting:
            if self._client is not None and not self._is_shut:
                self._is_shut = True
                shut_within(self._client, limit_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client(self) -> Client:
        """The kazoo client; its calls may block for long, and raise kazoo's errors."""
        if self._client is None:
            raise CoordinationError("the ZooKeeper session has not been started")
        return self._client

    @property
    def connected(self) -> bool:
        return not self._closing and self._client is not None and bool(self._client.connected)

    @property
    def granted_s(self) -> float:
        granted = None if self._client is None else self._client.granted_s
        return self.session_timeout_s if granted is None else granted

    def ask_for(self, session_timeout_s: float) -> None:
        """Ask ZooKeeper for another session time-out when the next session begins, in seconds."""
        self.session_timeout_s = session_timeout_s
        self.request_timeout_s = _request_timeout_s(session_timeout_s)
        self.client._session_timeout = int(session_timeout_s * 1000)

    @property
    def epoch(self) -> int:
        """The number of sessions opened so far: 0 before start(), then 1, and 1 more per loss."""
        return self._epoch

    @property
    def session_id(self) -> int:
        """The id that ZooKeeper gave the current session; 0 while not connected."""
        identity = self.client.client_id
        return int(identity[0]) if identity and identity[0] else 0

    def expire(self) -> None:
        """Make ZooKeeper end the present session, as after a long silence; for chaos tests."""
        identity = self.client.client_id
        if not self.connected or not identity:
            raise CoordinationError("there is no session to expire: ZooKeeper is away")
        epoch, deadline = self._epoch, time.monotonic() + self.connect_timeout_s
        while time.monotonic() < deadline:
            # A client with a session's id and password may take the session over and close it,
            # unless the owner, whose connection that breaks, takes it back first.
            twin = KazooClient(self.hosts, timeout=self.session_timeout_s, client_id=identity)
            if not twin.start_async().wait(self.connect_timeout_s):
                shut_within(twin, 0.0)
                raise ZooKeeperUnreachable(self.hosts, self.connect_timeout_s)
            shut_within(twin, self.request_timeout_s)
            if self._has_ended(epoch):
                return
        raise CoordinationError(f"the session did not end within {self.connect_timeout_s:g} s")

    def _has_ended(self, epoch: int) -> bool:
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or self._lost or self._epoch != epoch, _EXPIRING_S
            )

    def identify(self, *known: Access) -> None:
        """Prove secrets of jobs to ZooKeeper; the last one closes what is created from now on."""
        if not known:
            return
        with self._alone(time.monotonic() + self.request_timeout_s):
            new = [access for access in known if access not in self._identities]
            proofs = [partial(Client.prove, credential=access.credential) for access in new]
            if proofs:
                # ZooKeeper answers a proof before earlier requests, and kazoo takes that for the
                # answer to the oldest one, which ends its thread. So all earlier requests are
                # awaited, which are answered in order.
                self.call("authenticate", exists("/"), repeat=True)
                self._answers_to("authenticate", proofs, (), repeat=True)
            self._identities.update(dict.fromkeys(new))
            self.access, self.client.default_acl = known[-1], known[-1].acl

    @contextmanager
    def _alone(self, deadline: float) -> Iterator[None]:
        """Let no other thread send a request while the body of the `with` statement runs."""
        if not self._sending.acquire(timeout=max(0.0, deadline - time.monotonic())):
            raise CoordinationError(
                f"the ZooKeeper session at {self.hosts} is busy: another thread of this process "
                f"has been proving secrets for {self.request_timeout_s:g} s; try again"
            )
        try:
            yield
        finally:
            self._sending.release()

    @property
    def identities(self) -> tuple[Access, ...]:
        return tuple(self._identities)

    def add_listener(self, fn: Callable[[str], None]) -> None:
        """Call `fn(state)` whenever the connection becomes "connected", "suspended" or "lost"."""
        # On kazoo's connection thread: it must return at once and not call ZooKeeper. All watches
        # have fired and are gone on a loss.
        self._listeners.append(fn)

    def call(self, what: str, issue: Issue, repeat: bool = False) -> Any:
        """Send one request and return its answer, or raise an error after `request_timeout_s`."""
        # `repeat`: send it again if the connection breaks, as doing it twice does no harm.
        return self._answers_to(what, (issue,), (), repeat)[0]

    def read_all(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        """Send several reads together; return their answers in order, None for a missing node."""
        ask = partial(self._answers_to, what, absent=(NoNodeError,), repeat=True)
        return self._watched.answers(issues, ask)

    def read_open(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        """As `read_all`, with None for nodes closed to this session, too; no answer is kept."""
        return self._answers_to(what, issues, (NoNodeError, NoAuthError), True)

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        def issue(client: KazooClient) -> Any:
            transaction = client.transaction()
            build(transaction)
            return transaction.commit_async()

        results: list[Any] = self.call(what, issue)
        for index, result in enumerate(results):
            if isinstance(result, NoAuthError):
                raise self._denied(what)
            if isinstance(result, Exception) and not isinstance(
                result, (RolledBackError, RuntimeInconsistency)
            ):
                raise Refused(index, result)
        return results

    def _answers_to(
        self,
        what: str,
        issues: Sequence[Issue],
        absent: tuple[type[Exception], ...],
        repeat: bool,
    ) -> list[Any]:
        answers: list[Any] = []
        for begin in range(0, max(1, len(issues)), BATCH):  # without requests: is it connected?
            batch = issues[begin : begin + BATCH]
            answers += self._answers_to_batch(what, batch, absent, repeat)
        return answers

    def _answers_to_batch(
        self,
        what: str,
        issues: Sequence[Issue],
        absent: tuple[type[Exception], ...],
        repeat: bool,
    ) -> list[Any]:
        deadline = time.monotonic() + self.request_timeout_s
        while True:
            client = self._await_connection(what, deadline)
            try:
                if self._has_multi_read and can_be_read_together(issues):
                    found = self._answers_to_one(client, issues, absent, deadline)
                    if found is not None:
                        return found
                with self._alone(deadline):
                    pending = [issue(client) for issue in issues]
                return [self._answer(one, absent, deadline) for one in pending]
            except ANSWERS:
                raise
            except NoAuthError:
                raise self._denied(what) from None
            except AWAY as error:
                if not repeat or isinstance(error, KazooTimeoutError) or self._closing:
                    raise CoordinationError(
                        f"cannot {what}: ZooKeeper at {self.hosts} did not answer "
                        f"({type(error).__name__}); check `edl zookeeper status`"
                    ) from error
            except KazooException as error:
                raise CoordinationError(
                    f"cannot {what}: ZooKeeper answered {type(error).__name__} {error}"
                ) from error

    def _answers_to_one(
        self,
        client: KazooClient,
        issues: Sequence[Any],
        absent: tuple[type[Exception], ...],
        deadline: float,
    ) -> list[Any] | None:
        """Send reads as one request, and return their answers; None: by many, from now on."""
        with self._alone(deadline):
            # Until it has answered: an old server may do anything at such a request.
            self._has_multi_read = False
            zxid = client.last_zxid
            pending = read_together(client, issues)
        try:
            found = self._answer(pending, (), deadline)
            with self._alone(deadline):
                watched = watch_together(client, issues, found, zxid)
            if watched is not None:
                self._answer(watched, (), deadline)
        except UNREADABLE:
            return None
        self._has_multi_read = True
        for place, answer in enumerate(found):
            if isinstance(answer, absent):
                found[place] = None
            elif isinstance(answer, Exception):
                raise answer
        return list(found)

    def _denied(self, what: str) -> AccessDenied:
        mine = self.access
        why = "this process has none" if mine is None else "that of this process is another"
        name = "" if mine is None else mine.job
        return AccessDenied(name, f"cannot {what}: it is closed by the job's secret, and {why}")

    @staticmethod
    def _answer(pending: Any, absent: tuple[type[Exception], ...], deadline: float) -> Any:
        try:
            return pending.get(timeout=max(0.001, deadline - time.monotonic()))
        except absent:
            return None

    def _await_connection(self, what: str, deadline: float) -> KazooClient:
        client = self.client
        if not self.connected:
            with self._changed:
                self._changed.wait_for(
                    lambda: self._closing or bool(client.connected), deadline - time.monotonic()
                )
        if self._closing:
            raise CoordinationError(f"cannot {what}: the ZooKeeper session is closed")
        if not client.connected:
            raise CoordinationError(
                f"cannot {what}: there is no connection to ZooKeeper at {self.hosts}; waited "
                f"{self.request_timeout_s:g} s, it is tried again in the background"
            )
        return client

    def _on_state(self, state: str) -> None:
        if self._closing:
            return
        connected, client = state == KazooState.CONNECTED, self.client
        with self._changed:
            if connected:
                client.away_since = None
            elif client.away_since is None:
                client.away_since = time.monotonic()
            if state == KazooState.LOST:
                self._lost = True
            elif connected and self._lost:
                self._lost = False
                self._epoch += 1
            self._changed.notify_all()
        logger.info("ZooKeeper session %d is %s", self._epoch, _STATES[state])
        for listener in list(self._listeners):
            listener(_STATES[state])


_STATES: Mapping[str, str] = {
    KazooState.CONNECTED: "connected",
    KazooState.SUSPENDED: "suspended",
    KazooState.LOST: "lost",
}


def _request_timeout_s(session_timeout_s: float) -> float:
    return max(1.0, min(session_timeout_s, 5.0))


# ------------------------------------------------------------
# Tell the time by ZooKeeper's clock, which all leaders share, not by their hosts'.


class ZooKeeperClock:
    """A clock that was set once by a time stamp of ZooKeeper, and then counts on by itself."""

    # Ahead of ZooKeeper's clock by at most the time of the write: no later stamp is in its future.
    # Monotonic: a step of the host's clock does not change it.

    def __init__(
        self, stamp_s: float, asked_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ahead_s = stamp_s - asked_s
        self._monotonic = monotonic

    def now_s(self) -> float:
        return self._ahead_s + self._monotonic()
