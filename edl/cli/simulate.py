"""`edl simulate`: many jobs on one cluster under virtual time, by a policy."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JsonOption, console, progress
from edl.core.cluster.policies import POLICIES, policy
from edl.errors import UsageError, first
from edl.simulator import pollux, trace
from edl.simulator.engine import Rules
from edl.simulator.failures import Failures
from edl.simulator.measurements import applications
from edl.simulator.published import Comparison, answers, compare
from edl.simulator.resize import parse
from edl.simulator.runs import Outcome, Run, do_all

POLLUX = "pollux"
Done = tuple[Outcome, Comparison | None]
NARROW = (0, 1, 0, 0)  # so that a row fits into 80 columns
SUMMED = ("p50 s", "p99 s", "span h", "resizes")
COMPARED = ("published", "same second", "took s")


def simulate(
    workload_set: Annotated[
        str | None,
        typer.Argument(metavar="[pollux]", help="The published workloads.", show_default=False),
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
    trace_file: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="FILE.csv",
            help="The jobs of this file in place of pollux.",
            show_default=False,
        ),
    ] = None,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="Between two decisions; 0: on every arrival and end. Default: 60 for pollux, "
            "0 for a trace.",
            show_default=False,
        ),
    ] = None,
    resize_cost: Annotated[
        str,
        typer.Option(
            "--resize-cost",
            metavar="SECONDS",
            help="Without training when a job's slots change; or by kind of change: "
            "start=30,restart=30,join=0.3,leave=0.2,migrate=0.4.",
        ),
    ] = "30",
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
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", help="Of failures, and of what a policy draws."),
    ] = 0,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Of the cluster.")] = (
        pollux.NODES
    ),
    slots: Annotated[int, typer.Option("--slots", metavar="N", help="Of a node.")] = pollux.SLOTS,
    processes: Annotated[
        int, typer.Option("--jobs", metavar="N", help="Processes that simulate at once.")
    ] = 1,
    compared: Annotated[
        bool, typer.Option("--compare", help="Beside the published answers, job by job.")
    ] = False,
    history: Annotated[
        bool,
        typer.Option("--history", help="With --json: each change of a job's slots, and why."),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run many jobs on one cluster under virtual time, and see when each of them is done.

    With --json one line a run: its summary, and every job.
    """
    if list_all:
        console().print(_listed())
        return
    if nodes < 1 or slots < 1 or processes < 1:
        raise UsageError("--nodes, --slots and --jobs must be at least 1")
    if seed < 0:
        raise UsageError(f"--seed is {seed}; write 0 or more")
    if interval_s is None:
        interval_s = pollux.INTERVAL_S if trace_file is None else 0.0
    rules = Rules(
        interval_s=interval_s,
        resize=parse(resize_cost),
        interference=interference,
        whole_seconds=trace_file is None,
        failures=_failures(mtbf_s, repair_s, seed),
    )
    names = [name.strip() for name in policies.split(",")]
    for name in names:
        policy(name)
    if trace_file is not None:
        if workload_set is not None or compared:
            raise UsageError("--trace brings its own jobs: leave pollux and --compare out")
        runs = _of_trace(trace_file, names, rules, nodes, slots)
    elif workload_set != POLLUX:
        raise UsageError("say which jobs: `edl simulate pollux`, or --trace FILE.csv")
    else:
        runs = _of_pollux(names, loads, workloads, rules, nodes, slots)
    runs = [replace(run, seed=seed) for run in runs]
    if compared:
        _check_comparable(runs)
    _show(runs, processes, compared, history, as_json)


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
    numbers = _numbers(workloads)
    pollux.check(slots)
    return [
        Run(name, rules, nodes, slots, load, number)
        for name in names
        for load in chosen
        for number in numbers
    ]


def _load(text: str) -> str:
    same = text.strip()
    if same.replace(".", "", 1).isdigit():
        same = str(float(same))
    if same not in pollux.LOADS:
        raise UsageError(f"there is no load {text!r}; use {', '.join(pollux.LOADS)}")
    return same


def _numbers(text: str) -> list[int]:
    """Workloads in "6", "1,3", "1..8"."""
    try:
        numbers: list[int] = []
        for part in text.split(","):
            low, _, high = part.partition("..")
            numbers += range(int(low), int(high or low) + 1)
    except ValueError:
        numbers = []
    if not numbers or not set(numbers) <= set(pollux.WORKLOADS):
        raise UsageError(f"there is no workload {text!r}; write 1 to 8, like 6, or 1,3, or 1..8")
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
) -> None:
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


def _figures(outcome: Outcome, comparison: Comparison | None, history: bool) -> dict[str, Any]:
    run = outcome.run
    about: dict[str, Any] = {"policy": run.policy, "nodes": run.nodes, "slots": run.slots}
    if run.load:
        about |= {"load": run.load, "workload": run.workload}
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
    return about | outcome.result.figures(history)


def _table(done: Iterable[Done]) -> Table:
    """A row a run, and one for all workloads of a policy at a load."""
    groups: dict[tuple[str, str], list[Done]] = {}
    for outcome, comparison in done:
        groups.setdefault((outcome.run.policy, outcome.run.load), []).append((outcome, comparison))
    compared = any(comparison for group in groups.values() for _, comparison in group)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for column in ("policy", "load", "workload"):
        shown.add_column(column, no_wrap=True)
    for column in ("jobs", "mean s", *(COMPARED if compared else SUMMED)):
        shown.add_column(column, no_wrap=True, justify="right")
    for (name, load), group in groups.items():
        for one in group:
            shown.add_row(name, load, str(one[0].run.workload or ""), *_cells([one]))
        if len(group) > 1:
            shown.add_row(name, load, "all", *_cells(group))
        shown.add_section()
    return shown


def _cells(group: Sequence[Done]) -> list[str]:
    """Of one run or several: sums of counts and of the time to compute, means of the rest."""
    results = [outcome.result for outcome, _ in group]
    jobs = sum(len(result.jobs) for result in results)
    mean_s = fmean(result.mean_jct_s for result in results)
    known = [comparison for _, comparison in group if comparison is not None]
    if known:
        return [
            str(jobs),
            f"{mean_s:.1f}",
            f"{fmean(one.published_mean_jct_s for one in known):.1f}",
            f"{sum(one.matches for one in known)}/{jobs}",
            f"{sum(outcome.took_s for outcome, _ in group):.1f}",
        ]
    return [
        str(jobs),
        f"{mean_s:.0f}",
        f"{fmean(result.jct_percentile_s(50) for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(99) for result in results):.0f}",
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
    shown.add_row("jobs", POLLUX, f"loads {', '.join(pollux.LOADS)}; workloads 1 to 8")
    shown.add_row("jobs", "--trace FILE.csv", f"columns {', '.join(trace.COLUMNS)}")
    for name, (_, what) in POLICIES.items():
        shown.add_row("policy", name, what)
    return shown
