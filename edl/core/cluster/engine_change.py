"""Decide how a cluster goes on when its controller borrows hosts from another engine than before.

Only a controller of the former engine can ask that engine to take its hosts back. So while the
records have leases of it, the present engine is asked for nothing, and the records stay as they
are: the hosts keep their jobs, and a controller of the former engine goes on with them.
"""

from __future__ import annotations

from dataclasses import replace

from edl.core.cluster.lease_records import LeaseTable
from edl.core.plural import counted


def table_for(engine: str, table: LeaseTable, forget: str = "") -> LeaseTable:
    """Return the record of the leases with which a leader that borrows from ``engine`` goes on.

    It is ``table`` itself if it is of that engine, or has leases of another one that may go on.
    Else it is one without leases; the number of the newest lease is kept, as none is used twice.

    Args:
        engine: the name of the engine that the leader borrows from.
        table: the record as it was read.
        forget: the name of an engine that lends nothing any more: its leases do not count.
    """
    if table.engine == engine or (_lease_count(table) and table.engine != forget):
        return table
    return replace(LeaseTable(engine), last=table.last)


def without_asking(engine: str, table: LeaseTable) -> LeaseTable:
    """Return ``table``, of another engine, with the reason why ``engine`` is asked for nothing.

    The reason says how to go on. It takes the place of why the last lease came to nothing, so the
    former engine is asked again without a rest.

    Args:
        engine: the name of the engine that the leader borrows from.
        table: the record, with leases of another engine.
    """
    former = table.engine
    why = (
        f"{engine} is asked for no host while {former} has {counted(_lease_count(table), 'lease')} "
        f"of this cluster, which only a controller with --fleet {former} gives back: start it in "
        f"place of this one, with --max-hosts 0, and drain those hosts; if {former} is gone for "
        f"good, start one with --fleet {engine} --forget-fleet {former}"
    )
    return replace(table, why=why, failures=0, not_before_s=0.0)


def _lease_count(table: LeaseTable) -> int:
    """Return how many leases of ``table`` are not over, as far as its engine has said."""
    return sum(not one.is_over for one in table.leases.values()) + len(table.strays)
