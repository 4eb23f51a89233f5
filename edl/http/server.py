"""Serve the one HTTP port of a worker's daemon: its health, and further paths that are added to it.

The server runs on its own thread with an asyncio loop. Requests that change anything need a
signature (see :mod:`edl.http.signing`). Its socket has a long backlog (queue of connections that
are not accepted yet), because all ranks of a ring connect at once.
"""

from __future__ import annotations

import asyncio
import errno
import http.client
import io
import ipaddress
import json
import logging
import socket
import threading
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

import httptools

from edl.errors import RingError
from edl.http.signing import SCHEME, Authenticator

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Handle one HTTP/1.1 connection to a daemon's port: one request, one answer, then close.
#
# `Connection` does it, for `DaemonServer`. The target of a request may be a path or a whole URL;
# the length of a body is its Content-Length. A request that is malformed, too large or too slow is
# answered with a status 4xx, and the connection is closed. No request can raise an error in the
# event loop.

TARGET_BYTES = 8 << 10
HEADER_BYTES = 32 << 10
BODY_BYTES = 16 << 20
REQUEST_S = 30.0  # for a request to arrive completely


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str  # as it was sent, without the query; nothing is percent-decoded
    query: str  # after the first "?"; empty without one
    body: bytes
    authorization: str = ""  # the header; empty without one
    accept: str = ""  # likewise

    @property
    def target(self) -> str:
        return f"{self.path}?{self.query}" if self.query else self.path


@dataclass(frozen=True)
class Response:
    status: int
    body: bytes = b""
    content_type: str = "application/octet-stream"
    nonce: str = ""  # with a 401: to sign the request with; empty: none


class _TooLarge(Exception):
    def __init__(self, status: int) -> None:
        self.status = status  # 413, 414 or 431


