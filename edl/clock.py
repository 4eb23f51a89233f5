"""Time and waiting, as values: the system's, or a test's that only moves when all wait.

What a worker waits for in its training thread goes through a clock, so that a whole job can run in
one process under virtual time (:mod:`edl.testing.schedule`).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import TracebackType
from typing import Protocol


class Condition(Protocol):
    """As :class:`threading.Condition`."""

    def __enter__(self) -> bool: ...

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None: ...

    def wait(self, timeout: float | None = None) -> bool: ...

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool: ...

    def notify_all(self) -> None: ...


class Clock(Protocol):
    """A monotonic clock, and what waits by it."""

    def now_s(self) -> float:
        """Seconds since some moment in the past."""

    def sleep(self, seconds: float) -> None: ...

    def condition(self) -> Condition: ...


class SystemClock:
    """The clock of this machine, for threads that the operating system schedules."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def condition(self) -> Condition:
        return threading.Condition()


SYSTEM = SystemClock()
