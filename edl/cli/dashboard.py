"""`edl dashboard`: show a job in a browser."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.api.listening import ListenAddress, check_packages
from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.config import LOOPBACK

PORT = 8470
PACKAGES = ("starlette", "uvicorn")


def dashboard(
    job: JobArgument = None,
    port: Annotated[
        int, typer.Option("--port", min=0, max=65535, help="Where to listen; 0: any free port.")
    ] = PORT,
    address: Annotated[
        str, typer.Option("--address", help="Of this host, to listen on, if not for itself alone.")
    ] = LOOPBACK,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Show a job in a browser: its state, generations, workers, speed, events and sizes.

    The printed address has a token, without which the page shows nothing. The server reads the job
    once a second, changes nothing, and goes on after the job's end, until Ctrl-C. Without JOB, if
    no job runs, the only one that has ended is shown.
    """
    check_packages("the dashboard", PACKAGES, "dashboard")
    from edl.dashboard.server import run_dashboard  # takes half a second

    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        run_dashboard(store, ListenAddress(address, port), lambda text: typer.echo(f"edl: {text}"))
