"""`edl agent`: keep this host's workers of one run of a job; the agent runs in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import (
    AddressOption,
    HostOption,
    InterfaceOption,
    MetricsPortOption,
    ZooKeeperOption,
    console,
    settings_of_agent,
)
from edl.cli.last_line import AgentCommand, LastLineOption, last_line
from edl.client.connection import choose_job, connected, in_session_of_job
from edl.host.address import check_own_name
from edl.host.host_agent import agent_display, agent_of_run
from edl.host.process import agent_exit_code
from edl.job.run import check_run_token
from edl.zookeeper.paths import check_name


def agent(
    job: Annotated[str, typer.Option("--job", help="Name of the job.")],
    run: Annotated[
        str,
        typer.Option(
            "--run",
            metavar="TOKEN",
            help="Token of the run, which is one start of the job: `submit(..., run=TOKEN)`.",
        ),
    ],
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            help="Workers that fit on this host. Default: the job's maximum.",
            show_default=False,
        ),
    ] = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    metrics_port: MetricsPortOption = None,
    zookeeper: ZooKeeperOption = None,
    quiet: Annotated[
        bool,
        typer.Option("--quiet", help="Show no output of workers: it is in their logs."),
    ] = False,
    as_json: LastLineOption = False,
) -> None:
    """Keep the workers that a job has on this host, in one run of the job and in no other.

    It never creates a job: when the run is over, or another one has its place, it ends. It ends
    with the code of a job that has finished or failed, and else with a code of its own for each
    end. SIGTERM makes the workers of this host leave the job, which goes on.
    """
    with last_line(as_json, job, run) as line:
        settings = settings_of_agent(
            host=host,
            address=address,
            network_interface=network_interface,
            metrics_port=metrics_port,
            zookeeper=zookeeper,
        )
        line.knows(host=settings.host)
        check_run_token(run)
        check_name("host", settings.host)
        check_own_name()
        with connected(zookeeper) as session, in_session_of_job(choose_job(session, job)) as store:
            display = agent_display(store.name, console(), quiet)
            one = agent_of_run(store, run, settings, display, slots)
            end = line.run(one, agent_exit_code)
        raise end


COMMAND = {"cls": AgentCommand}
