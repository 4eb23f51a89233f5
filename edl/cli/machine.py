"""The commands about this machine: doctor, build-horovod, completion, zookeeper.

A shell calls the completion at each Tab, so the others import what they need when they are called.
"""

from __future__ import annotations

import ipaddress
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

from edl import config
from edl.errors import ConfigError, CoordinationError
from edl.events import EventKind
from edl.zookeeper.access import CLUSTERS, JOBS, known_names


def doctor() -> None:
    """Check whether edl can run on this machine: Python, frameworks, Horovod, ZooKeeper.

    Shows a table of what was found, and what to do. Ends with 0 when edl can be used, 1 otherwise.
    """
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from edl.install.doctor import CheckResult, checks, usable

    colours = {CheckResult.OK: "green", CheckResult.LIMITED: "yellow", CheckResult.FAILED: "red"}
    console = Console(highlight=False)
    with console.status("looking ..."):
        rows = tuple(checks())
    table = Table(show_lines=False)
    for title in ("check", "state", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for row in rows:
        state = Text(row.state.value, style=colours[row.state])
        table.add_row(Text(row.name), state, Text(row.found), Text(row.remedy))
    console.print(table)
    if not usable(rows):
        failed = sum(row.state is CheckResult.FAILED for row in rows)
        console.print(f"edl cannot be used here yet: {failed} failed, see the last column")
        raise typer.Exit(1)
    console.print("edl can be used here")


def build_horovod(
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="Build Horovod's collectives for tensors on GPUs (allreduce, allgather, ...). "
            "Horovod's own variables choose the library and its folders: "
            "HOROVOD_GPU_OPERATIONS (default NCCL), HOROVOD_NCCL_HOME, HOROVOD_CUDA_HOME, ...",
        ),
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Build again although the wheel is in the cache.")
    ] = False,
    install: Annotated[
        bool, typer.Option("--install/--no-install", help="Install the wheel after building it.")
    ] = True,
) -> None:
    """Build Horovod 0.28.1 for today's PyTorch and TensorFlow, and install it.

    The wheel is kept in the user's cache; a second call takes it from there. With --no-install,
    prints its path.
    """
    from edl.cli.common import console
    from edl.install import horovod_wheel

    screen = console()
    wanted = horovod_wheel.recipe(gpu=gpu, environ=config.environment())
    if install:
        horovod_wheel.provide(wanted, force=force, console=screen)
    else:
        typer.echo(str(horovod_wheel.build(wanted, force=force, console=screen)))


VARIABLE = "_EDL_COMPLETE"
_TYPER: Any = import_module("typer.completion")  # it re-exports what is used here


class Shell(StrEnum):
    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(
    shell: Annotated[Shell, typer.Argument(help="The shell that shall complete.")],
) -> None:
    """Print a script with which a shell completes commands, options, jobs and events at Tab.

    Names of jobs are those that were started or joined by this user on this machine, so that no
    ZooKeeper is asked.
    """
    script = _TYPER.get_completion_script(prog_name="edl", complete_var=VARIABLE, shell=shell.value)
    typer.echo(script)


def completion_begins() -> None:
    """Let typer know the shells, before it answers one that asks for completions."""
    _TYPER.completion_init()


def items(values: dict[str, str], incomplete: str) -> list[Any]:
    item: Any = _TYPER.shell_completion.CompletionItem
    return [item(one, help=text) for one, text in values.items() if one.startswith(incomplete)]


def known_values(metavar: str) -> dict[str, str]:
    """Return the values of a parameter, each with an empty help text, without asking ZooKeeper."""
    if "EVENT" in metavar:
        return {str(kind): "" for kind in EventKind}
    try:
        names = known_names(config.state_dir(), CLUSTERS if "CLUSTER" in metavar else JOBS)
    except (ConfigError, OSError):  # this user has no state directory
        return {}
    return dict.fromkeys(names, "")


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
    ),
]


def start_zookeeper(
    address: Annotated[
        str | None,
        typer.Option(
            "--address",
            help="Listen on this address of this machine, for jobs of several hosts. Default: that "
            "of the last start, or else 127.0.0.1.",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            min=1,
            max=65535,
            help="The port to listen on. Default: that of the last start, or else a free one.",
        ),
    ] = None,
    data: DataOption = None,
) -> None:
    """Start a ZooKeeper, unless it runs. It goes on when you log out, but not when you reboot.

    Says where it listens, and how other hosts reach it.
    """
    from edl.zookeeper import local_server

    if data is not None:
        local_server.check_directory(data)
    local_server.start_local(data, address=address, port=port)
    server = local_server.local_status(data)
    if server is None:
        raise CoordinationError("ZooKeeper was stopped as soon as it ran; start it again")
    typer.echo(f"ZooKeeper runs at {server.address}:{server.port}")
    everywhere = server.address == local_server.EVERY_ADDRESS
    if not ipaddress.ip_address(server.address).is_loopback:
        option = f"--zookeeper {'ADDRESS' if everywhere else server.address}:{server.port}"
        whose = ", with an address of this machine, here too" if everywhere else ""
        typer.echo(f"commands on other hosts reach it by {option}{whose}")
        typer.echo(WARNING)
    elif data is not None:  # where no command looks for it
        typer.echo(f"commands reach it by --zookeeper {server.address}:{server.port}")


def stop_zookeeper(data: DataOption = None) -> None:
    """Stop the ZooKeeper, if it runs. Its data stay, so jobs go on when it starts again."""
    from edl.zookeeper import local_server

    if data is not None:
        local_server.check_directory(data)
    ran = (data is None or data.exists()) and local_server.stop_local(data)
    typer.echo("the local ZooKeeper is stopped" if ran else "no local ZooKeeper runs")


def zookeeper_status(data: DataOption = None) -> None:
    """Say whether the ZooKeeper runs, where it listens, and where its files are.

    Ends with 1 if it does not run.
    """
    from edl.zookeeper import local_server

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
