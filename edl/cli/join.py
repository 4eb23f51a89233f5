"""`edl join`: add this host to a job; its agent runs in this process."""

from __future__ import annotations

from typing import Annotated

import typer

from edl.cli.common import (
    AddressOption,
    BorrowedFileOption,
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
from edl.host.host_agent import agent_display, joining_agent
from edl.zookeeper.paths import check_name


def join(
    job: Annotated[
        str | None,
        typer.Option(
            "--job",
            help="Name of the job; may be left out when one is running.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            help="Workers that fit on this host. Default: the job's maximum.",
            show_default=False,
        ),
    ] = None,
    np: Annotated[
        int | None,
        typer.Option(
            "-np",
            "--np",
            help="Workers to start here at once, as far as the job's maximum has room. Default: "
            "none, until `edl scale`.",
            show_default=False,
        ),
    ] = None,
    borrowed_file: BorrowedFileOption = None,
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    metrics_port: MetricsPortOption = None,
    zookeeper: ZooKeeperOption = None,
    as_json: LastLineOption = False,
) -> None:
    """Offer this host's slots to a job. `edl scale` then starts workers in them, or -np at once.

    Ends with the job. Ctrl-C makes the workers of this host leave the job, which goes on.
    """
    with last_line(as_json, job) as line:
        settings = settings_of_agent(
            host=host,
            address=address,
            network_interface=network_interface,
            metrics_port=metrics_port,
            zookeeper=zookeeper,
            borrowed_file=borrowed_file,
        )
        line.knows(host=settings.host)
        check_name("host", settings.host)
        check_own_name()
        with connected(zookeeper) as session, in_session_of_job(choose_job(session, job)) as store:
            agent = joining_agent(store, settings, agent_display(store.name, console()), slots, np)
            end = line.run(agent)
        raise end


COMMAND = {"cls": AgentCommand}
