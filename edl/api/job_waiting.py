"""Wait for the end of a job by looking at it again and again, within a time limit."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable

from edl.cluster.status import ClusterJobStatus
from edl.errors import UnknownJob

LOOK_S = 0.5  # between two looks at a job that is waited for


async def wait_for_end(
    look: Callable[[], Awaitable[ClusterJobStatus]],
    timeout_s: float,
    is_cut_short: Callable[[], Awaitable[bool]],
    away: tuple[type[Exception], ...],
    look_s: float = LOOK_S,
) -> ClusterJobStatus:
    """Return the status of a job that is over; at the end of the time, its status then."""
    deadline = time.monotonic() + timeout_s
    submitted_s: float | None = None
    while True:
        now: ClusterJobStatus | None = None
        problem: Exception | None = None
        try:
            now = await look()
        except away as error:
            problem = error
        else:
            submitted_s = now.submitted_s if submitted_s is None else submitted_s
            if now.submitted_s != submitted_s:
                raise UnknownJob(now.name, (now.name,))
            if now.is_over:
                return now
        left_s = deadline - time.monotonic()
        if left_s <= 0 or await is_cut_short():
            if now is not None:
                return now
            assert problem is not None
            raise problem
        await asyncio.sleep(min(look_s, left_s))
