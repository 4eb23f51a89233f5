"""Define the clocks by which threads read the time, sleep and wait for conditions.

:data:`SYSTEM` is the real clock of this machine; :class:`Clock` is the interface of all clocks.
The training thread of a worker waits through a clock only. So a whole job can run in one process
under virtual time, which advances when all threads wait (:mod:`edl.testing.schedule`).
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Condition(Protocol):
    """A condition variable whose time-outs are measured by a `Clock`, which makes it."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a notification for at most `timeout` seconds (None: for ever)."""

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until `predicate()` is true, for at most `timeout` seconds (None: for ever)."""

    def notify_all(self) -> None:
        """Wake all threads that wait for this condition."""


class Clock(Protocol):
    """The interface of a monotonic clock, with which threads also sleep and wait for conditions."""

    def now_s(self) -> float:
        """Return the time in seconds since a fixed moment; only differences have a meaning."""

    def sleep(self, seconds: float) -> None:
        """Block the calling thread until this clock, real or virtual, is `seconds` later."""

    def condition(self) -> Condition:
        """Return a new condition variable whose time-outs are measured by this clock."""


class SystemClock:
    now_s = staticmethod(time.monotonic)
    sleep = staticmethod(time.sleep)
    condition = staticmethod(threading.Condition)


SYSTEM = SystemClock()


# ------------------------------------------------------------
# Wait until something has changed, woken by other threads and by signal handlers.


class Wakeup:
    """A flag that a thread waits for; setting it is safe in any thread and in a signal handler."""

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the thread that waits, now or when it waits the next time."""
        self._calls.put(None)  # reentrant, other than threading.Event.set

    def wait(self, timeout_s: float) -> bool:
        """Wait until `set` was called since the last wait; return whether it was in time."""
        deadline = time.monotonic() + timeout_s
        try:
            self._calls.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            return False
        while not self._calls.empty():
            self._calls.get_nowait()
        return True
