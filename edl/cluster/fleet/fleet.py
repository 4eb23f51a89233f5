"""Say what a fleet is: an engine that lends hosts to a cluster, by four calls.

A *fleet* knows nothing of jobs and slots. It starts one `edl host` a lease on a machine of its own
choice, and ends it. :mod:`edl.cluster.leases` decides when.
"""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from edl.cluster.records import HostLease, Shape
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


# ------------------------------------------------------------
# Make the command with which an engine starts the `edl host` of a lease.
#
# The command names the file of the cluster's secret. It has no secret itself, for engines store
# what they start: Slurm in its spool, Ray in its database.


# What the processes of a host need to find their programs and files, as the controller's have it.
KEPT = ("HOME", "PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "XDG_STATE_HOME", "XDG_CACHE_HOME", "LANG")


@dataclass(frozen=True)
class HostCommand:
    cluster: str  # the name of the cluster
    zookeeper: str  # its ZooKeeper servers
    secret_file: Path  # the file with its secret, under the same path on every machine
    environment: Mapping[str, str]  # the variables that each `edl host` has
    options: Sequence[str] = ()  # further options of `edl host`

    def words(self, lease: str, shape: Shape) -> list[str]:
        """Return the words of the command, without the name of the host."""
        labels = [f"{key}={value}" for key, value in sorted(shape.labels.items())]
        return [
            *(sys.executable, "-m", "edl.cli.main", "host", "--cluster", self.cluster),
            *("--zookeeper", self.zookeeper, "--secret-file", str(self.secret_file)),
            *("--slots", str(shape.slots), "--lease", lease),
            *(word for label in labels for word in ("--label", label)),
            *(("--kind", shape.kind) if shape.kind else ()),
            *self.options,
        ]

    def script(self, lease: str, shape: Shape, host: str, before: str = "") -> str:
        exports = [f"export {key}={shlex.quote(one)}" for key, one in self.environment.items()]
        command = " ".join(filter(None, (before, shlex.join(self.words(lease, shape)))))
        return "\n".join(["#!/bin/sh", *exports, f"exec {command} --host {host}", ""])


def kept_environment(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environment[name] for name in KEPT if name in environment}
    here = str(Path(sys.executable).parent)
    path = kept.get("PATH", os.defpath)
    return kept | {"PATH": path if path.split(":")[0] == here else f"{here}:{path}"}
