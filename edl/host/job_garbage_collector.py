"""Remove the records of jobs that ended long ago from ZooKeeper, in a thread of an agent.

Only jobs whose secret is stored on this host for this user are removed.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from pathlib import Path

from edl.errors import EdlError
from edl.retention import Retention, outdated
from edl.zookeeper.access import Access, candidates, stored
from edl.zookeeper.nodes import delete_ended, job_names, list_jobs, unlock
from edl.zookeeper.paths import JobPaths
from edl.zookeeper.session import Session
from edl.zookeeper.store import JobStore

logger = logging.getLogger(__name__)

EVERY_S = 3600.0
GRACE_S = 1.0  # a removal under way goes on for so long at the agent's end: jobs may be short
END_S = 2.0  # and so long is waited for it


class JobGarbageCollector:
    """A context manager that removes old ended jobs from ZooKeeper while its `with` block runs."""

    # At entry only if the user has more jobs than are kept, then every hour; never the agent's own.

    def __init__(self, store: JobStore, state: Path, retention: Retention) -> None:
        self._session = store.session
        self._own = store.name
        self._state = state
        self._retention = retention
        self._ends = threading.Event()
        self._until_s = math.inf  # on the monotonic clock
        self._thread = threading.Thread(target=self._run, name="edl-retention", daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._until_s = time.monotonic() + GRACE_S
        self._ends.set()
        self._thread.join(END_S)

    def _run(self) -> None:
        hourly = False
        while True:
            try:
                if self._retention.is_due(len(self._of_this_user()), hourly):
                    self._remove()
            except (EdlError, OSError, ValueError) as error:  # ZooKeeper is away; a file is damaged
                logger.warning("ended jobs stay in ZooKeeper for now: %s", error)
            if self._ends.wait(EVERY_S):
                return
            hourly = True

    def _of_this_user(self) -> list[str]:
        return sorted(stored(self._state, job_names(self._session)))

    def _remove(self) -> None:
        near = self._session
        with Session(near.hosts, near.session_timeout_s, near.connect_timeout_s) as session:
            names = [name for name in self._of_this_user() if name != self._own]
            known = [
                Access(name, one) for name in names for one in candidates(self._state, name, None)
            ]
            mine = unlock(session, known)
            for name in outdated(list_jobs(session, mine), self._retention, time.time()):
                if time.monotonic() >= self._until_s:
                    return
                try:
                    delete_ended(session, JobPaths(name))
                except EdlError as error:
                    logger.info("job %s stays for now: %s", name, error)
