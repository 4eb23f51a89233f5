"""Handle one HTTP/1.1 connection to a daemon's port: one request, one answer, then close.

:class:`Connection` does it, for :class:`edl.http.server.DaemonServer`. The target of a request may
be a path or a whole URL; the length of a body is its Content-Length. A request that is malformed,
too large or too slow is answered with a status 4xx, and the connection is closed. No request can
raise an error in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import httptools

from edl.http.signing import SCHEME

TARGET_BYTES = 8 << 10
HEADER_BYTES = 32 << 10
BODY_BYTES = 16 << 20
REQUEST_S = 30.0  # for a request to arrive completely

_PHRASES = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    404: "Not Found",
    405: "Method Not Allowed",
    408: "Request Timeout",
    409: "Conflict",
    410: "Gone",
    413: "Content Too Large",
    414: "URI Too Long",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


@dataclass(frozen=True)
class HttpRequest:
    """A complete HTTP request."""

    method: str
    path: str  # as it was sent, without the query; nothing is percent-decoded
    query: str  # after the first "?"; empty without one
    body: bytes
    authorization: str = ""  # the header; empty without one
    accept: str = ""  # likewise

    @property
    def target(self) -> str:
        """The path and, if the query is not empty, "?" and the query."""
        return f"{self.path}?{self.query}" if self.query else self.path


@dataclass(frozen=True)
class Response:
    """An HTTP answer to a request."""

    status: int
    body: bytes = b""
    content_type: str = "application/octet-stream"
    nonce: str = ""  # with a 401: to sign the request with; empty: none


class _TooLarge(Exception):
    """The error that a callback of the parser raises to refuse a request that is too large."""

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
        self._timer = loop.call_later(REQUEST_S, self._too_slow)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Add this connection to the set of open ones, and keep its `transport`."""
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
        """Close the connection at once, and drop written bytes that were not sent yet."""
        if self._transport is not None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Parse the next received bytes; refuse a request that is malformed or too large."""
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
        """Add a part of the target to it; refuse a target of more than 8 KiB (`TARGET_BYTES`)."""
        self._target += part
        if len(self._target) > TARGET_BYTES:
            raise _TooLarge(414)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep `Authorization` and `Accept`; refuse too long headers or a too large body."""
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
        """Allow 16 MiB (`BODY_BYTES`) more bytes to arrive, because a body may follow."""
        self._room += BODY_BYTES

    def on_body(self, part: bytes) -> None:
        """Add a part to the body; refuse a body of more than 16 MiB (`BODY_BYTES`)."""
        self._body += part
        if len(self._body) > BODY_BYTES:
            raise _TooLarge(413)

    def on_message_complete(self) -> None:
        """Start a task of the event loop that answers the request, which has arrived completely."""
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
        """Answer with an error and close, unless the request is being answered already."""
        if self._task is None:
            self._complete = True
            self._send(Response(status, content_type="text/plain"))

    def _too_slow(self) -> None:
        self._refuse(408)

    def _send(self, answer: Response, head: bool = False) -> None:
        """Send an answer and close the connection; do nothing if it is closed or closing."""
        if self._transport is None or self._transport.is_closing():
            return
        nonce = f"WWW-Authenticate: {SCHEME} {answer.nonce}\r\n" if answer.nonce else ""
        lines = (
            f"HTTP/1.1 {answer.status} {_PHRASES.get(answer.status, 'Unknown')}\r\n"
            f"Content-Length: {len(answer.body)}\r\nContent-Type: {answer.content_type}\r\n"
            f"{nonce}Connection: close\r\n\r\n"
        )
        self._transport.write(lines.encode("latin-1") + (b"" if head else answer.body))
        self._transport.close()


def _origin_form(target: str) -> str:
    """Return the path and query of a request's target, without scheme and host."""
    if target.startswith("/"):
        return target
    _, scheme, rest = target.partition("://")
    return "/" + rest.partition("/")[2] if scheme else target
