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
        """Return the message `msg` and the arguments `kwargs` of a log call unchanged."""
        return msg, kwargs

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log the message `msg` at DEBUG, whatever its level, without the credentials of a job."""
        # Messages below DEBUG are dropped, because they show the session's password.
        if level >= logging.DEBUG:  # below that, it shows the session's password
            shown = ("Auth(...)" if isinstance(one, Auth) else one for one in args)
            super().log(logging.DEBUG, msg, *shown, **kwargs)


_interrupted = threading.local()  # error: what a signal handler has raised in a send


class SignalSafeSocket:
    """The socket by which kazoo's client wakes its connection thread, for each request."""

    # kazoo takes every exception of `send` for the end of the connection, also one that a signal
    # handler raises there, such as KeyboardInterrupt: Ctrl-C would be lost.

    def __init__(self, wrapped: socket.socket) -> None:
        self._wrapped = wrapped

    def __getattr__(self, name: str) -> Any:
        return getattr(self._wrapped, name)

    def send(self, data: bytes) -> int:
        """Send `data`; return how many bytes were sent."""
        try:
            return self._wrapped.send(data)
        except (KeyboardInterrupt, SystemExit) as error:  # the byte is sent by then, or the next is
            _interrupted.error = error
            return len(data)


class PollHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """The threads of kazoo's client, which wait for its sockets by one system call."""

    # They are daemon threads, and a process that ends with an open session does not wait for them.
    # kazoo's own exit handler does: it would stop them before edl's exit handler closes the
    # session, and a SIGTERM to a worker would interrupt it, with a traceback.

    def start(self) -> None:
        """Start the threads; a second call before `stop` does nothing."""
        super().start()
        atexit.unregister(self.stop)

    def select(
        self,
        readers: Sequence[Any],
        writers: Sequence[Any],
        others: Sequence[Any],
        timeout: float | None = None,
    ) -> tuple[list[Any], list[Any], list[Any]]:
        """Wait until a socket can be read or written, and return that can, as select.select does"""
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

    # An emptied server would refuse the client for ever, and look as if it were away. So when the
    # session must be over by its time-out, this client says that it has seen no transaction.

    granted_s: float | None = None  # the session time-out; None: there was no connection yet
    # When the connection was lost, on the monotonic clock; None while connected
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
        """The id of the newest transaction that this client has seen, as it tells the server."""
        away_since = self.away_since
        lasts_s = math.inf if self.granted_s is None else self.granted_s
        if away_since is not None and time.monotonic() - away_since > lasts_s:
            return 0
        return self._last_zxid

    @last_zxid.setter
    def last_zxid(self, zxid: int) -> None:
        self._last_zxid = zxid

    def _call(self, request: Any, async_object: Any) -> Any:
        """Send `request` by kazoo, and return kazoo's answer."""
        answer = super()._call(request, async_object)
        error, _interrupted.error = getattr(_interrupted, "error", None), None
        if error is not None:
            raise error
        return answer

    def prove(self, credential: str) -> Any:
        """Begin to prove an identity, "user:password"; return kazoo's pending result at once."""
        return self.add_auth_async("digest", credential)


def shut_within(client: KazooClient, limit_s: float) -> None:
    """Stop and close `client` in a thread of its own; wait at most `limit_s` seconds."""
    if sys.is_finalizing():  # the collector ends an open session: no thread runs any more
        return
    thread = threading.Thread(target=_shut, args=(client,), name="edl-zk-stop", daemon=True)
    try:
        thread.start()
    except RuntimeError:
        _shut(client)
        return
    thread.join(limit_s)
    if thread.is_alive():
        # kazoo's own handler, which some clients have, would wait once more at the end of Python.
        atexit.unregister(client.handler.stop)


def _shut(client: KazooClient) -> None:
    """End the session of `client` and free its threads and sockets, connected or not."""
    try:
        client.stop()
        client.close()
    except (KazooException, OSError) as error:
        logger.debug("while closing a ZooKeeper session: %s", error)
