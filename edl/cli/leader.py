"""`edl leader`: show which worker leads a job."""

from __future__ import annotations

import typer

from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.errors import EdlError


def leader(job: JobArgument = None, zookeeper: ZooKeeperOption = None) -> None:
    """Show which worker leads a job, its host, its process id, and its term.

    Ends with 1 when no worker leads at the moment, or when the job is over.
    """
    with connected(zookeeper) as session:
        snapshot = choose_job(session, job).snapshot()
    name = snapshot.job.name
    if snapshot.job.state.over:
        raise EdlError(f"nobody leads job {name}: it {snapshot.job.state.phrase}")
    leads = snapshot.leader
    member = next((m for m in snapshot.members if leads and m.id == leads.worker), None)
    if leads is None or member is None:
        raise EdlError(f"nobody leads job {name} at the moment")
    typer.echo(f"{member.name} on {member.host}, process {member.pid}, term {leads.term}")
