"""Do later what ends a trouble that a test has made, in a thread of its own."""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable

WAIT_S = 300.0  # for all that was killed to be started again


class Restores:
    """Does later what ends a trouble: starts a server, wakes a process."""

    def __init__(self) -> None:
        self._waiting: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._is_closing = False
        self.failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, name="restores", daemon=True)
        self._thread.start()

    def later(self, after_s: float, restore: Callable[[], object]) -> None:
        with self._changed:
            due_s = time.monotonic() + after_s
            heapq.heappush(self._waiting, (due_s, next(self._numbers), restore))
            self._changed.notify_all()

    def finish(self) -> None:
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive(), f"the trouble has not ended within {WAIT_S:g} s"
        if self.failed:
            raise self.failed[0]

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._is_closing and not self._is_due():
                    self._changed.wait(0.05)
                if not self._waiting:
                    return
                _, _, restore = heapq.heappop(self._waiting)
            try:
                restore()
            except Exception as error:  # noqa: BLE001 - `finish` raises it
                self.failed.append(error)

    def _is_due(self) -> bool:
        return bool(self._waiting) and self._waiting[0][0] <= time.monotonic()
