"""`edl simulate`: run many jobs on one cluster under virtual time, with a policy."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from edl.cli.common import JsonOption, progress
from edl.cli.simulation.figure import check_runs, figure_of
from edl.cli.simulation.runs import (
    LOAD,
    REPAIR_S,
    WORKLOADS,
    JobOptions,
    Setup,
    check_comparable,
    failures_of,
    job_set,
    policy_names,
    runs_of,
    seeds_of,
)
from edl.cli.simulation.table import Done, catalogue, difference, figures, results_table
from edl.cli.tables import print_table
from edl.errors import UsageError
from edl.figures import check_figure
from edl.simulator.built_in import POLLUX
from edl.simulator.costs import parse_resize_cost
from edl.simulator.engine import Rules
from edl.simulator.published.pollux_answers import answers, compare
from edl.simulator.runs import SimulatedRun, do_all


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
        str,
        typer.Option(
            "--policy", metavar="NAME,…", help="Policies, one run each; your own as module:Class."
        ),
    ] = "fifo",
    loads: Annotated[
        str | None,
        typer.Option(
            "--load",
            metavar="LOAD,…",
            help=f"Of pollux: 0.5 to 2.0, or realistic. Default: {LOAD}.",
            show_default=False,
        ),
    ] = None,
    workloads: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="1..8",
            help=f"Of pollux: 6, or 1,3, or a range. Default: {WORKLOADS}.",
            show_default=False,
        ),
    ] = None,
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
        str | None,
        typer.Option(
            "--mix",
            metavar="NAME=PART,…",
            help="Of mix: how often each application comes, like cifar10=3,bert. Default: as in "
            "pollux.",
            show_default=False,
        ),
    ] = None,
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
        float | None,
        typer.Option(
            "--repair",
            metavar="SECONDS",
            help=f"With --mtbf: mean time until it is back. Default: {REPAIR_S:g}.",
            show_default=False,
        ),
    ] = None,
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
        bool,
        typer.Option("--compare", help="Show the results beside the published ones, job by job."),
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

    The jobs are a built-in set or those of a CSV file (--trace); --list shows the sets, the columns
    of such a file, and the policies. Prints a table with a row for each run; with --json, a line
    for each run: its summary, and every job.
    """
    if list_all:
        print_table(catalogue())
        return
    chosen = job_set(workload_set, trace_file, compared)
    nodes = chosen.nodes if nodes is None else nodes
    slots = chosen.slots if slots is None else slots
    if min(nodes, slots, processes) < 1:
        raise UsageError("--nodes, --slots and --jobs must be at least 1")
    drawn = seeds_of(seeds, workload_set)
    if history and not as_json:
        raise UsageError("--history is for --json; give both or neither")
    rules = Rules(
        interval_s=chosen.interval_s if interval_s is None else interval_s,
        resize=chosen.resize if resize_cost is None else parse_resize_cost(resize_cost),
        interference=interference,
        whole_seconds=workload_set == POLLUX,
        failures=failures_of(mtbf_s, repair_s, drawn[0]),
        drop=drop,
    )
    jobs = JobOptions(workload_set, trace_file, loads, workloads, arrivals, applications_mix)
    names, own = policy_names(policies)
    setup = Setup(names, rules, nodes, slots, drawn, own)
    runs = runs_of(jobs, setup)
    if compared:
        check_comparable(runs)
    if plot is not None:
        check_figure(plot)
        check_runs(len(runs))
    done = _show(runs, processes, compared, history, as_json)
    if plot is not None:
        figure_of([outcome for outcome, _ in done]).savefig(plot)


def _show(
    runs: Sequence[SimulatedRun], processes: int, compared: bool, history: bool, as_json: bool
) -> list[Done]:
    """Simulate `runs`; print each as JSON when it has ended, or one table at the end."""
    done: list[Done] = []
    with progress() as tell:
        for outcome in do_all(runs, processes, tell):
            run, comparison = outcome.run, None
            if compared:
                published = answers(run.policy, run.load, run.workload)
                comparison = compare(outcome.result, published)
            if as_json:
                typer.echo(json.dumps(figures(outcome, comparison, history)))
            done.append((outcome, comparison))
    if not as_json:
        print_table(results_table(done))
        for outcome, comparison in done:
            if comparison is not None and comparison.differing:
                typer.echo(difference(outcome.run, comparison))
    return done
