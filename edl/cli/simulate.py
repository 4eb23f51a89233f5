"""`edl simulate`: many jobs on one cluster under virtual time, by a policy."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JsonOption, console, progress
from edl.cli.simulation_figure import check_runs, figure_of
from edl.core.cluster.policies import POLICIES, policy
from edl.errors import UsageError, first
from edl.figures import check_figure
from edl.simulator import jsa, mix, pollux, trace, virtualflow
from edl.simulator.built_in import JSA, MIX, POLLUX, SETS, TRACE, VIRTUALFLOW, JobSet
from edl.simulator.engine import Rules
from edl.simulator.failures import Failures
from edl.simulator.measurements import applications
from edl.simulator.published import Comparison, answers, compare
from edl.simulator.resize import parse
from edl.simulator.runs import Outcome, Run, do_all
from edl.simulator.usage import levels
from edl.simulator.work import SubmittedJob

Done = tuple[Outcome, Comparison | None]
Draw = Callable[[str, int], Sequence[SubmittedJob]]
NARROW = (0, 0)  # so that a row fits into 80 columns
SUMMED = ("p50 s", "p99 s", "worst ρ", "span h", "resizes")
COMPARED = ("published", "same second", "took s")
DEFAULT_ARRIVALS = {JSA: "high", MIX: mix.ARRIVALS}  # of the sets that are drawn by seed
DRAWN = tuple(DEFAULT_ARRIVALS)
LABELS = {POLLUX: ("load", "workload")} | dict.fromkeys(DRAWN, ("arrivals", "seed"))


def simulate(
    workload_set: Annotated[
        str | None,
        typer.Argument(
            metavar="[pollux|jsa|mix|virtualflow]",
            help="Jobs that are built in: --list.",
            show_default=False,
        ),
    ] = None,
    list_all: Annotated[
        bool, typer.Option("--list", help="Show the workloads and the policies, and end.")
    ] = False,
    policies: Annotated[
        str, typer.Option("--policy", metavar="NAME,…", help="Policies, one run each.")
    ] = "fifo",
    loads: Annotated[
        str,
        typer.Option("--load", metavar="LOAD,…", help="Of pollux: 0.5 to 2.0, or realistic."),
    ] = "1.0",
    workloads: Annotated[
        str, typer.Option("--workload", metavar="1..8", help="Of pollux: 6, or 1,3, or a range.")
    ] = "1..8",
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            metavar="SHAPE,…",
            help="Of jsa and mix: low, high, mixed, bursts, or jobs a minute. Default: high; for "
            "mix 0.333.",
            show_default=False,
        ),
    ] = None,
    applications_mix: Annotated[
        str,
        typer.Option(
            "--mix",
            metavar="NAME=PART,…",
            help="Of mix: how often each application comes, like cifar10=3,bert. Default: as in "
            "pollux.",
            show_default=False,
        ),
    ] = "",
    trace_file: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.csv",
            help="The jobs of this file in place of built-in ones.",
            show_default=False,
        ),
    ] = None,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="Between two decisions; 0: on every arrival and end. Default: 60 for pollux and "
            "mix, 600 for jsa, else 0.",
            show_default=False,
        ),
    ] = None,
    resize_cost: Annotated[
        str | None,
        typer.Option(
            "--resize-cost",
            metavar="SECONDS",
            help="Without training when a job's slots change; or by kind of change: "
            "start=30,restart=30,join=0.3,leave=0.2,migrate=0.4. Default: 30; for virtualflow as "
            "measured.",
            show_default=False,
        ),
    ] = None,
    interference: Annotated[
        float,
        typer.Option(
            "--interference",
            metavar="PART",
            help="Of its speed that a job on several nodes loses beside another such job.",
        ),
    ] = 0.0,
    mtbf_s: Annotated[
        float | None,
        typer.Option(
            "--mtbf",
            metavar="SECONDS",
            help="Mean time between two failures of a node. Default: none fails.",
            show_default=False,
        ),
    ] = None,
    repair_s: Annotated[
        float, typer.Option("--repair", metavar="SECONDS", help="Mean time until it is back.")
    ] = 600.0,
    seeds: Annotated[
        str,
        typer.Option(
            "--seed",
            metavar="N,…",
            help="Of failures, of what a policy draws, and of the jobs of jsa and mix.",
        ),
    ] = "0",
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Turn a job away for which there are no slots when it comes."),
    ] = False,
    nodes: Annotated[
        int | None,
        typer.Option(
            "--nodes",
            metavar="N",
            help="Of the cluster. Default: 16; for jsa 10, for virtualflow 1.",
            show_default=False,
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(
            "--slots",
            metavar="N",
            help="Of a node. Default: 4; for virtualflow 8.",
            show_default=False,
        ),
    ] = None,
    processes: Annotated[
        int, typer.Option("--jobs", metavar="N", help="Processes that simulate at once.")
    ] = 1,
    compared: Annotated[
        bool, typer.Option("--compare", help="Beside the published answers, job by job.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option(
            "--history",
            help="With --json: each change of a job's slots, and why; slots in use and jobs that "
            "wait over time.",
        ),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            "--plot",
            metavar="FILE",
            help="Draw the runs into this .png or .svg file, with matplotlib.",
            show_default=False,
        ),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run many jobs on one cluster under virtual time, and see when each of them is done.

    With --json one line a run: its summary, and every job.
    """
    if list_all:
        console().print(_listed())
        return
    chosen = _set(workload_set, trace_file, compared, applications_mix)
    nodes = chosen.nodes if nodes is None else nodes
    slots = chosen.slots if slots is None else slots
    if nodes < 1 or slots < 1 or processes < 1:
        raise UsageError("--nodes, --slots and --jobs must be at least 1")
    drawn = _seeds(seeds, workload_set)
    rules = Rules(
        interval_s=chosen.interval_s if interval_s is None else interval_s,
        resize=chosen.resize if resize_cost is None else parse(resize_cost),
        interference=interference,
        whole_seconds=workload_set == POLLUX,
        failures=_failures(mtbf_s, repair_s, drawn[0]),
        drop=drop,
    )
    names = _policies(policies)
    if trace_file is not None:
        runs = _of_trace(trace_file, names, rules, nodes, slots)
    elif workload_set in DRAWN:
        shapes = arrivals or DEFAULT_ARRIVALS[workload_set]
        draw = _draw_of(workload_set, applications_mix, slots)
        runs = _of_drawn(workload_set, draw, names, shapes, drawn, rules, nodes, slots)
    elif workload_set == VIRTUALFLOW:
        runs = _of_virtualflow(names, rules, nodes, slots)
    else:
        runs = _of_pollux(names, loads, workloads, rules, nodes, slots)
    if workload_set not in DRAWN:
        runs = [replace(run, seed=drawn[0]) for run in runs]
    if compared:
        _check_comparable(runs)
    if plot is not None:
        check_figure(plot)
        check_runs(len(runs))
    done = _show(runs, processes, compared, history, as_json)
    if plot is not None:
        figure_of([outcome for outcome, _ in done]).savefig(plot)


