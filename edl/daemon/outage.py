"""Measure how long a daemon has been without ZooKeeper (:class:`Outage`), and log both ends."""

from __future__ import annotations

import logging
import time

from edl.errors import CoordinationError

logger = logging.getLogger(__name__)


class Outage:
    """The measurement of the time in which one daemon cannot reach ZooKeeper."""

    def __init__(self) -> None:
        self._since: float | None = None
        self.from_step = -1  # the newest step when the last outage began; -1: there was none

    def begin(self, error: CoordinationError, step: int) -> None:
        """Begin an outage, and log a warning with its cause; during one do nothing."""
        if self._since is None:
            self._since, self.from_step = time.monotonic(), step
            logger.warning("coordination is interrupted, training goes on: %s", error)

    def end(self) -> tuple[float, str]:
        """End the outage, if one lasts; return its seconds and a sentence."""
        if self._since is None:
            return 0.0, ""
        away_s = time.monotonic() - self._since
        self._since, reason = None, f"ZooKeeper is back after {away_s:.1f} s"
        logger.info("%s", reason)
        return away_s, reason
