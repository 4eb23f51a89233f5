"""Make the fleet that a user has asked for, from the options of `edl cluster start`."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from edl import config
from edl.cluster.fleet.fleet import Fleet, HostCommand, kept_environment
from edl.cluster.fleet.ray import RayFleet
from edl.cluster.fleet.slurm import PROGRAMS, SlurmFleet
from edl.cluster.host.processes import host_mark
from edl.cluster.records import LeaseLimits, Shape
from edl.errors import UsageError

PREFIX_LENGTH = 8  # of the part of a name that only this cluster has


@dataclass(frozen=True)
class FleetOptions:
    name: str = ""  # the name of the engine; empty: none
    slots: int | None = None  # the number of slots of each host; None: not given
    max_hosts: int | None = None  # the most hosts; None: not given
    min_hosts: int = 0  # the fewest hosts
    idle_s: float = 300.0  # after how many seconds an idle host is given back
    labels: Mapping[str, str] = field(default_factory=dict)  # the labels of each host
    kind: str = ""  # the kind of each host
    partition: str | None = None  # Slurm's partition; None: the default one
    options: Sequence[str] = ()  # options for the engine: those of sbatch, or KEY=VALUE for Ray
    forget: str = ""  # the name of a former engine whose leases are forgotten; empty: none

    def limits(self) -> LeaseLimits:
        if not self.name:
            raise UsageError(
                "--host-slots, --max-hosts and the other options of borrowed hosts need --fleet; "
                f"name the engine that lends them: {', '.join(FLEETS)}"
            )
        if self.name not in FLEETS:
            raise UsageError(f"there is no fleet {self.name!r}; there are: {', '.join(FLEETS)}")
        if self.slots is None or self.max_hosts is None:
            missing = "--host-slots" if self.slots is None else "--max-hosts"
            what = {"--host-slots": "slots a host offers", "--max-hosts": "hosts it may lend"}
            raise UsageError(f"--fleet {self.name} needs {missing}: how many {what[missing]}")
        if self.min_hosts > self.max_hosts:
            raise UsageError(
                f"--min-hosts is {self.min_hosts}, and --max-hosts {self.max_hosts}; give at most "
                "as many"
            )
        if self.name != "slurm" and self.partition:
            raise UsageError("--partition is for --fleet slurm; leave it out")
        if self.forget and (self.forget == self.name or self.forget not in FLEETS):
            others = ", ".join(name for name in FLEETS if name != self.name)
            raise UsageError(
                f"--forget-fleet is {self.forget!r}; with --fleet {self.name} name a former engine "
                f"that lends nothing any more: {others}"
            )
        shape = Shape(self.slots, self.labels, self.kind)
        return LeaseLimits(shape, self.max_hosts, self.min_hosts, self.idle_s, forget=self.forget)


@dataclass(frozen=True)
class LeaseOwner:
    cluster: str
    secret: str = field(repr=False)  # a log may show the owner
    secret_file: Path
    zookeeper: str  # its ZooKeeper servers
    directory: Path  # the directory of this user's files about the cluster

    @property
    def prefix(self) -> str:
        mark = host_mark(self.secret, self.cluster, "")[:PREFIX_LENGTH]
        return f"edl-{self.cluster}-{mark}-"

    @property
    def command(self) -> HostCommand:
        kept = kept_environment(config.environment())
        return HostCommand(self.cluster, self.zookeeper, self.secret_file, kept)


def fleet_of(options: FleetOptions, owner: LeaseOwner) -> Fleet:
    return FLEETS[options.name](options, owner)


def _slurm(options: FleetOptions, owner: LeaseOwner) -> Fleet:
    for program in PROGRAMS:
        if shutil.which(program) is None:
            raise UsageError(
                f"--fleet slurm needs {program} on the PATH of the controller; start it on a "
                "machine that submits to Slurm"
            )
    logs = owner.directory / "leases"
    return SlurmFleet(owner.command, owner.prefix, logs, options.partition, options.options)


def _ray(options: FleetOptions, owner: LeaseOwner) -> Fleet:
    found = {"python": sys.executable, "address": "auto"}
    for text in options.options:
        key, _, value = text.partition("=")
        if key not in found or not value:
            raise UsageError(
                f"--fleet-option is {text!r}; with --fleet ray give python=PATH, the Python that "
                "has Ray, or address=HOST:PORT, where Ray is"
            )
        found[key] = value
    if shutil.which(found["python"]) is None:
        raise UsageError(
            f"--fleet-option=python={found['python']} is no program; give the path of the Python "
            "that has Ray"
        )
    environment = config.environment()
    environment.pop("PYTHONPATH", None)  # it is that of this Python
    return RayFleet(owner.command, owner.prefix, found["python"], found["address"], environment)


FLEETS: Mapping[str, Callable[[FleetOptions, LeaseOwner], Fleet]] = {"slurm": _slurm, "ray": _ray}
