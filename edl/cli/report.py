"""`edl report`: write what the dashboard shows of a job into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from edl.cli.common import JobArgument, ZooKeeperOption
from edl.client.connection import choose_job, connected
from edl.errors import UsageError


def report(
    job: JobArgument = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", metavar="FILE", help="The file to write, if not JOB.html."),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Write the dashboard's page of a job into one HTML file, to look at later or elsewhere.

    The file needs no server and no internet: send it with a question, or keep it with the results.
    It has the job's command, hosts, state and newest 2,000 events, and no secret. A file that is
    there already is replaced. Without JOB, if no job runs, the only one that has ended is reported.
    """
    from edl.dashboard.job_watcher import JobWatcher
    from edl.dashboard.report import report_page

    with connected(zookeeper) as session:
        store = choose_job(session, job, ended=True)
        store.snapshot()  # what cannot be read is an error here, and no page without a job
        watcher = JobWatcher(store)
        watcher.turn()
        path = output or Path(f"{store.name}.html")
        try:
            path.write_text(report_page(watcher), "utf-8")
        except OSError as error:
            raise UsageError(f"the report cannot be written to {path}: {error.strerror}") from error
    typer.echo(f"edl: job {store.name} is reported in {path}; open it in a browser")
