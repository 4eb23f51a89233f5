"""`edl submit`: submit a job to a cluster."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer

from edl.cli.cluster.table import state_line
from edl.cli.common import ClusterOption, JsonOption, WaitTimeoutOption, ZooKeeperOption
from edl.cli.ending import complain
from edl.cluster.client.client import Cluster
from edl.cluster.client.manifest_reading import manifest_in, read_job_manifest
from edl.cluster.client.waiting import TIMED_OUT, wait_exit_code
from edl.cluster.manifest import JobManifest
from edl.cluster.status import ClusterJobStatus
from edl.errors import ManifestError, TimedOut, UsageError

STANDARD_INPUT = "-"


def submit(
    manifest: Annotated[
        str,
        typer.Argument(
            metavar="FILE", help="The job's manifest; -: standard input.", show_default=False
        ),
    ],
    key: Annotated[
        str | None,
        typer.Option(
            "--key",
            metavar="TEXT",
            help="Names this submission: the same key again is the same job.",
            show_default=False,
        ),
    ] = None,
    watch: Annotated[
        bool,
        typer.Option(
            "--watch", "-w", help="Show its place in the queue and why it waits, until it trains."
        ),
    ] = False,
    timeout_s: WaitTimeoutOption = None,
    as_json: JsonOption = False,
    cluster: ClusterOption = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Submit a job to a cluster; it starts when it gets slots.

    Returns as soon as the job is in ZooKeeper. With --watch it ends with 0 when the job trains; if
    it ends or is halted before that, as `edl wait`.
    """
    if timeout_s is not None and not watch:
        raise UsageError("--timeout is for --watch; give both or neither")
    given = _standard_input() if manifest == STANDARD_INPUT else read_job_manifest(manifest)
    with Cluster(cluster, zookeeper) as client:
        name = client.submit(given, key)
        if not watch:
            if as_json:
                typer.echo(json.dumps(client.show(name).job.to_json()))
            else:
                typer.echo(f"job {name} is submitted to cluster {client.name}")
            return

        def show(now: ClusterJobStatus) -> None:
            typer.echo(json.dumps(now.to_json()) if as_json else f"{name}  {state_line(now)}")

        try:
            end = client.wait_until_running(name, timeout_s, show)
        except KeyboardInterrupt:
            print(f"edl: interrupted; job {name} stays submitted", file=sys.stderr)
            raise typer.Exit(130) from None
        except TimedOut as error:
            complain(error)
            raise typer.Exit(TIMED_OUT) from None
    if end.is_over:
        raise typer.Exit(wait_exit_code(end))


def _standard_input() -> JobManifest:
    if sys.stdin is None:  # the parent has closed it
        raise ManifestError("standard input", 0, "it is closed; name the file of a job's manifest")
    return manifest_in(sys.stdin.buffer, "standard input")
