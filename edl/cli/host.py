"""`edl host`: offer this machine to a cluster, and keep the agents of the jobs that run here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from edl import config
from edl.cli.common import (
    AddressOption,
    ClusterOption,
    InterfaceOption,
    ZooKeeperOption,
    line_writer,
    settings_of_agent,
)
from edl.cluster.client.connection import connected_cluster
from edl.cluster.host.daemon import HostSettings, run_host_daemon
from edl.cluster.host.processes import check_slices
from edl.cluster.host.users import job_users
from edl.cluster.host_jobs import slot_limits
from edl.errors import UsageError
from edl.host.address import check_own_name, own_address
from edl.host.devices import CUDA, entries, offered_devices
from edl.text import RULE, is_name
from edl.zookeeper.paths import check_name


def host(
    cluster: ClusterOption = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            min=1,
            help="Workers that fit on this host. Default: one for each GPU in --devices, or "
            "else in CUDA_VISIBLE_DEVICES. Required if neither is given.",
        ),
    ] = None,
    devices: Annotated[
        str | None,
        typer.Option(
            "--devices",
            metavar="N,…",
            help="Numbers of the GPUs to offer, one for each slot. Default: the first --slots "
            "GPUs, or else all in CUDA_VISIBLE_DEVICES.",
        ),
    ] = None,
    label: Annotated[
        list[str] | None,
        typer.Option(
            "--label",
            metavar="KEY=VALUE",
            help="A label that jobs can ask for, like gpu=h100; may be repeated.",
        ),
    ] = None,
    kind: Annotated[
        str | None,
        typer.Option(
            "--kind",
            metavar="NAME",
            help="Kind of machine, for policies that tell fast from slow ones.",
        ),
    ] = None,
    user: Annotated[
        list[str] | None,
        typer.Option(
            "--user",
            metavar="[TENANT=]USER",
            help="Run the jobs of a tenant, or all others, as this user of the machine; needs "
            "root, but for the user who runs `edl host`. Tenants' jobs run on hosts only that "
            "name a user for them. May be repeated.",
        ),
    ] = None,
    memory_per_slot: Annotated[
        str | None,
        typer.Option(
            "--memory-per-slot",
            metavar="SIZE",
            help="Most memory of a job here for each of its slots, like 16G. What takes more is "
            "killed. Needs root, and systemd. Default: no limit.",
        ),
    ] = None,
    cpus_per_slot: Annotated[
        float | None,
        typer.Option(
            "--cpus-per-slot",
            metavar="N",
            help="Most processors of a job here for each of its slots, like 4 or 0.5; as above.",
        ),
    ] = None,
    tasks_per_slot: Annotated[
        int | None,
        typer.Option(
            "--tasks-per-slot",
            metavar="N",
            help="Most processes and threads of a job here for each of its slots; as above.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option("--host", help="Name of this host in the cluster. Default: the machine's."),
    ] = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    leave_within: Annotated[
        float | None,
        typer.Option(
            "--leave-within",
            metavar="SECONDS",
            min=0.0,
            help="After a signal: kill what has not left in this time. Default: no limit.",
        ),
    ] = None,
    lease: Annotated[
        str | None,
        typer.Option(
            "--lease",
            metavar="NAME",
            help="Lease with which `edl cluster start --fleet` has borrowed this host.",
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Offer this machine to a cluster, and keep an agent of each job that gets slots here.

    It may be killed and started again at any time: the jobs train on. SIGTERM makes the host leave
    the cluster, and its workers leave their jobs; a second one kills them.
    """
    settings = settings_of_agent(
        host=host,
        address=address,
        network_interface=network_interface,
        zookeeper=zookeeper,
        leave_within_s=leave_within,
    )
    check_name("host", settings.host)
    check_own_name()
    cuda = entries(config.environment().get(CUDA))
    numbers = offered_devices(slots, devices, cuda)
    labels = _labels(label or ())
    users = job_users(user or ())
    limits = slot_limits(memory_per_slot, cpus_per_slot, tasks_per_slot)
    if not limits.is_empty:
        check_slices()
    with connected_cluster(cluster, zookeeper) as store:
        hosts = store.nodes.session.hosts
        where = own_address(settings.address, settings.network_interface, hosts)
        offer = settings, where, numbers, labels, kind or ""
        own = HostSettings(*offer, users=users, limits=limits, lease=lease or "")
        run_host_daemon(store, own, line_writer())


def _labels(words: Sequence[str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for word in words:
        key, sign, value = word.partition("=")
        if not sign or not value or not is_name(key):
            raise UsageError(f"--label is {word!r}; give KEY=VALUE, where KEY has {RULE}")
        if key in found:
            raise UsageError(f"--label {key} is given twice; a label has one value")
        found[key] = value
    return found
