"""Add the HTTP endpoints of ``edl chaos``: faults that only the worker itself can cause.

``POST /chaos/expire`` makes ZooKeeper end this worker's session, ``POST /chaos/cut`` cuts its
connections in the ring. They exist only in a job that was started with ``edl run --chaos``
(EDL_CHAOS=1), and a request must be signed with the job's secret.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from edl.errors import CoordinationError
from edl.http.server import DaemonServer, HttpRequest
from edl.ring.ring import Ring
from edl.zookeeper.session import Session

logger = logging.getLogger(__name__)
PREFIX = "/chaos"


def add_endpoints(server: DaemonServer, session: Session, ring: Ring) -> None:
    """Add the endpoints `/chaos/expire` and `/chaos/cut` to the HTTP server of a worker."""

    def expire() -> None:
        try:
            session.expire()
        except CoordinationError as error:
            logger.warning("chaos: %s", error)

    acts: dict[str, Callable[[], None]] = {"expire": expire, "cut": ring.break_}

    def answer(request: HttpRequest) -> tuple[int, bytes]:
        act = acts.get(request.path.removeprefix(f"{PREFIX}/"))
        if act is None:
            return 404, b""
        if request.method != "POST":
            return 405, b""
        logger.warning("chaos: %s", request.path)
        # Not on the server's loop: it must not wait for ZooKeeper.
        threading.Thread(target=act, name="edl-chaos", daemon=True).start()
        return 200, b""

    server.add_route(PREFIX, answer, changes=True)
