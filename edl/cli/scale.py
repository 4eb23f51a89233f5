"""`edl scale`: how many workers the job shall have."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption, choose_job, connected
from edl.core.facts import JobState
from edl.core.offer import as_hosts
from edl.core.placement import check_scale, place
from edl.errors import UsageError


def scale(
    np: Annotated[int, typer.Option("-np", "--np", help="Workers wanted.")],
    job: JobArgument = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job grow or shrink to --np workers while it trains.

    Returns as soon as that is written down; `edl events --follow` shows it happen.
    """
    with connected(zookeeper) as session:
        store = choose_job(session, job)
        snapshot = store.snapshot()
        name = snapshot.job.name
        if snapshot.job.state is not JobState.RUNNING:
            raise UsageError(f"cannot scale job {name}: it is {snapshot.job.state}")
        check_scale(snapshot.job, np)
        hosts = snapshot.hosts
        if snapshot.job.driver:
            hosts = as_hosts(snapshot.job.offer)
        if snapshot.job.driver and not hosts:
            raise UsageError(
                f"cannot scale job {name}: it is for the host discovery script of horovodrun to "
                "say how many workers there are; use `--host-discovery-script edl-discover`"
            )
        before: dict[str, int] = {}

        def change(plan: dict[str, int]) -> dict[str, int]:
            before.clear()
            before.update(plan)
            return place(name, np, plan, hosts)

        after = (store.change_wish if snapshot.job.driver else store.change_plan)(change)
    where = ", ".join(f"{host}: {count}" for host, count in after.items())
    typer.echo(f"job {name}: {sum(before.values())} -> {sum(after.values())} workers ({where})")
