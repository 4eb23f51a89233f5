"""Say what a fleet is: an engine that lends hosts to a cluster, by four calls.

A *fleet* knows nothing of jobs and slots. It starts one `edl host` a lease on a machine of its own
choice, and ends it. :mod:`edl.core.cluster.leases` decides when.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from edl.core.cluster.lease_records import HostLease, Shape
from edl.errors import EdlError


class FleetUnreachable(EdlError):
    """The engine does not answer; what was asked may have been done. Nothing follows from it."""


class LeaseRefused(EdlError):
    """The engine has refused to lend a host; the text is its reason, as a sentence."""


class Fleet(Protocol):
    """The four calls by which a controller borrows hosts from an engine, such as Slurm or Ray."""

    # Each call takes a bounded time. One thread at a time makes them.

    @property
    def name(self) -> str:
        """The name of the engine, for messages."""

    def leases(self) -> Mapping[str, HostLease]:
        """Ask the engine for all leases of this cluster, by name, also ended ones it remembers."""

    def ask(self, lease: str, shape: Shape) -> None:
        """Ask the engine for a host, if it has no lease of that name that has not ended."""
        # A lease that waits is told which machines to avoid now, if the engine can be told that.

    def give_back(self, lease: str, within_s: float) -> None:
        """Let the `edl host` of a lease leave; do nothing if there is no such lease."""
        # `within_s` 0: the engine ends the lease now. Otherwise its `edl host` gets SIGTERM, if it
        # runs; a lease that waits in the engine's queue ends.

    def log(self, lease: str) -> str:
        """Return the end of what the `edl host` of a lease has printed; may be empty."""
