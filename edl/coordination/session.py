"""One ZooKeeper session, kept alive for ever, whose calls answer or fail in bounded time.

kazoo reconnects in the background without an end. What it does not do, and this module adds:

- a call never waits longer than ``request_timeout_s`` and raises CoordinationError, so no thread
  of ours hangs on a ZooKeeper that is away;
- a ZooKeeper that has lost what it knew is found again (:class:`_Client`);
- ``epoch`` tells one session from the next: ephemeral nodes of an earlier one are gone;
- a session belongs to a job (``access``): all that it creates is closed to everybody else.

Logging: kazoo reports every lost connection as a warning; through this module all that it says
goes to the logger ``edl.coordination.kazoo`` at DEBUG, without keys. The levels are the
application's choice.
"""

from __future__ import annotations

import atexit
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Mapping, MutableMapping, Sequence
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
from kazoo.protocol.serialization import Auth
from kazoo.retry import KazooRetry

from edl.coordination.access import Access
from edl.coordination.reads import Issue
from edl.coordination.watched_reads import InOrder, WatchedReads
from edl.errors import AccessDenied, ConfigError, CoordinationError, ZooKeeperUnreachable

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
_EXPIRING_S = 1.0  # until a client learns that its session is over
ANSWERS = (NoNodeError, NodeExistsError, BadVersionError, NotEmptyError)
"""What ZooKeeper may answer to a call that it understood; the callers in this package handle it."""


class Refused(Exception):
    """A transaction changed nothing: its operation number ``index`` failed with ``error``."""

    def __init__(self, index: int, error: Exception) -> None:
        super().__init__(f"operation {index} failed: {type(error).__name__} {error}")
        self.index = index
        self.error = error


