"""Find out whether horovodrun's driver missed a change of hosts while its rank 0 started.

The driver notifies rank 0 of a change of hosts. A change that comes before rank 0 has registered is
lost: the driver notifies no process of it later. So the process that was started as rank 0 asks the
driver once to assign the slots again, unless `edl-discover` is used, which says how many workers
are desired. That new assignment leaves the ranks as they are, and no worker stops for it. The main
entry is :class:`LateStart`.
"""

from __future__ import annotations

import logging

from edl.core.host.horovodrun_slot import placed_otherwise
from edl.core.snapshot import Snapshot
from edl.launch.horovodrun.driver import Driver
from edl.launch.horovodrun.launcher import discovered, find_launcher

logger = logging.getLogger(__name__)


class LateStart:
    """A check, made once, whether horovodrun's driver must be asked to assign its slots again."""

    # Hosts may have changed before its rank 0 had registered, and it tells nobody later.

    def __init__(self, driver: Driver, discover_s: float) -> None:
        self._driver = driver
        self._discover_s = discover_s
        self._first = driver.newest if driver.newest.rank == 0 else None  # None: it is settled
        self._since: float | None = None

    def has_missed_hosts(self, snapshot: Snapshot, now: float) -> bool:
        """Return, at most once True, whether to ask the driver to assign its slots again."""
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
    """Return whether the driver, asked to assign its slots again, may place workers differently."""
    # Each assignment counts for a --reset-limit: only if the discovery script says other hosts.
    launcher = find_launcher()
    limits = launcher.limits() if launcher and launcher.may_limit_resets() else None
    if limits is None or limits.reset_limit is None:
        return True
    found = discovered(limits)
    assigned, max_np, min_np = snapshot.assigned.hosts, limits.max_np, limits.min_np
    return found is not None and placed_otherwise(assigned, found, max_np, min_np)
