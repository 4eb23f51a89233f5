"""`edl zookeeper`: start, stop and show a ZooKeeper of this user on this machine."""

from __future__ import annotations

import ipaddress
from pathlib import Path
from typing import Annotated

import typer

from edl.errors import CoordinationError
from edl.zookeeper import local_server
from edl.zookeeper.local_server import EVERY_ADDRESS, LocalServer

app = typer.Typer(
    help="A ZooKeeper of this user: for jobs on this machine, or with an address for several.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
)
WARNING = (
    "each job is protected by its secret; but anybody who reaches this port can read the names of "
    "jobs and make load, so let only your hosts reach it"
)
DataOption = Annotated[
    Path | None,
    typer.Option(
        "--data",
        metavar="DIR",
        help="The directory of its files. Default: in this user's state directory.",
        show_default=False,
    ),
]


@app.command()
def start(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Listen on this address of this machine, for jobs of several hosts. Default: that "
            "of the last start, or else 127.0.0.1.",
            show_default=False,
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="The port to listen on. Default: that of the last start, or else a free one.",
            show_default=False,
        ),
    ] = None,
    data: DataOption = None,
) -> None:
    """Start a ZooKeeper, unless it runs. It goes on when you log out, but not when you reboot.

    Says where it listens, and how other hosts reach it.
    """
    if data is not None:
        local_server.check_directory(data)
    local_server.start_local(data, address=address, port=port)
    server = local_server.local_status(data)
    if server is None:
        raise CoordinationError("ZooKeeper was stopped as soon as it ran; start it again")
    typer.echo(f"ZooKeeper runs at {server.address}:{server.port}")
    for sentence in _for_others(server, is_found=data is None):
        typer.echo(sentence)


@app.command()
def stop(data: DataOption = None) -> None:
    """Stop the ZooKeeper, if it runs. Its data stay, so jobs go on when it starts again."""
    if data is not None:
        local_server.check_directory(data)
    ran = (data is None or data.exists()) and local_server.stop_local(data)
    typer.echo("the local ZooKeeper is stopped" if ran else "no local ZooKeeper runs")


@app.command()
def status(data: DataOption = None) -> None:
    """Say whether the ZooKeeper runs, where it listens, and where its files are.

    Ends with 1 if it does not run.
    """
    server = local_server.local_status(data)
    if server is None:
        typer.echo("no local ZooKeeper runs; `edl zookeeper start` or `edl run` start one")
        raise typer.Exit(1)
    version = server.version or "it does not answer at the moment"
    typer.echo(
        f"ZooKeeper runs at {server.address}:{server.port} ({version}), process {server.pid}"
    )
    typer.echo(f"data: {server.data_dir}")
    typer.echo(f"log: {server.log_file}")


def _for_others(server: LocalServer, is_found: bool) -> list[str]:
    """Return what to type where the server is not found, and who can reach it."""
    named = f"{server.address}:{server.port}"
    if ipaddress.ip_address(server.address).is_loopback:
        return [] if is_found else [f"commands reach it by --zookeeper {named}"]
    everywhere = server.address == EVERY_ADDRESS
    option = f"--zookeeper {'ADDRESS' if everywhere else server.address}:{server.port}"
    whose = ", with an address of this machine, here too" if everywhere else ""
    return [
        f"commands on other hosts reach it by {option}{whose}",
        WARNING,
    ]
