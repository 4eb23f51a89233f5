"""Deal out the quota of a queue, in slots, to its jobs that may not be preempted.

Others could not get slots of such jobs back, so together they have at most the quota of their
queue. :func:`quota_limits` deals it out, to the first job first:

1. A job that has slots keeps them. If it has lost some, as with a host, it may have others in their
   place, but only within what is left of the quota. Its fewest slots are never dealt to another.
2. A job that waits gets what is left, up to the most that it can use.
3. If that is too little for it, nothing is dealt to those that come after it until it has started.
   So later and smaller jobs, however many come, do not keep it waiting: it starts at the latest
   when the jobs have ended that had slots, or came before it, when it was submitted. A job whose
   fewest slots are more than the whole quota holds up no other one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from edl.core.sizes import Sizes

RIGID = "waits: it may not be preempted, so it gets slots of the quota of queue {queue} only"


@dataclass(frozen=True)
class QuotaRequest:
    """The request of one job, which may not be preempted, for slots of the quota of its queue."""

    name: str  # the name of the job
    size: int  # the number of slots that it has; 0: it waits
    least: int  # the fewest slots with which it may train
    most: int  # the most slots that it can use now; at least `least`
    sizes: Sizes  # the numbers of slots that it may have


def quota_limits(
    queue: str, jobs: Sequence[QuotaRequest], quota: int
) -> tuple[dict[str, int], dict[str, str]]:
    """Deal out the quota of a queue to its jobs that may not be preempted."""
    left = max(0, quota - sum(max(one.size, one.least) for one in jobs if one.size))
    limits: dict[str, int] = {}
    reasons: dict[str, str] = {}
    first: QuotaRequest | None = None
    why = RIGID.format(queue=queue)
    for one in jobs:
        own = max(one.size, one.least) if one.size else 0
        most = one.sizes.below(min(one.most, own + left))
        if own:
            limits[one.name] = max(own, most or 0)
            left -= limits[one.name] - own
        elif most is not None:
            limits[one.name] = most
            left -= most
        elif first is not None:
            reasons[one.name] = (
                f"{why}, and those that are left are kept for job {first.name}, which comes before "
                f"it and needs {first.least}"
            )
        else:
            reasons[one.name] = (
                f"{why}, of which {left} of {quota} are left for it, and it needs {one.least}"
            )
            if one.least <= quota:
                first, left = one, 0
    return limits, reasons
