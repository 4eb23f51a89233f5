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
    """Return the record of the leases with which a leader that borrows from `engine` goes on."""
    if table.engine == engine or (_lease_count(table) and table.engine != forget):
        return table
    return replace(LeaseTable(engine), last=table.last)  # no number is used twice


def without_asking(engine: str, table: LeaseTable) -> LeaseTable:
    """Return `table`, of another engine, with the reason why `engine` is asked for nothing."""
    former = table.engine
    why = (
        f"{engine} is asked for no host while {former} has {counted(_lease_count(table), 'lease')} "
        f"of this cluster, which only a controller with --fleet {former} gives back: start it in "
        f"place of this one, with --max-hosts 0, and drain those hosts; if {former} is gone for "
        f"good, start one with --fleet {engine} --forget-fleet {former}"
    )
    # The former engine is asked again without a rest.
    return replace(table, why=why, failures=0, not_before_s=0.0)


def _lease_count(table: LeaseTable) -> int:
    return sum(not one.is_over for one in table.leases.values()) + len(table.strays)
