"""Wait until something has changed, woken by other threads and by signal handlers."""

from __future__ import annotations

import queue
import time


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
