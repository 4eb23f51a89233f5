"""`edl delete`: end jobs of a cluster for good, and remove jobs that have ended."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import MaybeClusterOption, ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.cluster.client.access import store_of_job
from edl.zookeeper.nodes import delete_ended, unknown_job


def delete(
    jobs: Annotated[list[str], typer.Argument(metavar="JOB...", help="Names of the jobs.")],
    cluster: MaybeClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Remove ended jobs from ZooKeeper, with their events. Checkpoints and logs stay.

    A job of `edl run` must have ended. A job of a cluster that has not is stopped with a
    checkpoint, for good, and its records stay until the command is called again.
    """
    with connected(zookeeper) as session:
        for name in jobs:
            of_cluster = store_of_job(session, name, cluster)
            if of_cluster is not None:
                removed = of_cluster.jobs.delete(name).removed
                what = f"the records of job {name}" if removed else f"job {name}"
                typer.echo(f"{what} will be {'removed' if removed else 'deleted'}")
                continue
            store = choose_job(session, name)
            if not delete_ended(session, store.paths):
                raise unknown_job(session, store.paths)
            typer.echo(f"job {name} is deleted")
