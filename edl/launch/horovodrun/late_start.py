"""A change of hosts that the driver of horovodrun finds while its rank 0 starts.

The driver tells rank 0 of a change, and forgets it as long as rank 0 has not registered. It tells
of none twice, and nobody else knows what its host discovery script says, unless that is
edl-discover. So whoever was started as rank 0 lets the driver place the slots anew once. The ranks
stay in that, and nobody stops for it.
"""

from __future__ import annotations

import logging

from edl.core.host.horovodrun_slot import placed_otherwise
from edl.core.records import Snapshot
from edl.launch.horovodrun.driver import Driver
from edl.launch.horovodrun.launcher import discovered, find_launcher

logger = logging.getLogger(__name__)


class LateStart:
    """Whether the driver is to place the slots anew because its rank 0 registered late.

    Args:
        driver: has not answered yet, since it started this process.
        discover_s: for an edl-discover to say what is desired, which makes this needless.
    """

    def __init__(self, driver: Driver, discover_s: float) -> None:
        self._driver = driver
        self._discover_s = discover_s
        self._first = driver.newest if driver.newest.rank == 0 else None  # None: it is settled
        self._since: float | None = None

    def has_missed_hosts(self, snapshot: Snapshot, now: float) -> bool:
        """Return, once, whether the driver may know of hosts that it has not used.

        Not before all slots of the driver are assigned, nor after a placement that was made later.
        """
        self._since = now if self._since is None else self._since
        if self._first is None or now - self._since < self._discover_s:
            return False
        late = self._driver.newest is self._first
        if late and sum(snapshot.assigned.hosts.values()) < self._first.size:
            return False
        self._first = None
        missed = late and _may_be_placed_otherwise(snapshot)
        if missed:
            logger.info("the driver is asked for hosts that came before its rank 0 registered")
        return missed


def _may_be_placed_otherwise(snapshot: Snapshot) -> bool:
    """Return whether another placement may differ from the one that is assigned.

    Each counts for `--reset-limit`; where that is given, the host discovery script is asked first.
    """
    launcher = find_launcher()
    limits = launcher.limits() if launcher and launcher.may_limit_resets() else None
    if limits is None or limits.reset_limit is None:
        return True
    found = discovered(limits)
    assigned, max_np, min_np = snapshot.assigned.hosts, limits.max_np, limits.min_np
    return found is not None and placed_otherwise(assigned, found, max_np, min_np)
