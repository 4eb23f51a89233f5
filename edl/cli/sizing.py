"""`edl policy` and `edl profile`: the rule by which a job finds its size, and what sizes gain."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JobArgument, JsonOption, ZooKeeperOption, print_table, progress
from edl.client.changes import Explanation, stands
from edl.client.job import TIMEOUT_S, History, Job
from edl.config import read_policy
from edl.errors import UsageError
from edl.figures import check_figure
from edl.host.signals import handled
from edl.job.profile import STEPS, Curve, sizes
from edl.policy.stragglers import Times

_BAR = 20  # characters of an efficiency of 1


def profile(
    job: JobArgument = None,
    np: Annotated[
        str | None, typer.Option("-np", "--np", metavar="1..4", help="Sizes to measure.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", help="Steps measured in each size.")] = STEPS,
    show: Annotated[
        bool, typer.Option("--show", help="Measure nothing; show the newest profile.")
    ] = False,
    as_json: JsonOption = False,
    plot: Annotated[
        Path | None, typer.Option("--plot", metavar="FILE.png|svg", help="Draw it, too.")
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
        kept = target.curve()
        if kept is None or not kept.points:
            raise UsageError("the job was never profiled; `edl profile JOB --np 1..4` does it")
        curve = kept
    elif np is None:
        raise UsageError("give the sizes to measure, like --np 1..4, or --show")
    else:

        def interrupt(number: int, _: object) -> None:
            raise KeyboardInterrupt(number)

        order, to_end = sizes(np), (signal.SIGTERM, signal.SIGHUP)
        try:
            with handled(to_end, interrupt), progress() as on_message:
                curve = target.profile(order, steps, timeout_s, on_message)
        except KeyboardInterrupt as end:
            notes = getattr(end, "__notes__", ["nothing was changed"])
            print(f"edl: {'; '.join(['interrupted', *notes])}", file=sys.stderr)
            raise typer.Exit(128 + (end.args[0] if end.args else signal.SIGINT)) from None
    if as_json:
        typer.echo(json.dumps(curve.figures()))
    else:
        print_table(profile_table(curve))
    if plot is not None:
        draw(curve, plot)


def profile_table(curve: Curve) -> Table:
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


ACTIONS = ("show", "set", "off", "resume", "explain", "plot")
FILES = ("set", "plot")  # that need a file
SHOWING = ("show", "explain")


def policy(
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="show | set FILE | off | resume | explain | plot FILE [JOB]",
            help="The job may be left out when one is running; it may also stand first.",
        ),
    ] = None,
    as_json: JsonOption = False,
    zookeeper: ZooKeeperOption = None,
) -> None:
    """Let a job find its own number of workers by a rule, and see what the rule decides from.

    `edl scale` suspends the rule for a time (`hold` in the file); `resume` ends that.
    """
    job, action, file = _read(words or [])
    if as_json and action not in SHOWING:
        raise UsageError(f"--json is for {' and '.join(SHOWING)}; leave it out")
    target = Job(job, zookeeper)
    if action == "set":
        assert file is not None
        text, source = read_policy(file, "edl policy set")
        typer.echo(f"policy of {file}: {stands(target.set_policy(text, source))}")
    elif action == "off":
        target.switch_policy_off()
        typer.echo("the policy is off; the job keeps its size")
    elif action == "resume":
        target.resume_policy()
        typer.echo("the policy decides again")
    elif action == "plot":
        assert file is not None
        check_figure(file, "plot")
        draw_history(target.history(), file)
        typer.echo(f"{file} is written")
    else:
        _show(target.explain_policy(), whole=action == "explain", as_json=as_json)


def _read(words: list[str]) -> tuple[str | None, str, Path | None]:
    job, rest = None, words
    if words and (words[0] not in ACTIONS or (len(words) > 1 and words[1] in ACTIONS)):
        job, rest = words[0], words[1:]
    action = rest[0] if rest else "show"
    needed = 2 if action in FILES else 1
    if job is None and len(rest) == needed + 1:
        job, rest = rest[-1], rest[:-1]
    if action not in ACTIONS or (rest and len(rest) != needed):
        said = " ".join(words) or "nothing"
        raise UsageError(
            f"{said!r} is not understood; write edl policy show, set FILE, off, resume, explain or "
            "plot FILE, and then the job, if there are several"
        )
    return job, action, Path(rest[1]) if action in FILES else None


def _show(found: Explanation, whole: bool, as_json: bool) -> None:
    if as_json:
        typer.echo(json.dumps(_figures(found)))
        return
    held_s = found.learned.held_s(found.policy)
    typer.echo(f"policy of {found.policy.source}: {stands(found.policy, held_s)}")
    if found.says:
        typer.echo(found.says)
    if not whole:
        typer.echo(found.policy.text.rstrip())
        return
    table = Table(box=box.SIMPLE)
    for title in ("workers", "samples/s", "steps"):
        table.add_column(title, justify="right", overflow="fold")
    table.add_column("model" if found.modelled else "the next size", overflow="fold")
    more = {verdict.fewer: verdict.why for verdict in found.verdicts}
    more |= {np: f"{rate:.1f}" for np, rate in found.modelled.items()}
    measured = dict(found.learned.seen)
    for np in sorted({*measured, *found.modelled}):
        seen = measured.get(np)
        figures = (f"{seen.samples_per_s:.1f}", f"{seen.steps}") if seen else ("", "")
        table.add_row(f"{np} *" if np == found.np else f"{np}", *figures, more.get(np, ""))
    if found.learned.seen:
        print_table(table)
    if found.learned.times:
        print_table(_times(found.learned.times))


def _times(times: Sequence[Times]) -> Table:
    table = Table(box=box.SIMPLE)
    for title in ("worker", "host", "samples", "data ms", "compute ms", "reduce ms"):
        left = title in ("worker", "host")
        table.add_column(title, justify="left" if left else "right", overflow="fold")
    for one in times:
        parts = (one.data_s, one.compute_s, one.reduce_s)
        row = (f"{1000 * seconds:.1f}" for seconds in parts)
        table.add_row(f"w{one.worker}", one.host, f"{one.samples:.0f}", *row)
    return table


def _figures(found: Explanation) -> dict[str, object]:
    return {
        "source": found.policy.source,
        "text": found.policy.text,
        "on": found.policy.is_on,
        "off": found.policy.off,
        "held_until_s": found.policy.held_until_s,
        "np": found.np,
        "says": found.says,
        "seen": [
            {"np": np, "samples_per_s": seen.samples_per_s, "steps": seen.steps}
            for np, seen in found.learned.seen
        ],
        "modelled": {str(np): rate for np, rate in found.modelled.items()},
        "times": [one.to_json() for one in found.learned.times],
        "verdicts": [asdict(one) for one in found.verdicts],
    }


def draw(curve: Curve, path: Path) -> None:
    from matplotlib.figure import Figure

    sizes = [point.np for point in curve.points]
    first = curve.points[0]
    figure = Figure(figsize=(6.0, 4.0), layout="constrained")
    axes = figure.subplots()
    ideal = [first.throughput * np / first.np for np in sizes]
    axes.plot(sizes, ideal, "--", color="0.6", label="linear")
    axes.plot(sizes, [p.throughput for p in curve.points], "o-", color="C0", label="measured")
    for point in curve.points:
        axes.annotate(
            f"{curve.efficiency(point):.0%}",
            (point.np, point.throughput),
            xytext=(0, -14),
            textcoords="offset points",
            ha="center",
        )
    axes.set(title=f"job {curve.job}", xlabel="workers", ylabel=curve.unit, xticks=sizes)
    axes.set_ylim(bottom=0)
    axes.legend()
    figure.savefig(path)


COLOURS = {"policy": "C1", "person": "C2", "straggler": "C3"}


def draw_history(found: History, path: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.0, 4.5), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    times, sizes, rates = list[float](), list[int](), list[float]()
    for span in found.spans:
        times += [span.from_s, span.to_s]
        sizes += [span.np, span.np]
        rates += [float("nan") if span.samples_per_s is None else span.samples_per_s] * 2
    above.plot(times, sizes, color="C0")
    below.plot(times, rates, color="C0")
    for who in sorted({mark.by for mark in found.marks}):
        at = [mark.at_s for mark in found.marks if mark.by == who]
        for axes in (above, below):
            lines = axes.vlines(at, 0, 1, COLOURS.get(who, "0.7"), linestyles=":", label=who)
            lines.set_transform(axes.get_xaxis_transform())
    above.set(title=f"job {found.job}", ylabel="workers")
    below.set(xlabel="seconds", ylabel="samples a second")
    for axes in (above, below):
        axes.set_ylim(bottom=0)
    above.yaxis.get_major_locator().set_params(integer=True)
    if found.marks:
        above.legend(loc="lower right")
    figure.savefig(path)
