"""One thread that does the work of all stand-ins: when something has changed, or is due."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable, Hashable

logger = logging.getLogger(__name__)

Action = Callable[[], None]


class Loop:
    """A thread that calls functions one after another; start it with :meth:`start`.

    Attributes:
        errors: What went wrong in a function; a measurement with errors is none.
    """

    def __init__(self) -> None:
        self.errors: list[BaseException] = []
        self._woken: dict[Hashable, Action] = {}
        self._due: list[tuple[float, int, Action]] = []
        self._numbers = itertools.count()
        self._changed = threading.Condition()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="stand-ins", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def close(self) -> None:
        """End the thread after the function that it calls now."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(30.0)

    def wake(self, key: Hashable, action: Action) -> None:
        """Call ``action`` soon, once, however often it is woken by this ``key`` until then.

        Any thread may call this, also one of ZooKeeper's client.
        """
        with self._changed:
            self._woken[key] = action
            self._changed.notify()

    def after(self, delay_s: float, action: Action) -> None:
        """Call ``action`` after ``delay_s`` seconds."""
        with self._changed:
            due_s = time.monotonic() + delay_s
            heapq.heappush(self._due, (due_s, next(self._numbers), action))
            self._changed.notify()

    def _run(self) -> None:
        while (action := self._next()) is not None:
            try:
                action()
            except Exception as error:
                if not self.errors:
                    logger.exception("a stand-in failed")
                self.errors.append(error)

    def _next(self) -> Action | None:
        """Wait for the next function; return it, or None at the end."""
        with self._changed:
            while not self._closing:
                left_s = self._due[0][0] - time.monotonic() if self._due else None
                if left_s is not None and left_s <= 0:
                    return heapq.heappop(self._due)[2]
                if self._woken:
                    return self._woken.pop(next(iter(self._woken)))
                self._changed.wait(left_s)
            return None
