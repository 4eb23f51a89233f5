"""`edl cluster`: start and show a cluster, which shares hosts among elastic jobs."""

from __future__ import annotations

import os
import signal
import socket
import uuid
from importlib import metadata
from typing import Annotated

import typer

from edl import config
from edl.cli.common import AddressOption, ZooKeeperOption
from edl.client.clusters import DEFAULT_NAME, access_to_start
from edl.client.connection import connected
from edl.core.cluster.policies import with_parameters
from edl.core.cluster.records import ClusterRecord, ControllerRecord
from edl.launch.address import own_address
from edl.scheduler.controller import Controller

app = typer.Typer(
    help="A cluster shares hosts among elastic jobs.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.callback()
def _cluster() -> None:
    """Share hosts among elastic jobs."""


@app.command()
def start(
    name: Annotated[str, typer.Option("--name", help="Name of the cluster.")] = DEFAULT_NAME,
    policy: Annotated[
        str | None,
        typer.Option(
            "--policy",
            help="Name of the policy of a new cluster. Default: edl.",
            show_default=False,
        ),
    ] = None,
    address: AddressOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Run a controller of a cluster, which is created if it is not there yet.

    Of several controllers of a cluster one leads, and another one takes its place when it ends. It
    runs until SIGTERM or Ctrl-C.
    """
    settings = ClusterRecord() if policy is None else ClusterRecord(policy=policy)
    with_parameters(settings.policy, settings.parameters)
    with connected(zookeeper) as session:
        hosts = session.hosts
        access, is_new = access_to_start(session, name, settings)
    typer.echo(f"cluster {name} {'is created' if is_new else 'is there'}, at ZooKeeper {hosts}")
    about = ControllerRecord(
        controller=f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}",
        host=socket.gethostname(),
        pid=os.getpid(),
        address=own_address(address or config.load().address, "", hosts),
        version=metadata.version("edl-horovod"),
    )
    controller = Controller(hosts, access, about, _say)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: controller.stop())
    controller.run()
    _say("has ended")


def _say(sentence: str) -> None:
    """Print a line of what the controller does."""
    print(sentence, flush=True)
