"""`edl chaos`: inject faults into the user's own job, to see that the job survives them."""

from __future__ import annotations

import json
import random
from typing import Annotated

import typer

from edl.chaos.fault_schedule import Action, Plan, read_duration, read_order
from edl.chaos.faults import Chaos, Fault, summary
from edl.cli.common import JobArgument, JsonOption, ZooKeeperOption
from edl.client.connection import choose_job, connected


def _option(action: Action, what: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(f"--{action}", metavar="WHO", help=what)
    return option


def chaos(
    job: JobArgument = None,
    kill: Annotated[list[str] | None, _option(Action.KILL, "SIGKILL.")] = None,
    term: Annotated[list[str] | None, _option(Action.TERM, "SIGTERM: it leaves the job.")] = None,
    freeze: Annotated[
        list[str] | None,
        _option(
            Action.FREEZE,
            "SIGSTOP, and SIGCONT after --for. Its agent kills it after EDL_SUSPENDED_S, 1 s.",
        ),
    ] = None,
    expire: Annotated[
        list[str] | None, _option(Action.EXPIRE, "ZooKeeper ends its session (edl run --chaos).")
    ] = None,
    cut: Annotated[
        list[str] | None, _option(Action.CUT, "Its ring connections are cut (edl run --chaos).")
    ] = None,
    frozen_for: Annotated[
        str, typer.Option("--for", metavar="TIME", help="How long --freeze lasts.")
    ] = "5s",
    every: Annotated[
        str | None,
        typer.Option(
            "--every",
            metavar="TIME",
            help="Repeat the faults that have no @step, on average once in this time.",
        ),
    ] = None,
    count: Annotated[
        int | None, typer.Option("--count", min=1, help="End after so many faults.")
    ] = None,
    duration: Annotated[
        str | None, typer.Option("--duration", metavar="TIME", help="End after this.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", help="Of moments and victims. Default: drawn.")
    ] = None,
    limit: Annotated[
        str, typer.Option("--limit", metavar="TIME", help="How long a recovery may take.")
    ] = "60s",
    as_json: JsonOption = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Kill, freeze or cut off workers of a job on this host, and show how the job recovers.

    WHO is leader, worker (any of the ring), newcomer or a name like w3, and may say when:
    leader@step=40. Each option may be given several times. Ends with 1 when the job did not
    recover.
    """
    given = {
        Action.KILL: kill,
        Action.TERM: term,
        Action.FREEZE: freeze,
        Action.EXPIRE: expire,
        Action.CUT: cut,
    }
    plan = Plan(
        orders=tuple(
            read_order(action, text) for action, all_ in given.items() for text in all_ or ()
        ),
        seed=random.randrange(2**31) if seed is None else seed,
        every_s=None if every is None else read_duration("--every", every),
        count=count,
        duration_s=None if duration is None else read_duration("--duration", duration),
        freeze_s=read_duration("--for", frozen_for),
    )
    limit_s = read_duration("--limit", limit)
    faults: list[Fault] = []
    with connected(zookeeper) as session:
        acts = Chaos(
            choose_job(session, job),
            plan,
            limit_s,
            lambda text: typer.echo(f"edl: {text}", err=True),
        )
        for fault in acts.run():
            faults.append(fault)
            typer.echo(json.dumps(fault.to_json()) if as_json else str(fault))
    typer.echo(f"edl: {summary(faults, plan.seed)}", err=as_json)
    if not all(fault.recovered for fault in faults):
        raise typer.Exit(1)
