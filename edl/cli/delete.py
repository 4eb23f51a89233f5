"""`edl delete`: remove jobs that have ended from ZooKeeper."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.coordination.lifecycle import delete_ended, unknown_job


def delete(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of ended jobs.")],
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove ended jobs from ZooKeeper, with their events. Checkpoints and logs stay.

    A job whose processes have all died counts as ended. Stops at the first that is not removed.
    """
    with connected(zookeeper) as session:
        for name in jobs:
            store = choose_job(session, name)
            if not delete_ended(session, store.paths):
                raise unknown_job(session, store.paths)
            typer.echo(f"job {name} is deleted")
