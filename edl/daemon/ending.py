"""End a job in order while ZooKeeper is away.

The end of the job cannot be written to ZooKeeper then. Instead, the agent of `edl run` tells a
worker on the worker's own port (``POST /end``, signed), and that worker tells the other workers of
its ring (:class:`JobEndEndpoint`). Each worker's step record says whether it knows of the end. All
workers leave after the first step in which every record says so, as when the leader ends the job
(:data:`edl.core.records.END`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edl.core.records import Generation
from edl.http.client import END_PATH, tell_end
from edl.http.server import DaemonServer, HttpRequest


class JobEndEndpoint:
    """The HTTP path `/end` of a worker, at which it is told that its job ends."""

    # The server's thread calls `announce`, with a generation without members, which means the end.
    def __init__(self, key: str, announce: Callable[[Generation], None]) -> None:
        self._key = key
        self._announce = announce
        self._lock = threading.Lock()
        self._current: Generation | None = None
        self._told = False

    def add_to(self, server: DaemonServer) -> None:
        """Let `server` answer the path `/end`, for signed requests only."""
        server.add_route(END_PATH, self._answer, changes=True)

    def generation_is(self, generation: Generation) -> None:
        self._current = generation

    def _answer(self, request: HttpRequest) -> tuple[int, bytes]:
        """Announce the end and pass it on, at the first request; its body is the reason."""
        if request.method != "POST":
            return 405, b""
        current = self._current
        if current is None or not current.members:
            return 409, b"in no ring"
        reason = request.body.decode(errors="replace")
        with self._lock:
            first, self._told = not self._told, True
        if first:
            self._announce(current.as_end(reason))
            # Not on the server's loop, which would wait for others that tell this worker.
            threading.Thread(
                target=tell_end,
                args=(self._key, current.members, reason),
                name="edl-end",
                daemon=True,
            ).start()
        return 200, b""
