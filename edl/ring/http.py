"""The one HTTP port of a worker's daemon: rendezvous, health, and what others hang onto it.

Serves, on its own thread with an asyncio loop:

- ``/<scope>:<port>/<horovod scope>/<key>``: the rendezvous store (see :mod:`edl.ring.rendezvous`);
- ``GET /health``: JSON from a callable;
- further path prefixes, added with :meth:`DaemonServer.add_route`.

One request a connection, HTTP/1.1, origin-form or absolute-form target, bodies by
Content-Length. Whatever is malformed, too large or too slow is answered 4xx and closed; no
request can raise in the loop. It listens with a deep backlog: all ranks of a ring connect at once.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httptools

from edl.errors import RingError
from edl.ring.rendezvous import RendezvousStore

logger = logging.getLogger(__name__)

BACKLOG = 1024  # Horovod's own server has 5, and its clients retry after 1 s and 3 s (facts.md)
TARGET_BYTES = 8 << 10
HEADER_BYTES = 32 << 10
BODY_BYTES = 16 << 20
REQUEST_S = 30.0  # for a request to arrive completely
CLOSE_S = 5.0  # for the thread to end

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    410: "Gone",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}
_RENDEZVOUS = re.compile(r"/([^/:]+):\d+/(.+)")


@dataclass(frozen=True)
class Request:
    """A complete HTTP request. ``path`` as sent, without query; nothing is percent-decoded."""

    method: str
    path: str
    query: str
    body: bytes


Handler = Callable[[Request], tuple[int, bytes]]
"""Answers a request with status and body. Runs on the loop, so it must not block."""


class DaemonServer:
    """The HTTP server of one worker. A context manager, or ``start()`` and ``close()``."""

    def __init__(
        self,
        address: str,
        port: int = 0,
        health: Callable[[], Mapping[str, Any]] | None = None,
        store: RendezvousStore | None = None,
    ) -> None:
        self.address = address
        self.store = store or RendezvousStore()
        self._wanted_port = port
        self._health = health
        self._routes: dict[str, tuple[Handler, str]] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._connections: set[_Connection] = set()
        if health is not None:
            self.add_route("/health", self._answer_health, "application/json")

    def start(self) -> None:
        """Listen on ``address`` only, and serve until :meth:`close`.

        Raises:
            RingError: the address or the port cannot be listened on.
        """
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.address, self._wanted_port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            raise RingError(
                f"cannot listen on {self.address}:{self._wanted_port}: {error.strerror}; "
                "check EDL_ADDRESS, it must be an address of this machine"
            ) from error
        self._socket = listener
        self._loop = asyncio.new_event_loop()
        ready = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(self._loop, listener, ready), name="edl-http", daemon=True
        )
        self._thread.start()
        if not ready.wait(CLOSE_S):
            raise RingError(f"the HTTP server of {self.address} did not start in {CLOSE_S:g} s")

    def close(self) -> None:
        """Tell everyone held that their scope is gone, and stop. Idempotent."""
        loop, thread, self._thread = self._loop, self._thread, None
        if loop is None or thread is None:
            return
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def port(self) -> int:
        """The port that is listened on; 0 before start()."""
        return int(self._socket.getsockname()[1]) if self._socket and self._thread else 0

    def add_route(
        self, prefix: str, handler: Handler, content_type: str = "application/json"
    ) -> None:
        """Let ``handler`` answer ``prefix`` and every path below it. The longest prefix wins."""
        self._routes = {**self._routes, prefix.rstrip("/"): (handler, content_type)}

    def close_scope(self, scope: str) -> None:
        """Give up a rendezvous: those who are held in it, and latecomers, are told 410.

        From any thread; returns at once.
        """
        self._in_loop(lambda: self.store.close(scope))

    # --- on the loop's thread

    def _in_loop(self, function: Callable[[], None]) -> None:
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:
                logger.debug("the HTTP server closed meanwhile")

    def _serve(
        self, loop: asyncio.AbstractEventLoop, listener: socket.socket, ready: threading.Event
    ) -> None:
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            loop.create_server(lambda: _Connection(self, loop), sock=listener, backlog=BACKLOG)
        )
        loop.call_soon(ready.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            loop.run_until_complete(self._say_goodbye())
            loop.close()

    async def _say_goodbye(self) -> None:
        """Answer those who are held, then drop every connection."""
        self.store.close_all()
        tasks = asyncio.all_tasks() - {asyncio.current_task()}
        if tasks:
            await asyncio.wait(tasks, timeout=CLOSE_S / 5)
        for connection in list(self._connections):
            connection.close()
        for _ in range(10):  # closing a transport takes a few turns of the loop
            await asyncio.sleep(0)
        for connection in list(self._connections):
            connection.abort()
        await asyncio.sleep(0)

    async def answer(self, request: Request) -> tuple[int, bytes, str]:
        """Status, body and content type for a request."""
        route = self._route(request.path)
        if route is not None:
            handler, content_type = route
            try:
                status, body = handler(request)
            except Exception:
                logger.exception("the handler of %s failed", request.path)
                return 500, b"", content_type
            return status, body, content_type
        match = _RENDEZVOUS.fullmatch(request.path)
        status, body = (
            (404, b"") if match is None else await self._rendezvous(request, *match.groups())
        )
        return status, body, "application/octet-stream"

    async def _rendezvous(self, request: Request, scope: str, key: str) -> tuple[int, bytes]:
        if request.method == "GET":
            return await self.store.get(scope, key)
        if request.method == "PUT":
            return self.store.put(scope, key, request.body), b""
        if request.method == "DELETE":
            return self.store.delete(scope, key), b""
        return 405, b""

    def _route(self, path: str) -> tuple[Handler, str] | None:
        prefix = path.rstrip("/")
        while prefix:
            if prefix in self._routes:
                return self._routes[prefix]
            prefix = prefix.rpartition("/")[0]
        return None

    def _answer_health(self, request: Request) -> tuple[int, bytes]:
        if request.method != "GET":
            return 405, b""
        assert self._health is not None
        return 200, json.dumps(self._health()).encode() + b"\n"


class _TooLarge(Exception):
    def __init__(self, status: int) -> None:
        self.status = status


class _Connection(asyncio.Protocol):
    """One connection: one request, one answer, closed. The names on_* are httptools'."""

    def __init__(self, server: DaemonServer, loop: asyncio.AbstractEventLoop) -> None:
        self._server = server
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._header_bytes = 0
        self._body = bytearray()
        self._complete = False
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(REQUEST_S, self._too_slow)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server._connections.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        self._server._connections.discard(self)
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        if self._complete:
            return  # more than one request: the first is answered, then we close
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400)
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._refuse(cause.status if isinstance(cause, _TooLarge) else 400)

    def on_url(self, part: bytes) -> None:
        self._target += part
        if len(self._target) > TARGET_BYTES:
            raise _TooLarge(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._header_bytes += len(name) + len(value)
        if self._header_bytes > HEADER_BYTES:
            raise _TooLarge(431)
        if name.lower() == b"content-length" and value.isdigit() and int(value) > BODY_BYTES:
            raise _TooLarge(413)

    def on_body(self, part: bytes) -> None:
        self._body += part
        if len(self._body) > BODY_BYTES:
            raise _TooLarge(413)

    def on_message_complete(self) -> None:
        if self._complete:
            return
        if not self._parser.get_http_version().startswith("1."):
            self._refuse(400)
            return
        self._complete = True
        self._timer.cancel()
        path, _, query = _origin_form(self._target.decode("latin-1")).partition("?")
        method = self._parser.get_method().decode("latin-1")
        request = Request(method, path, query, bytes(self._body))
        self._task = self._loop.create_task(self._answer(request))

    async def _answer(self, request: Request) -> None:
        status, body, content_type = await self._server.answer(request)
        self._send(status, body, content_type, head=request.method == "HEAD")

    def _refuse(self, status: int) -> None:
        if self._task is None:
            self._complete = True
            self._send(status, b"", "text/plain")

    def _too_slow(self) -> None:
        self._refuse(408)

    def _send(self, status: int, body: bytes, content_type: str, head: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        lines = (
            f"HTTP/1.1 {status} {_PHRASES.get(status, 'Unknown')}\r\n"
            f"Content-Length: {len(body)}\r\nContent-Type: {content_type}\r\n"
            "Connection: close\r\n\r\n"
        )
        self._transport.write(lines.encode("latin-1") + (b"" if head else body))
        self._transport.close()


def _origin_form(target: str) -> str:
    """The path of a target that may be absolute: "http://host:port/path" -> "/path"."""
    if target.startswith("/"):
        return target
    _, scheme, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme else target
