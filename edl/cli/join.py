"""`edl join`: add this host to a job, with its agent in this process."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from edl import config
from edl.cli.common import (
    AddressOption,
    HostOption,
    InterfaceOption,
    ZooKeeperOption,
    check_own_name,
    choose_job,
    connected,
    console,
)
from edl.cli.live import LiveLine
from edl.cli.run import worker_environment
from edl.coordination.paths import check_name
from edl.core.facts import Host
from edl.errors import UsageError
from edl.launch.address import own_address
from edl.launch.agent import Agent
from edl.launch.command import check_command
from edl.launch.output import Output
from edl.launch.secret import keep, read_file
from edl.launch.workers import log_directory


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
    host: HostOption = None,
    address: AddressOption = None,
    network_interface: InterfaceOption = None,
    secret_file: Annotated[
        Path | None,
        typer.Option(
            "--secret-file",
            help="The job's secret, copied from the host of `edl run`. Default: EDL_SECRET, or "
            "what this user's state directory has.",
            show_default=False,
        ),
    ] = None,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Offer this host's slots to a job. `edl scale` then uses them.

    Ends with the job. Ctrl-C makes the workers of this host leave the job, which goes on.
    """
    settings = config.load(
        host=host, address=address, network_interface=network_interface, zookeeper=zookeeper
    )
    check_name("host", settings.host)
    check_own_name()
    given = None if secret_file is None else read_file(secret_file)
    with connected(zookeeper) as session:
        store = choose_job(session, job, secret=given)
        snapshot = store.snapshot()
        record = snapshot.job
        if record.state.over:
            raise UsageError(f"job {record.name} is {record.state}; nothing can join it")
        if record.driver:
            raise UsageError(
                f"job {record.name} was started by horovodrun, which places its workers; let its "
                "host discovery script name this host"
            )
        slots = record.max_np if slots is None else slots
        if slots < 1:
            raise UsageError(f"--slots is {slots}; a host needs at least 1")
        assert session.access is not None
        secret, state = session.access.secret, config.state_dir()
        check_command(record.command, Path(record.cwd), config.environment().get("PATH"))
        reachable = own_address(settings.address, settings.network_interface, session.hosts)
        here = Host(settings.host, slots, reachable, os.getpid())
        keep(state, record.name, secret)
        line = LiveLine(record.name)
        agent = Agent(
            store,
            here,
            record,
            Output(console(), line.render),
            worker_environment(record, session.hosts, here, secret, settings.network_interface),
            log_directory(state, record.name, fresh=False),
            settings.start_timeout_s,
            f"host {here.name} offers {slots} slots to job {record.name}; "
            f"use them with `edl scale {record.name} --np N`",
            guest=True,
            on_snapshot=line.update,
            backoff_max_s=settings.backoff_max_s,
        )
        code = agent.run()
    raise typer.Exit(code)
