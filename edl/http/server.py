"""Serve the one HTTP port of a worker's daemon: its health, and further paths that are added to it.

The server runs on its own thread with an asyncio loop, and answers:

- ``GET /health``: JSON from a callable;
- further path prefixes, added with :meth:`DaemonServer.add_route`; requests that change anything
  need a signature (see :mod:`edl.http.signing`).

Its socket has a long backlog (queue of connections that are not accepted yet), because all ranks of
a ring connect at once.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import socket
import threading
from collections.abc import Callable, Mapping
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
    """The handler of all paths with one prefix.

    Attributes:
        handler: Called with each request; returns the status and the body of the answer.
        content_type: The header ``Content-Type`` of the answers.
        changes: Whether requests change something, so that only signed ones, of any method, are
            handled.
    """

    handler: Handler
    content_type: str
    changes: bool


Handler = Callable[[HttpRequest], tuple[int, bytes]]
"""Answers a request with status and body. Runs on the loop, so it must not block."""


class DaemonServer:
    """The HTTP server of one worker; a context manager, or ``start()`` and ``close()``.

    Args:
        address: The address to listen on; one that other workers can reach.
        port: The port to listen on; 0 lets the system choose one.
        health: Returns the JSON object to answer to ``GET /health``; without it that path is
            unknown.
        guard: Checks the signatures of requests to paths that change something; without it no such
            request is handled.
    """

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
        """Listen on ``address`` only, and serve until :meth:`close`.

        Raises:
            RingError: the address or the port cannot be listened on, or ``address`` means all
                networks of this machine.
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
        """Answer all open requests, close all connections and stop; a second call does nothing."""
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
        """Let ``handler`` answer ``prefix`` and every path below it.

        If a path has several prefixes with a handler, the longest one is used.

        Args:
            prefix: The path, such as "/end".
            handler: Returns status and body for a request. It runs on the event loop, so it must
                not block.
            content_type: The header ``Content-Type`` of the answers.
            changes: Whether the requests change something. If True, the handler gets requests with
                any method, but signed ones only; others are answered with 401. If False, it gets
                requests with the method GET or HEAD, signed or not; others are answered with 405.
        """
        route = Route(handler, content_type, changes)
        self._routes = {**self._routes, prefix.rstrip("/"): route}

    # --- for servers that answer more

    async def answer_other(self, request: HttpRequest) -> Response:
        """Return the answer to ``request``, whose path has no route: status 404.

        A subclass overrides it to serve other paths. It runs on the thread of the event loop.
        """
        return Response(404)

    def let_go(self) -> None:
        """Answer the requests that a subclass has not answered yet, because the server closes.

        In this class it does nothing. It runs on the thread of the event loop.
        """

    def in_loop(self, function: Callable[[], None]) -> None:
        """Call ``function`` soon on the event loop's thread; do nothing if the server is closed."""
        loop, thread = self._loop, self._thread
        if loop is not None and thread is not None:
            try:
                loop.call_soon_threadsafe(function)
            except RuntimeError:
                logger.debug("the HTTP server closed meanwhile")

    # --- on the loop's thread

    def _serve(self, listener: socket.socket) -> None:
        """Run the event loop of the server on the socket ``listener`` until it is stopped."""
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
        """Answer the requests that still wait for an answer, then close every connection."""
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
        """Return the answer to a request, from the handler of its path or :meth:`answer_other`."""
        route = self._route(request.path)
        if route is not None:
            return self._refusal(route, request) or self._answer_route(route, request)
        return await self.answer_other(request)

    def _refusal(self, route: Route, request: HttpRequest) -> Response | None:
        """Return the answer to a request that must not reach its handler, or None if it may.

        A wrong method gives 405; a missing or wrong signature gives 401. ``route`` is the one for
        the request's path.
        """
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
    def _answer_route(route: Route, request: HttpRequest) -> Response:
        """Return the answer of the handler of ``route`` to ``request``; 500 if it raises."""
        try:
            status, body = route.handler(request)
        except Exception:
            logger.exception("the handler of %s failed", request.path)
            return Response(500, content_type=route.content_type)
        return Response(status, body, route.content_type)

    def _route(self, path: str) -> Route | None:
        """Return the route with the longest prefix of ``path``, or None without one."""
        prefix = path.rstrip("/")
        while prefix:
            if prefix in self._routes:
                return self._routes[prefix]
            prefix = prefix.rpartition("/")[0]
        return None

    def _answer_health(self, request: HttpRequest) -> tuple[int, bytes]:
        """Return the status 200 and the health of the worker as JSON; ``request`` is ignored."""
        assert self._health is not None
        return 200, json.dumps(self._health()).encode() + b"\n"
