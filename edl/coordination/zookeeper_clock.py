"""Tell the time by ZooKeeper's clock, which all leaders share, not by their hosts'."""

from __future__ import annotations

import time
from collections.abc import Callable


class ZooKeeperClock:
    """A clock that was set once by a time stamp of ZooKeeper, and then counts on by itself."""

    # Ahead of ZooKeeper's clock by at most the time of the write: no later stamp is in its future.
    # Monotonic: a step of the host's clock does not change it.

    def __init__(
        self, stamp_s: float, asked_s: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._ahead_s = stamp_s - asked_s
        self._monotonic = monotonic

    def now_s(self) -> float:
        """Return the time in seconds since 1970."""
        return self._ahead_s + self._monotonic()
