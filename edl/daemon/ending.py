"""The orderly end of a job while ZooKeeper is away.

Nobody can write then that the job is to end. So who wants it, the agent of `edl run`, tells a
worker on its own port (``POST /end``, signed), and that worker tells the others of its ring. All
leave after the step in whose records all of them know it, as for an end that the leader has
written (:data:`edl.core.records.END`).
"""

from __future__ import annotations

import threading
from collections.abc import Callable

from edl.core.records import Generation
from edl.http.client import END_PATH, tell_end
from edl.http.server import DaemonServer, Request


class Ending:
    """A worker that can be told that its job ends.

    Args:
        key: that requests to the workers of the job are signed with.
        announce: makes an end known to the training thread.
    """

    def __init__(self, key: str, announce: Callable[[Generation], None]) -> None:
        self._key = key
        self._announce = announce
        self._lock = threading.Lock()
        self._current: Generation | None = None
        self._told = False

    def add_to(self, server: DaemonServer) -> None:
        server.add_route(END_PATH, self._answer, changes=True)

    def generation_is(self, generation: Generation) -> None:
        """The newest one that the leader has written."""
        self._current = generation

    def _answer(self, request: Request) -> tuple[int, bytes]:
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
