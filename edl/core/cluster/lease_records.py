"""Define what is known of the leases of a cluster: hosts that another engine lends to it.

A *lease* is one loan of a host by an engine such as Slurm: the engine starts an `edl host` there,
and may take the host back. :mod:`edl.core.cluster.leases` decides about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from edl.core.plural import counted
from edl.core.record import Record
from edl.errors import some


class LeaseState(StrEnum):
    """The state of a lease, as the engine tells it."""

    ASKED = "asked"  # it waits in the engine's queue, for the first time or again
    HELD = "held"  # the engine will not start it, as a start has failed; never in a record
    RUNNING = "running"  # its `edl host` was started
    ENDED = "ended"  # its `edl host` has ended, or never will be started
    UNKNOWN = "unknown"  # the engine has it, but tells none of these; never in a record


@dataclass(frozen=True)
class HostLease:
    """One lease as the engine tells it."""

    state: LeaseState
    # the name of the machine, under which its `edl host` is in the cluster; empty: not known yet
    host: str = ""
    # why it waits, has ended or has no known state, in the engine's words; may be empty
    why: str = ""
    # the machines that the engine was told not to lend; None: it cannot be told that of a lease
    # that it has
    avoid: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Shape:
    """The kind of host that a cluster asks an engine for."""

    slots: int  # the number of slots that its `edl host` offers
    labels: Mapping[str, str] = field(default_factory=dict)  # the labels that it offers
    kind: str = ""  # the kind of machine that it names, for policies that tell fast from slow ones
    # the machines that are of no use now, sorted: the engine is to lend others if it can
    avoid: tuple[str, ...] = ()


@dataclass(frozen=True)
class LeaseLimits:
    """How many hosts of which shape a cluster borrows, and for how long."""

    shape: Shape  # the shape of each host
    # the most leases at a time; 0: no host is asked for, and idle ones are given back
    max_hosts: int
    min_hosts: int = 0  # so many leases are kept although no job needs them
    idle_s: float = 300.0  # a host that no job has had slots of for this time is given back
    # a lease that runs is given back if its host offers nothing for this time
    start_s: float = 300.0
    # within this time a host that is given back must have left; then the engine ends it
    leave_s: float = 60.0
    stray_s: float = 60.0  # a lease that the records do not know is given back after this time
    # the name of a former engine that lends nothing any more: its leases are dropped from the
    # records. Empty: none.
    forget: str = ""


@dataclass(frozen=True)
class LeaseRecord(Record):
    """The record of one lease. It is written before the engine is asked. Times are since 1970."""

    slots: int  # the number of slots that its host was to offer
    asked_s: float  # when it was written
    state: LeaseState = LeaseState.ASKED  # the engine's last word
    host: str = ""  # the host that it is, or last was, on; empty: not known
    why: str = ""  # the engine's last reason
    # since when the engine says that it runs, and no host offers slots under it; 0: one does, or it
    # does not run
    silent_s: float = 0.0
    offered_s: float = 0.0  # when its host first offered slots; 0: it never has
    # since when no job has had slots on its host, or since when there is no host; 0: a job has some
    idle_s: float = 0.0
    back_s: float = 0.0  # since when it is being given back; 0: it is not
    leaves: bool = False  # whether its host has said that it leaves, as a signal makes it do
    # whether the engine says that it has ended, while its host still offers slots
    is_over: bool = False

    @property
    def lease_holds(self) -> bool:
        """Whether jobs may get slots of its host: the lease goes on, as far as is known."""
        # In the queue again: the engine has taken the host back, whatever still lives there.
        taken_back = self.offered_s > 0 and self.state is not LeaseState.RUNNING
        return not (self.back_s or self.is_over or taken_back)


@dataclass(frozen=True)
class MissingPath(Record):
    """The record that a lent host did not have a path that jobs need."""

    host: str  # the name of the host
    since_s: float  # when it was first known


@dataclass(frozen=True)
class LeaseTable(Record):
    """The record of all leases of a cluster, at its node `leases`; the leader writes it."""

    engine: str = ""  # the name of the engine that lends the hosts
    last: int = 0  # the number of the newest lease; none is used twice
    # name of the lease -> its record
    leases: Mapping[str, LeaseRecord] = field(default_factory=dict)
    # name of a lease of this cluster that is in none of the records -> since when the engine has
    # told of it
    strays: Mapping[str, float] = field(default_factory=dict)
    # how many leases in a row have come to nothing, where those that were asked for before such a
    # failure was counted belong to the same one
    failures: int = 0
    failed_to: int = 0  # the number of the newest lease when the last failure was counted
    not_before_s: float = 0.0  # after such a failure, before when no further host is asked for
    # why the last lease came to nothing, or why the engine is not asked, as a sentence
    why: str = ""
    wanted: int = 0  # how many hosts the jobs need now, within the limits
    # path -> the lent host that did not have it. For a time no host is asked for on behalf of jobs
    # that need the path, also when that host has been given back.
    missing: Mapping[str, MissingPath] = field(default_factory=dict)


def left_borrowed(table: LeaseTable) -> str:
    """Return that the engine lends the hosts of `table` on, a sentence; "" if it lends none."""
    lent = [one for one in table.leases.values() if not one.back_s and not one.is_over]
    if not lent:
        return ""
    hosts = sorted({one.host for one in lent} - {""})
    which = f" ({some(hosts)})" if hosts else ""
    return (
        f"{table.engine} still lends {counted(len(lent), 'host')}{which}, and jobs train on; "
        f"nobody gives {'it' if len(lent) == 1 else 'them'} back until a controller runs again"
    )
