"""`edl scale`: change how many workers a job has."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client import Job


def scale(
    np: Annotated[int, typer.Option("-np", "--np", help="Workers wanted.")],
    job: JobArgument = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job grow or shrink to --np workers while it trains.

    Returns as soon as the number is written into ZooKeeper; `edl events --follow` shows it happen.
    """
    typer.echo(str(Job(job, zookeeper).scale(np)))