class _QuietLog(logging.LoggerAdapter[logging.Logger]):
    """Passes on what kazoo logs, at DEBUG, but nothing that opens a job or a session."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        if level >= logging.DEBUG:  # below that, it shows the session's password
            shown = ("Auth(...)" if isinstance(one, Auth) else one for one in args)
            super().log(logging.DEBUG, msg, *shown, **kwargs)


class _Client(KazooClient):  # type: ignore[misc]
    """Kazoo's client, which finds a ZooKeeper again that has come back empty.

    A server sends a client away that has seen more than itself, for it may only be behind. An
    emptied one would do so for ever, and look as if it were away. So when the session is over for
    all we know, the client has seen nothing.
    """

    granted_s: float | None = None  # the session time-out; None: there was no connection yet
    away_since: float | None = None

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        connect = self._connection._connect

        def connect_and_note(*server: Any) -> tuple[float, float]:
            # kazoo keeps nothing of what was granted but this part of it, in milliseconds.
            read_timeout_ms, connect_timeout_ms = connect(*server)
            self.granted_s = round(read_timeout_ms * 1.5) / 1000.0
            return read_timeout_ms, connect_timeout_ms

        self._connection._connect = connect_and_note

    @property
    def last_zxid(self) -> int:
        away_since = self.away_since
        lasts_s = math.inf if self.granted_s is None else self.granted_s
        if away_since is not None and time.monotonic() - away_since > lasts_s:
            return 0
        return self._last_zxid

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        self._last_zxid = zxid


class Session:
    """One session at a time with the ZooKeeper at ``hosts`` ("host:port,host:port/chroot").

    Use it as a context manager, or ``start()`` and ``close()``. All methods may be called from
    any thread, except that a listener must not call ZooKeeper.

    ``access``: the job that it belongs to. Without one it can list the jobs and nothing more,
    until :meth:`identify`.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_s: float = 6.0,
        connect_timeout_s: float = 10.0,
        access: Access | None = None,
    ) -> None:
        self.hosts = hosts
        self.access = access
        self.session_timeout_s = session_timeout_s
        self.connect_timeout_s = connect_timeout_s
        self.request_timeout_s = max(1.0, min(session_timeout_s, 5.0))
        self._client: _Client | None = None
        self._epoch = 0
        self._lost = True
        self._closing = False
        self._is_shut = False  # the client; kazoo's does not bear to be closed twice at once
        self._shutting = threading.Lock()
        self._changed = threading.Condition()
        self._listeners: list[Callable[[str], None]] = []
        self._watched = WatchedReads()

    def start(self) -> None:
        """Open the session.

        Raises:
            ZooKeeperUnreachable: no server answered within ``connect_timeout_s``.
            ConfigError: ``hosts`` cannot be read.
        """
        if self._client is not None:
            raise CoordinationError("this session was started before; make a new one")
        try:
            client = _Client(
                hosts=self.hosts,
                timeout=self.session_timeout_s,
                connection_retry=KazooRetry(max_tries=-1, delay=0.05, max_delay=1.0),
                command_retry=KazooRetry(max_tries=1),
                handler=InOrder(),
                logger=_QuietLog(logging.getLogger("edl.coordination.kazoo"), {}),
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
        """End the session; its ephemeral nodes go with it. Listeners are not told. Idempotent."""
        self._closing = True
        with self._changed:
            self._changed.notify_all()
        self._shut_once(self.request_timeout_s)

    def _shut_once(self, limit_s: float) -> None:
        """Stop and close the client; another thread that closes it meanwhile is waited for."""
        with self._shutting:
            if self._client is not None and not self._is_shut:
                self._is_shut = True
                _shut_within(self._client, limit_s)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def client(self) -> _Client:
        """kazoo's client. Its own calls may block long and raise kazoo's errors."""
        if self._client is None:
            raise CoordinationError("the ZooKeeper session has not been started")
        return self._client

    @property
    def connected(self) -> bool:
        """False while SUSPENDED or LOST, before start() and after close()."""
        return not self._closing and self._client is not None and bool(self._client.connected)

    @property
    def granted_s(self) -> float:
        """The session time-out that ZooKeeper has granted; before that, what is asked for.

        A server grants what its ``minSessionTimeout`` and ``maxSessionTimeout`` allow.
        """
        granted = None if self._client is None else self._client.granted_s
        return self.session_timeout_s if granted is None else granted

    @property
    def epoch(self) -> int:
        """How many sessions were opened: 1 after start(), one more after each LOST."""
        return self._epoch

    @property
    def session_id(self) -> int:
        """ZooKeeper's id of the current session; 0 while not connected."""
        identity = self.client.client_id
        return int(identity[0]) if identity and identity[0] else 0

    def expire(self) -> None:
        """Have ZooKeeper end the present session, as if it had been silent too long (for chaos).

        Raises:
            CoordinationError: there is no connection, or ZooKeeper did not answer.
        """
        identity = self.client.client_id
        if not self.connected or not identity:
            raise CoordinationError("there is no session to expire: ZooKeeper is away")
        epoch, deadline = self._epoch, time.monotonic() + self.connect_timeout_s
        while time.monotonic() < deadline:
            # Who knows a session's id and password may take it over, and close it; unless its
            # owner, whose connection that breaks, was faster in taking it back.
            twin = KazooClient(self.hosts, timeout=self.session_timeout_s, client_id=identity)
            if not twin.start_async().wait(self.connect_timeout_s):
                _shut_within(twin, 0.0)
                raise ZooKeeperUnreachable(self.hosts, self.connect_timeout_s)
            _shut_within(twin, self.request_timeout_s)
            if self._has_ended(epoch):
                return
        raise CoordinationError(f"the session did not end within {self.connect_timeout_s:g} s")

    def _has_ended(self, epoch: int) -> bool:
        """Whether that session is over; waits for it, briefly."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._closing or self._lost or self._epoch != epoch, _EXPIRING_S
            )

    def identify(self, *known: Access) -> None:
        """Prove to know the secrets of further jobs; it may read and write them from now on.

        What the session creates is closed to all but those who know the last one.

        Raises:
            CoordinationError: ZooKeeper is away.
        """
        for access in known:
            self.call("authenticate", partial(_prove, access=access), repeat=True)
            self.access, self.client.default_acl = access, access.acl

    def add_listener(self, fn: Callable[[str], None]) -> None:
        """Call ``fn`` with "connected", "suspended" or "lost" whenever that changes.

        ``fn`` runs on kazoo's connection thread: it must return at once and must not call
        ZooKeeper. On every loss of the connection all watches fire and are gone, so read again
        on "connected".
        """
        self._listeners.append(fn)

    def call(self, what: str, issue: Issue, repeat: bool = False) -> Any:
        """The answer to one request, within ``request_timeout_s``.

        While the connection is away it is waited for. ``repeat``: the request may be sent again
        when the connection broke under it, because doing it twice does no harm.

        Raises:
            CoordinationError: ZooKeeper is away; whether a request that was sent took effect
                is then unknown. Or it answered with an error that nobody expects.
            AccessDenied: the node belongs to a job whose secret this session does not know.
            NoNodeError, NodeExistsError, BadVersionError, NotEmptyError: kazoo's, as answered.
        """
        return self._settle(what, (issue,), (), repeat)[0]

    def read_all(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        """The answers to several reads, sent together; None where the node does not exist.

        A read with a ``wake`` is sent once until that is called.

        Raises:
            AccessDenied, CoordinationError: as in :meth:`call`.
        """
        ask = partial(self._settle, what, absent=(NoNodeError,), repeat=True)
        return self._watched.answers(issues, ask)

    def read_open(self, what: str, issues: Sequence[Issue]) -> list[Any]:
        """As :meth:`read_all`; None also where the node is closed to this session."""
        return self._settle(what, issues, (NoNodeError, NoAuthError), True)

    def transact(self, what: str, build: Callable[[TransactionRequest], None]) -> list[Any]:
        """Do all operations that ``build`` adds, or none; the results in order.

        Raises:
            Refused: an operation failed, so nothing was done.
            AccessDenied, CoordinationError: as in :meth:`call`.
        """

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

    def _settle(
        self,
        what: str,
        issues: Sequence[Issue],
        absent: tuple[type[Exception], ...],
        repeat: bool,
    ) -> list[Any]:
        deadline = time.monotonic() + self.request_timeout_s
        while True:
            client = self._await_connection(what, deadline)
            pending = [issue(client) for issue in issues]
            try:
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
        """On kazoo's connection thread."""
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


def _prove(client: KazooClient, access: Access) -> Any:
    return client.add_auth_async("digest", access.credential)


def _shut_within(client: KazooClient, limit_s: float) -> None:
    """Stop and close, but leave it behind after ``limit_s``.

    kazoo's stop() waits for a connection attempt under way, and for its threads without limit.
    """
    thread = threading.Thread(target=_shut, args=(client,), name="edl-zk-stop", daemon=True)
    thread.start()
    thread.join(limit_s)
    if thread.is_alive():
        atexit.unregister(client.handler.stop)  # it would wait once more, at the end of Python


def _shut(client: KazooClient) -> None:
    """End the session of ``client`` and free its threads and sockets, connected or not.

    Errors are logged. kazoo's client allows this in one thread only.
    """
    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        logger.debug("while closing a ZooKeeper session: %s", error)
