"""Adapt kazoo's client and its log to what a session needs."""

from __future__ import annotations

import atexit
import logging
import math
import select
import socket
import sys
import threading
import time
from collections.abc import MutableMapping, Sequence
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Auth

logger = logging.getLogger(__name__)


class QuietLog(logging.LoggerAdapter[logging.Logger]):
    """A wrapper of kazoo's logger that logs all at DEBUG and hides passwords and keys."""

    def process(
        self, msg: Any, kwargs: MutableMapping[str, Any]
    ) -> tuple[Any, MutableMapping[str, Any]]:
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message `msg` at DEBUG, whatever its level, without the credentials of a job."""
        if level >= logging.DEBUG:  # below that, it shows the session's password
            shown = ("Auth(...)" if isinstance(one, Auth) else one for one in args)
            super().log(logging.DEBUG, msg, *shown, **kwargs)


_interrupted = threading.local()  # error: what a signal handler has raised in a send


class SignalSafeSocket:
    """The socket by which kazoo's client wakes its connection thread, for each request."""

    # kazoo takes every exception of `send` for the end of the connection, also the
    # KeyboardInterrupt of a signal handler: Ctrl-C would be lost. So it is kept, and `Client`
    # raises it.

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def send(self, data: bytes) -> int:
        try:
            return self._wrapped.send(data)
        except (KeyboardInterrupt, SystemExit) as error:  # the byte is sent by then, or the next is
            _interrupted.error = error
            return len(data)


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """The threads of kazoo's client, which wait for its sockets by one system call."""

    # kazoo makes and closes an epoll object for each wait, three a request: a third of the
    # processor time of a leader that reads.

    def start(self) -> None:
        # They are daemon threads. kazoo's exit handler would stop them before edl's closes the
        # session, and a SIGTERM to a worker would interrupt it, with a traceback.
        super().start()
        atexit.unregister(self.stop)

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait as select.select does; a socket whose connection is lost counts as ready."""
        if timeout is not None and timeout < 0:
            raise ValueError("timeout must be non-negative")
        events: dict[int, int] = {}
        for sockets, event in ((readers, select.POLLIN), (writers, select.POLLOUT)):
            for one in sockets:
                number = one if isinstance(one, int) else one.fileno()
                events[number] = events.get(number, 0) | event
        poll = select.poll()
        for number, event in events.items():
            poll.register(number, event)  # a ValueError if it is closed
        ready = dict(poll.poll(None if timeout is None else math.ceil(timeout * 1000)))
        if any(event & select.POLLNVAL for event in ready.values()):
            raise ValueError("a socket is closed")

        def those(sockets: Sequence[Any], other: int) -> list[Any]:
            numbers = ((one if isinstance(one, int) else one.fileno(), one) for one in sockets)
            return [one for number, one in numbers if ready.get(number, 0) & ~other]

        return those(readers, select.POLLOUT), those(writers, select.POLLIN), []


class Client(KazooClient):  # type: ignore[misc]
    """Kazoo's client, which also connects again to a ZooKeeper that has lost its data."""

    # A server refuses a client that has seen a newer transaction: it may only be behind. One that
    # lost its data would refuse for ever, and look as if it were away. So when the session must be
    # over, this client says that it has seen no transaction.

    granted_s: float | None = None  # the session time-out; None: there was no connection yet
    away_since: float | None = None  # on the monotonic clock; None while connected

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

    def _call(self, request: Any, async_object: Any) -> Any:
        answer = super()._call(request, async_object)
        # What SignalSafeSocket kept: the request is sent by now.
        error, _interrupted.error = getattr(_interrupted, "error", None), None
        if error is not None:
            raise error
        return answer

    def prove(self, credential: str) -> Any:
        return self.add_auth_async("digest", credential)


def shut_within(client: KazooClient, limit_s: float) -> None:
    if sys.is_finalizing():  # the collector ends an open session: no thread runs any more
        return
    # kazoo's stop() waits without limit, for a connection attempt and its threads.
    thread = threading.Thread(target=_shut, args=(client,), name="edl-zk-stop", daemon=True)
    try:
        thread.start()
    except RuntimeError:  # exit handlers of Python 3.12 start no thread
        _shut(client)
        return
    thread.join(limit_s)
    if thread.is_alive():
        # kazoo's own handler, which some clients have, would wait once more at the end of Python.
        atexit.unregister(client.handler.stop)


def _shut(client: KazooClient) -> None:
    """End the session of `client` and free its threads and sockets; by one thread at a time."""
    try:
        client.stop()
        client.close()
    # AttributeError: kazoo's own exit handler has closed the sockets meanwhile.
    except (KazooException, OSError, AttributeError) as error:
        logger.debug("while closing a ZooKeeper session: %s", error)
