"""Run uvicorn within a command: it leaves signals alone, and bounds the head of each request.

The dashboard uses it without FastAPI, which only the API needs.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import uvicorn
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from edl.api.listening import BACKLOG

HEAD_BYTES = 65536  # of the request line and the headers
HEAD_S = 10.0  # for them to come, from the connection, or from their first byte


class LimitProtocol(HttpToolsProtocol):
    """A connection of uvicorn that is closed if the head of a request is too large, or too slow."""

    head_bytes = HEAD_BYTES  # the largest number of bytes of a head
    head_s = HEAD_S  # how long it may take, in seconds
    _bytes = 0
    _in_head = True
    _late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Take bytes of the connection; close it if they make a head too large."""
        if self._in_head:
            self._bytes += len(data)
            if self._bytes > self.head_bytes:
                # One piece may have the end of a head and a body; uvicorn reads 256 KiB at most.
                head, _, _ = data.partition(b"\r\n\r\n")
                if self._bytes - len(data) + len(head) > self.head_bytes:
                    self._abort()
                    return
        super().data_received(data)
        self._await_request()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        if self._late is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        self._in_head, self._bytes = False, 0
        self._forget()
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """End a request; httptools calls it. What comes then is the head of another one."""
        super().on_message_complete()
        self._in_head = True

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget()
        super().connection_lost(exc)

    def _await_request(self) -> None:
        """Close the connection if it stays idle from now on, unless another timer does so."""
        answers = self.cycle is not None and not self.cycle.response_complete
        if answers or self._late or self.timeout_keep_alive_task or self.transport.is_closing():
            return
        # uvicorn stops its own timer at any byte, and begins it again after the next answer only.
        # But the byte may begin no request: an empty line, or the rest of a body that is answered.
        self.timeout_keep_alive_task = self.loop.call_later(
            self.timeout_keep_alive, self.timeout_keep_alive_handler
        )

    def _await_head(self) -> None:
        self._in_head, self._bytes = True, 0
        self._late = self.loop.call_later(self.head_s, self._abort)

    def _forget(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _abort(self) -> None:
        self._late = None
        self.transport.abort()


IDLE_S = 30.0  # of a connection, after which it is closed


@dataclass(frozen=True)
class TlsFiles:
    certificate: str  # the path of the certificate, in PEM, with its chain
    key: str  # the path of its key


def server_config(
    app: Any, connections: int, end_s: float, tls: TlsFiles | None = None
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        http=LimitProtocol,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=int(IDLE_S),
        timeout_graceful_shutdown=int(end_s),
        limit_concurrency=connections,
        backlog=BACKLOG,
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
    )


class EmbeddedServer(uvicorn.Server):
    """A server of uvicorn that leaves the signals of the process alone."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
