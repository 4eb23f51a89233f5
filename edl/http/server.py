"""Serve the one HTTP port of a worker's daemon: its health, and further paths that are added to it.

The server (:class:`DaemonServer`) runs on its own thread with an asyncio loop, and answers:

- ``GET /health``: the JSON object that a function returns;
- further path prefixes, added with :meth:`DaemonServer.add_route`; requests that change anything
  need a signature (see :mod:`edl.http.signing`).

Its socket has a long backlog (queue of connections that are not accepted yet), because all ranks of
a ring connect at once.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, Self

from edl.errors import RingError
from edl.http.connection import Connection, HttpRequest, Response
from edl.http.signing import Authenticator

__all__ = ["DaemonServer", "Handler", "HttpRequest"]

logger = logging.getLogger(__name__)

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
        self._health = health
        self._authenticator = guard
        self._routes: dict[str, Route] = {}
        self._socket: socket.socket | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._serves = threading.Event()
        self._connections: set[Connection] = set()
        if health is not None:
            self.add_route("/health", self._answer_health, "application/json")

    def start(self) -> None:
        """Listen on the server's address only, and serve in a thread until `close`."""
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
        """Answer the requests that still wait, close all connections, and stop the thread."""
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
        """The port that the server listens on; 0 before start() and after close()."""
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
        """Run the server's event loop in this thread until `close`; then close connections."""
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
        """Wait up to 1 s for the answers to requests that are open; then close every connection."""
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
        """Return the answer to a request, from the handler of its path or `answer_other`."""
        route = self._route(request.path)
        if route is not None:
            return self._refusal(route, request) or await self._answer_route(route, request)
        return await self.answer_other(request)

    def _refusal(self, route: Route, request: HttpRequest) -> Response | None:
        """Return the answer to a request that must not reach its handler, or None if it may."""
        if not route.changes:
            return None if request.method in ("GET", "HEAD") else Response(405)
        guard = self._authenticator
        if guard is None:
            return Response(401)
        given, target = request.authorization, request.target
        if guard.accepts(given, request.method, target, request.body):
            return None
        if given:
            logger.warning("%s %s was refused: it is not signed", request.method, request.path)
        return Response(401, nonce=guard.nonce())

    @staticmethod
    async def _answer_route(route: Route, request: HttpRequest) -> Response:
        """Return the answer of a route's handler; 500, and a log entry, if it raises."""
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

    def _answer_health(self, request: HttpRequest) -> tuple[int, bytes]:
        assert self._health is not None
        return 200, json.dumps(self._health()).encode() + b"\n"
