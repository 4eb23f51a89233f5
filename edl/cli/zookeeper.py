"""`edl zookeeper`: start, stop and show the local ZooKeeper of this user."""

from __future__ import annotations

import typer

from edl.coordination import local_server

app = typer.Typer(
    help="The local ZooKeeper of this user, for jobs on one machine.",
    no_args_is_help=True,
    rich_markup_mode=None,
)


@app.command()
def start() -> None:
    """Start the local ZooKeeper, unless it runs."""
    typer.echo(f"ZooKeeper runs at {local_server.start_local()}")


@app.command()
def stop() -> None:
    """Stop the local ZooKeeper. Its data stay, so jobs go on when it starts again."""
    ran = local_server.stop_local()
    typer.echo("the local ZooKeeper is stopped" if ran else "no local ZooKeeper runs")


@app.command()
def status() -> None:
    """Say whether the local ZooKeeper runs, and where; ends with 1 when it does not."""
    server = local_server.local_status()
    if server is None:
        typer.echo("no local ZooKeeper runs; `edl zookeeper start` or `edl run` start one")
        raise typer.Exit(1)
    version = server.version or "it does not answer at the moment"
    typer.echo(f"ZooKeeper runs at {server.hosts} ({version}), process {server.pid}")
    typer.echo(f"data: {server.data_dir}")
    typer.echo(f"log: {server.log_file}")