class Connection(asyncio.Protocol):
    """One open connection to a daemon's port; on_* are callbacks of the parser (httptools)."""

    def __init__(
        self,
        respond: Callable[[HttpRequest], Awaitable[Response]],
        open_: set[Connection],
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self._respond = respond
        self._open = open_
        self._loop = loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._target = b""
        self._header_bytes = 0
        self._room = TARGET_BYTES + HEADER_BYTES  # bytes that may still arrive
        self._authorization = self._accept = b""
        self._body = bytearray()
        self._complete = False
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(REQUEST_S, self._refuse, 408)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._open.add(self)

    def connection_lost(self, error: Exception | None) -> None:
        """Remove this connection from the open ones, and cancel the answer to its request."""
        self._open.discard(self)
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def close(self) -> None:
        """Close once the written bytes are sent; an answer not written yet is never sent."""
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
            # httptools keeps a header, or a trailer, until it is complete, so nothing above
            # notices one that is endless.
            self._room -= len(data)
            if self._room < 0 and not self._complete:
                self._refuse(431)
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
        if name.lower() == b"authorization":
            self._authorization = value
        if name.lower() == b"accept":
            self._accept = value
        if name.lower() == b"content-length" and value.isdigit() and int(value) > BODY_BYTES:
            raise _TooLarge(413)

    def on_headers_complete(self) -> None:
        self._room += BODY_BYTES

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
        given, accept = self._authorization.decode("latin-1"), self._accept.decode("latin-1")
        request = HttpRequest(method, path, query, bytes(self._body), given, accept)
        self._task = self._loop.create_task(self._answer(request))

    async def _answer(self, request: HttpRequest) -> None:
        self._send(await self._respond(request), head=request.method == "HEAD")

    def _refuse(self, status: int) -> None:
        if self._task is None:
            self._complete = True
            self._send(Response(status, content_type="text/plain"))

    def _send(self, answer: Response, head: bool = False) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        nonce = f"WWW-Authenticate: {SCHEME} {answer.nonce}\r\n" if answer.nonce else ""
        lines = (
            f"HTTP/1.1 {answer.status} {http.client.responses.get(answer.status, 'Unknown')}\r\n"
            f"Content-Length: {len(answer.body)}\r\nContent-Type: {answer.content_type}\r\n"
            f"{nonce}Connection: close\r\n\r\n"
        )
        self._transport.write(lines.encode("latin-1") + (b"" if head else answer.body))
        self._transport.close()


def _origin_form(target: str) -> str:
    if target.startswith("/"):
        return target
    _, scheme, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme else target


# ------------------------------------------------------------
# Limit how long the exchange of an HTTP request and its answer takes, and how large the answer is.
#
# `http.client` limits neither: its time-out begins again with each piece of data, an answer may be
# endless, and it may name a length that takes all memory at once. What answers at the port of a
# dead worker may be a process of another user.

WHOLE = 2  # time-outs that an exchange may take: one to connect, one for the first piece of data


class ResponseTooLarge(http.client.HTTPException):
    """An answer has more bytes than the client takes."""


class LimitedConnection(http.client.HTTPConnection):
    """A connection for one request, with a deadline (not for names) and a largest answer."""

    def __init__(self, address: str, port: int, timeout_s: float, most_bytes: int) -> None:
        super().__init__(address, port, timeout=timeout_s)
        self._limits = timeout_s, time.monotonic() + WHOLE * timeout_s, most_bytes

    def connect(self) -> None:
        failed = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, where in socket.getaddrinfo(
            self.host, self.port, type=socket.SOCK_STREAM
        ):
            opened = None
            try:
                opened = LimitedSocket(family, kind, protocol)
                opened.limit(*self._limits)
                opened.connect(where)
                # The head and the body of a request are sent one after the other.
                opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            except OSError as error:  # also of a family that this system does not have
                if opened is not None:
                    opened.close()
                failed = error
            else:
                self.sock = opened
                return
        raise failed


class LimitedSocket(socket.socket):
    """A connected socket with a deadline, and a largest number of bytes to receive."""

    _limits = (0.0, 0.0, 0)

    def limit(self, timeout_s: float, deadline_s: float, most_bytes: int) -> None:
        self._limits = timeout_s, deadline_s, most_bytes
        self.settimeout(max(0.0, min(timeout_s, deadline_s - time.monotonic())))

    def sendall(self, data: Any, flags: int = 0) -> None:
        self.limit(*self._limits)
        super().sendall(data, flags)

    def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
        self.limit(*self._limits)
        try:
            count = super().recv_into(buffer, nbytes, flags)
        except BlockingIOError:
            raise TimeoutError("the answer is not complete in time") from None
        timeout_s, deadline_s, most_bytes = self._limits
        if count > most_bytes:
            raise ResponseTooLarge("the answer is too large")
        self._limits = timeout_s, deadline_s, most_bytes - count
        return count

    def makefile(self, *_: Any, **__: Any) -> _LimitedReader:  # type: ignore[override]
        return _LimitedReader(super().makefile("rb", buffering=0), self._limits[-1])


class _LimitedReader(io.BufferedReader):
    """A buffered file that takes no memory for more bytes than may come."""

    def __init__(self, raw: io.RawIOBase, most_bytes: int) -> None:
        super().__init__(raw)
        self._most_bytes = most_bytes

    def read(self, size: int | None = -1, /) -> bytes:
        if size is None or size < 0:
            return super().read()
        # CPython takes the memory for all of them before it reads the first one.
        return super().read(min(size, self._most_bytes))


BACKLOG = 1024  # Horovod's own server has 5, and its clients retry after 1 s and 3 s
CLOSE_S = 5.0  # for the thread to begin, and to end
BEGUN_S = 0.1  # for one that may not have been started


@dataclass(frozen=True)
class Route:
    handler: Handler
    content_type: str
    # whether only signed requests, of any method, are handled; else GET and HEAD, signed or not
    changes: bool


Handler = Callable[[HttpRequest], tuple[int, bytes] | Awaitable[Response]]
"""Answers a request with status and body, or with an awaitable of an answer with a content type of
its own. Runs on the loop, so it must not block."""


class DaemonServer:
    """The HTTP server of one worker's daemon, with a thread of its own for all requests."""

    def __init__(
        self,
        address: str,
        port: int = 0,
        health: Callable[[], Mapping[str, Any]] | None = None,
        guard: Authenticator | None = None,
    ) -> None:
        self.address = address
        self._wanted_port = port
        self._authenticator = guard
        self._routes: dict[str, Route] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._serves = threading.Event()
        self._connections: set[Connection] = set()
        if health is not None:
            answer = lambda _: (200, json.dumps(health()).encode() + b"\n")  # noqa: E731
            self.add_route("/health", answer, "application/json")

    def start(self) -> None:
        family = socket.AF_INET6 if ":" in self.address else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((self.address, self._wanted_port))
            listener.listen(BACKLOG)
            listener.setblocking(False)
        except OSError as error:
            listener.close()
            cure = "check EDL_ADDRESS, it must be an address of this machine"
            if error.errno == errno.EADDRINUSE:
                cure = "another process listens there; choose another port"
            raise RingError(
                f"cannot listen on {self.address}:{self._wanted_port}: {error.strerror}; {cure}"
            ) from error
        if ipaddress.ip_address(listener.getsockname()[0]).is_unspecified:
            listener.close()
            raise RingError(
                f"{self.address!r} means every network of this machine; set EDL_ADDRESS to the one "
                "address at which the other workers of the job reach it"
            )
        self._socket = listener
        self._serves = threading.Event()
        self._thread = threading.Thread(
            target=self._serve, args=(listener,), name="edl-http", daemon=True
        )
        self._thread.start()
        if not self._serves.wait(CLOSE_S):
            raise RingError(f"the HTTP server of {self.address} did not start in {CLOSE_S:g} s")

    def close(self) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        # A signal may have ended start() before its thread ran, or while it waited for that.
        if not self._serves.wait(CLOSE_S if thread.ident is not None else BEGUN_S):
            if self._socket is not None and thread.ident is None:
                self._socket.close()
            return
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def port(self) -> int:
        return int(self._socket.getsockname()[1]) if self._socket and self._thread else 0

    def add_route(
        self,
        prefix: str,
        handler: Handler,
        content_type: str = "application/json",
        changes: bool = False,
    ) -> None:
        """Let `handler` answer `prefix` and every path below it."""
        # On the server's thread, so it must not block; the longest prefix wins.
        route = Route(handler, content_type, changes)
        self._routes = {**self._routes, prefix.rstrip("/"): route}

    # --- for servers that answer more

    async def answer_other(self, request: HttpRequest) -> Response:
        """Answer a request whose path has no route, for subclasses: here the status 404."""
        return Response(404)

    def let_go(self) -> None:
        """Let requests that wait in `answer_other` return, once, on the loop's thread."""

    def in_loop(self, function: Callable[[], None]) -> None:
        """Let the loop's thread soon call `function`, which must not block; from any thread."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:
                logger.debug("the HTTP server closed meanwhile")

    # --- on the loop's thread

    def _serve(self, listener: socket.socket) -> None:
        self._loop = loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        server = loop.run_until_complete(
            loop.create_server(
                lambda: Connection(self.answer, self._connections, loop),
                sock=listener,
                backlog=BACKLOG,
            )
        )
        loop.call_soon(self._serves.set)
        try:
            loop.run_forever()
        finally:
            server.close()
            loop.run_until_complete(self._say_goodbye())
            loop.close()

    async def _say_goodbye(self) -> None:
        self.let_go()
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

    async def answer(self, request: HttpRequest) -> Response:
        route = self._route(request.path)
        if route is None:
            return await self.answer_other(request)
        if not route.changes:
            if request.method not in ("GET", "HEAD"):
                return Response(405)
        elif (guard := self._authenticator) is None:
            return Response(401)
        elif not guard.accepts(request.authorization, request.method, request.target, request.body):
            if request.authorization:
                logger.warning("%s %s was refused: it is not signed", request.method, request.path)
            return Response(401, nonce=guard.nonce())
        try:
            answer = route.handler(request)
            if not isinstance(answer, tuple):
                return await answer
        except Exception:
            logger.exception("the handler of %s failed", request.path)
            return Response(500, content_type=route.content_type)
        return Response(*answer, route.content_type)

    def _route(self, path: str) -> Route | None:
        """Return the route with the longest prefix: "/end" is one of "/end/now", not "/ending"."""
        prefix = path.rstrip("/")
        while prefix:
            if prefix in self._routes:
                return self._routes[prefix]
            prefix = prefix.rpartition("/")[0]
        return None


__all__ = ["DaemonServer", "Handler", "HttpRequest"]
