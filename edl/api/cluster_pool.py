"""Ask a cluster from a few threads, each with a ZooKeeper session of its own.

A client of a cluster must not be shared between threads, and a request to ZooKeeper blocks. So the
event loop of the HTTP server hands each question to one of ``THREADS`` threads.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from edl.api.requests import HttpError
from edl.cluster.client.client import Cluster
from edl.errors import CoordinationError

THREADS = 16  # ZooKeeper writes the submissions of so many to its disk together
QUESTIONS = 1000  # of one session, each perhaps about another job
FREE_S = 5.0  # how long a request waits for a thread
T = TypeVar("T")


class ClusterPool:
    def __init__(
        self, connect: Callable[[], Cluster], threads: int = THREADS, free_s: float = FREE_S
    ) -> None:
        self._connect = connect
        self._free_s = free_s
        self._free = asyncio.Semaphore(threads)
        self._threads = ThreadPoolExecutor(threads, "edl-api")
        self._own = threading.local()
        self._clients: list[Cluster] = []

    async def ask(self, by: str, question: Callable[[Cluster], T]) -> T:
        """Call `question` with a connected client in one of the threads; return its result."""
        try:
            async with asyncio.timeout(self._free_s):
                await self._free.acquire()
        except TimeoutError:
            raise HttpError(
                503,
                "Busy",
                f"the API has had no thread free for {self._free_s:g} s; try again later",
            ) from None
        asked = asyncio.get_running_loop().run_in_executor(self._threads, self._ask, by, question)
        asked.add_done_callback(lambda _: self._free.release())
        # It goes on if the caller is cancelled: what it writes is written in any case.
        return await asyncio.shield(asked)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)
        for client in self._clients:
            client.close()

    def _ask(self, by: str, question: Callable[[Cluster], T]) -> T:
        client: Cluster | None = getattr(self._own, "client", None)
        if client is None:
            client = self._connect()
            client.__enter__()
            self._own.client, self._own.asked = client, 0
            self._clients.append(client)
        client.by = by
        try:
            found = question(client)
        except CoordinationError:
            # The session may have the identity of a job: ZooKeeper may not have heard the change.
            self._drop(client)
            raise
        self._own.asked += 1
        if self._own.asked >= QUESTIONS:
            self._drop(client)
        return found

    def _drop(self, client: Cluster) -> None:
        self._own.client = None
        self._clients.remove(client)
        client.close()
