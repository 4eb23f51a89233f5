"""Ask the script of a worker, again and again, how many workers more or fewer it wants.

A :class:`SizeRequest` keeps the answer, which goes out with the worker's step records.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

from edl.core.job.placement import whole
from edl.core.policy.file import PolicyFile
from edl.errors import UsageError

MOST = 10**6  # workers in one answer; the step record has numbers of 64 bits


class SizeRequest:
    """The script's request for more or fewer workers; it is used by the training thread."""

    def __init__(self, now_s: Callable[[], float]) -> None:
        self.change = 0  # the newest answer: workers more, or fewer (below 0); 0 in a new ring
        self.policy: PolicyFile | None = None  # the first one that the script has proposed
        self._now_s = now_s
        self._ask: Callable[[], Any] | None = None
        self._every_s = 0.0
        self._asked_s = 0.0

    def ask(self, desired_change: Callable[[], Any], every_s: float) -> None:
        """Let `look` call the script's function every `every_s` seconds from now on."""
        if self._ask is not None:
            raise UsageError("edl.on_interval was called already; a script has one wish at a time")
        self._ask, self._every_s, self._asked_s = desired_change, every_s, self._now_s()

    def look(self) -> None:
        """Call the script's function and keep its answer in `change`, if it is time."""
        if self._ask is None or self._now_s() - self._asked_s < self._every_s:
            return
        self._asked_s = self._now_s()
        answer, wish = self._ask(), None
        with suppress(UsageError):
            wish = None if isinstance(answer, bool) else whole(answer)
        if wish is None or abs(wish) > MOST:
            raise UsageError(
                f"the function of edl.on_interval returned {answer!r}; it must return a whole "
                "number: workers more, or fewer, or 0"
            )
        self.change = wish
