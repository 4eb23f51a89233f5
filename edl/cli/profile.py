"""`edl profile`: measure what a job gains from more workers, while it trains."""

from __future__ import annotations

import json
import signal
import sys
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JobArgument, JsonOption, ZooKeeperOption, progress
from edl.cli.figure import draw
from edl.cli.tables import print_table
from edl.client import Curve, Job
from edl.client.job import TIMEOUT_S
from edl.errors import UsageError
from edl.figures import check_figure
from edl.host.signals import handled
from edl.job.profile import STEPS, sizes

_BAR = 20  # characters of an efficiency of 1


def profile(
    job: JobArgument = None,
    np: Annotated[
        str | None,
        typer.Option("-np", "--np", metavar="1..4", help="Sizes to measure.", show_default=False),
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps measured in each size.")] = STEPS,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing; show the newest profile.")
    ] = False,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE.png|svg", help="Draw it, too.", show_default=False),
    ] = None,
    timeout_s: Annotated[
        float,
        typer.Option(
            "--timeout",
            metavar="SECONDS",
            help="How long each size may take to be reached and measured.",
        ),
    ] = TIMEOUT_S,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Change the number of a job's workers, downwards, and measure its throughput with each.

    Needs --np or --show. The job trains all the time. Afterwards it has the number of workers that
    it had, also after an error or Ctrl-C, unless another number was requested meanwhile.
    """
    if plot is not None:
        check_figure(plot)
    target = Job(job, zookeeper)
    if show:
        if np is not None:
            raise UsageError("--show measures nothing; leave --np out")
        curve = _kept(target)
    elif np is None:
        raise UsageError("give the sizes to measure, like --np 1..4, or --show")
    else:
        curve = _measure(target, sizes(np), steps, timeout_s)
    if as_json:
        typer.echo(json.dumps(curve.figures()))
    else:
        print_table(profile_table(curve))
    if plot is not None:
        draw(curve, plot)


def _kept(job: Job) -> Curve:
    """Return the newest profile that is stored with the job."""
    curve = job.curve()
    if curve is None or not curve.points:
        raise UsageError("the job was never profiled; `edl profile JOB --np 1..4` does it")
    return curve


def _measure(job: Job, order: tuple[int, ...], steps: int, timeout_s: float) -> Curve:
    """Profile the job, and return the measured points."""
    to_end = (signal.SIGTERM, signal.SIGHUP)
    try:
        with handled(to_end, _interrupt), progress() as on_message:
            return job.profile(order, steps, timeout_s, on_message)
    except KeyboardInterrupt as end:
        notes = getattr(end, "__notes__", ["nothing was changed"])
        print(f"edl: {'; '.join(['interrupted', *notes])}", file=sys.stderr)
        raise typer.Exit(128 + (end.args[0] if end.args else signal.SIGINT)) from None


def _interrupt(number: int, _: object) -> None:
    raise KeyboardInterrupt(number)


def profile_table(curve: Curve) -> Table:
    """Return the points of a profile as a table for people."""
    taken = datetime.fromtimestamp(curve.taken).strftime("%Y-%m-%d %H:%M")
    title = f"job {curve.job}, {taken}"
    shown = Table(title=title, box=box.SIMPLE_HEAD, pad_edge=False, title_justify="left")
    for name in ("workers", curve.unit, "s a step", "speed-up", "efficiency"):
        shown.add_column(name, justify="right")
    shown.add_column("", style="green")
    for point in curve.points:
        efficiency = curve.efficiency(point)
        shown.add_row(
            str(point.np),
            f"{point.throughput:.1f}",
            f"{point.step_s:.4f}",
            f"{curve.speedup(point):.2f}",
            f"{efficiency:.2f}",
            "━" * round(_BAR * min(1.5, efficiency)),
        )
    return shown
