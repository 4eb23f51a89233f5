"""The policies by name."""

from __future__ import annotations

from edl.core.cluster.fifo import Fifo
from edl.core.cluster.max_min import MaxMin
from edl.core.cluster.optimus import Optimus
from edl.core.cluster.srtf import Srtf
from edl.core.cluster.state import Policy
from edl.core.cluster.tiresias import Tiresias
from edl.errors import UsageError

POLICIES: dict[str, tuple[Policy, str]] = {
    "fifo": (Fifo(), "in the order of submission; a job that does not fit holds up later ones"),
    "fifo_backfill": (Fifo(backfill=True), "the same, and later ones that fit go ahead"),
    "max_min": (MaxMin(), "equal shares of the slots, within each job's limits"),
    "optimus": (Optimus(), "each slot to the job that gains most time by it"),
    "srtf": (Srtf(), "shortest remaining time first, with preemption"),
    "tiresias": (Tiresias(), "least attained service in two queues, with preemption"),
}
"""Name -> the policy with its published parameters, and what it does."""


def policy(name: str) -> Policy:
    """The policy of that name.

    Raises:
        UsageError: there is none.
    """
    if name not in POLICIES:
        raise UsageError(f"there is no policy {name!r}; use one of {', '.join(POLICIES)}")
    return POLICIES[name][0]