def _policies(text: str) -> list[str]:
    """Return the names in ``text``, which has commas between; each is a policy."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        policy(name)
    return names


def _set(
    name: str | None, trace_file: Path | None, compared: bool, applications_mix: str
) -> JobSet:
    """Return the set of jobs that the options choose, with its usual cluster and rules."""
    if applications_mix and name != MIX:
        raise UsageError("--mix is for mix; leave it out")
    if trace_file is not None:
        if name is not None or compared:
            raise UsageError(
                f"--trace brings its own jobs: leave {name or POLLUX} and --compare out"
            )
        return TRACE
    if name not in SETS:
        raise UsageError(
            "say which jobs: `edl simulate pollux`, or --trace FILE.csv; built in are "
            f"{', '.join(SETS)}"
        )
    if compared and name != POLLUX:
        raise UsageError("--compare is for the published answers of pollux; leave it out")
    return SETS[name]


def _seeds(text: str, workload_set: str | None) -> list[int]:
    """Return the seeds in ``text``; several only for workloads that are drawn."""
    drawn = _numbers(text, "seed")
    if min(drawn) < 0:
        raise UsageError(f"--seed is {min(drawn)}; write 0 or more")
    if len(drawn) > 1 and workload_set not in DRAWN:
        raise UsageError(f"several seeds are for {' and '.join(DRAWN)}; say one")
    return drawn


def _failures(mtbf_s: float | None, repair_s: float, seed: int) -> Failures | None:
    if mtbf_s is None:
        return None
    if not (mtbf_s > 0 and repair_s > 0):
        raise UsageError("--mtbf and --repair must be more than 0 seconds")
    return Failures(mtbf_s, repair_s, seed)


def _of_trace(path: Path, names: Sequence[str], rules: Rules, nodes: int, slots: int) -> list[Run]:
    jobs = tuple(trace.read(path, nodes * slots))
    if any(job.kind in applications() for job in jobs):
        pollux.check(slots)
    return [Run(name, rules, nodes, slots, jobs=jobs) for name in names]


def _of_pollux(
    names: Sequence[str], loads: str, workloads: str, rules: Rules, nodes: int, slots: int
) -> list[Run]:
    chosen = [_load(text) for text in loads.split(",")]
    numbers = _numbers(workloads, "workload", pollux.WORKLOADS)
    pollux.check(slots)
    return [
        Run(name, rules, nodes, slots, load, number, built_in=POLLUX)
        for name in names
        for load in chosen
        for number in numbers
    ]


def _of_virtualflow(names: Sequence[str], rules: Rules, nodes: int, slots: int) -> list[Run]:
    jobs = tuple(virtualflow.jobs())
    return [Run(name, rules, nodes, slots, jobs=jobs, built_in=VIRTUALFLOW) for name in names]


def _draw_of(workload_set: str, applications_mix: str, slots: int) -> Draw:
    """Return the function that draws the jobs of a set from a shape of arrivals and a seed."""
    if workload_set == JSA:
        return jsa.jobs
    pollux.check(slots)
    return partial(mix.jobs, mix=applications_mix)


def _of_drawn(
    built_in: str,
    draw: Draw,
    names: Sequence[str],
    arrivals: str,
    seeds: Sequence[int],
    rules: Rules,
    nodes: int,
    slots: int,
) -> list[Run]:
    drawn = {
        (shape.strip(), seed): tuple(draw(shape.strip(), seed))
        for shape in arrivals.split(",")
        for seed in seeds
    }
    return [
        Run(name, rules, nodes, slots, shape, seed, jobs, seed, built_in)
        for name in names
        for (shape, seed), jobs in drawn.items()
    ]


def _load(text: str) -> str:
    same = text.strip()
    if same.replace(".", "", 1).isdigit():
        same = str(float(same))
    if same not in pollux.LOADS:
        raise UsageError(f"there is no load {text!r}; use {', '.join(pollux.LOADS)}")
    return same


def _numbers(text: str, what: str, known: Sequence[int] = ()) -> list[int]:
    """Those in "6", "1,3", "1..8"."""
    try:
        numbers: list[int] = []
        for part in text.split(","):
            low, _, high = part.partition("..")
            numbers += range(int(low), int(high or low) + 1)
    except ValueError:
        numbers = []
    if not numbers or (known and not set(numbers) <= set(known)):
        limits = f"{known[0]} to {known[-1]}" if known else "numbers"
        raise UsageError(f"there is no {what} {text!r}; write {limits}, like 6, or 1,3, or 1..8")
    return numbers


def _check_comparable(runs: Sequence[Run]) -> None:
    """Refuse a comparison with answers to another question."""
    rules = Rules(pollux.INTERVAL_S, pollux.RESIZE, whole_seconds=True)
    for run in runs:
        answers(run.policy, run.load, run.workload)
        if (run.rules, run.nodes, run.slots) != (rules, pollux.NODES, pollux.SLOTS):
            raise UsageError(
                "--compare: the published answers are of 16 nodes of 4 slots, an interval of 60 s, "
                "a resize cost of 30 s, without interference and failures; leave these options out"
            )


def _show(
    runs: Sequence[Run], processes: int, compared: bool, history: bool, as_json: bool
) -> list[Done]:
    """Simulate them, and print each as soon as it is there, or a table of all."""
    done: list[Done] = []
    with progress() as tell:
        for outcome in do_all(runs, processes, tell):
            run, comparison = outcome.run, None
            if compared:
                published = answers(run.policy, run.load, run.workload)
                comparison = compare(outcome.result, published)
            if as_json:
                typer.echo(json.dumps(_figures(outcome, comparison, history)))
            done.append((outcome, comparison))
    if not as_json:
        console().print(_table(done))
        for outcome, comparison in done:
            if comparison is not None and comparison.differing:
                console().print(_difference(outcome.run, comparison))
    return done


def _figures(outcome: Outcome, comparison: Comparison | None, history: bool) -> dict[str, Any]:
    run = outcome.run
    about: dict[str, Any] = {"policy": run.policy, "nodes": run.nodes, "slots": run.slots}
    if run.load:
        about |= dict(zip(LABELS[run.built_in], (run.load, run.workload), strict=True))
    about["interval_s"] = run.rules.interval_s
    if comparison is not None:
        about["published"] = {
            "mean_jct_s": comparison.published_mean_jct_s,
            "matches": comparison.matches,
            "differing": [
                {"name": name, "jct_s": ours, "published_jct_s": theirs}
                for name, ours, theirs in comparison.differing
            ],
        }
    if history:
        about["over_time"] = [level.figures() for level in levels(outcome.result)]
    return about | outcome.result.figures(history)


def _table(done: Sequence[Done]) -> Table:
    """A row a run, and one for all workloads of a policy at a load."""
    groups: dict[tuple[str, str], list[Done]] = {}
    for outcome, comparison in done:
        groups.setdefault((outcome.run.policy, outcome.run.load), []).append((outcome, comparison))
    compared = any(comparison for group in groups.values() for _, comparison in group)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    labels = {LABELS.get(run.built_in, ("", "")) for run in (one[0].run for one in done)}
    for column in ("policy", *labels.pop()):
        shown.add_column(column, no_wrap=True)
    for column in ("jobs", "mean s", *(COMPARED if compared else SUMMED)):
        shown.add_column(column, no_wrap=True, justify="right")
    for (name, load), group in groups.items():
        for one in group:
            shown.add_row(name, load, str(one[0].run.workload) if load else "", *_cells([one]))
        if len(group) > 1:
            shown.add_row(name, load, "all", *_cells(group))
        shown.add_section()
    return shown


def _cells(group: Sequence[Done]) -> list[str]:
    """Of one run or several: sums of counts and of the time to compute, means of the rest.

    Of fairness the worst.
    """
    results = [outcome.result for outcome, _ in group]
    jobs = sum(len(result.jobs) for result in results)
    ended = sum(len(result.ended) for result in results)
    count = str(jobs) if ended == jobs else f"{ended}/{jobs}"
    mean_s = fmean(result.mean_jct_s for result in results)
    known = [comparison for _, comparison in group if comparison is not None]
    if known:
        return [
            count,
            f"{mean_s:.1f}",
            f"{fmean(one.published_mean_jct_s for one in known):.1f}",
            f"{sum(one.matches for one in known)}/{jobs}",
            f"{sum(outcome.took_s for outcome, _ in group):.1f}",
        ]
    return [
        count,
        f"{mean_s:.0f}",
        f"{fmean(result.jct_percentile_s(50) for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(99) for result in results):.0f}",
        f"{max(result.worst_finish_time_fairness for result in results):.2f}",
        f"{fmean(result.makespan_s for result in results) / 3600:.1f}",
        str(sum(job.resizes for result in results for job in result.jobs)),
    ]


def _difference(run: Run, comparison: Comparison) -> str:
    names = [
        f"{name} {ours:g} s, published {theirs:g} s" for name, ours, theirs in comparison.differing
    ]
    return f"{run.title}: {first(names)}"


def _listed() -> Table:
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for column in ("", "name", ""):
        shown.add_column(column)
    for name, built_in in SETS.items():
        shown.add_row("jobs", name, built_in.what)
    shown.add_row("jobs", "--trace FILE.csv", TRACE.what)
    for name, (_, what) in POLICIES.items():
        shown.add_row("policy", name, what)
    return shown
