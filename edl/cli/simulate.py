"""`edl simulate`: run many jobs on one cluster under virtual time, with a policy."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JsonOption, print_table, progress
from edl.cluster.policies.registry import POLICIES, OwnPolicy, policy_named
from edl.cluster_policies import is_own, load_own_policy
from edl.errors import UsageError
from edl.figures import check_figure
from edl.simulator.costs import Failures, parse_resize_cost
from edl.simulator.engine import Rules
from edl.simulator.figure import MAX_RUNS, figure_of
from edl.simulator.results import levels
from edl.simulator.runs import RunOutcome, SimulatedRun, do_all
from edl.simulator.workload import COLUMNS, read_trace

REPAIR_S = 600.0


def simulate(
    list_all: Annotated[
        bool,
        typer.Option("--list", help="Show the columns of a trace and the policies, and end."),
    ] = False,
    policies: Annotated[
        str,
        typer.Option(
            "--policy", metavar="NAME,…", help="Policies, one run each; your own as module:Class."
        ),
    ] = "fifo",
    trace_file: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE.csv", help="The jobs.", show_default=False),
    ] = None,
    interval_s: Annotated[
        float,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="Between two decisions; 0: on every arrival and end.",
        ),
    ] = 0.0,
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
        float | None,
        typer.Option(
            "--repair",
            metavar="SECONDS",
            help=f"With --mtbf: mean time until it is back. Default: {REPAIR_S:g}.",
            show_default=False,
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="N", help="Of failures, and of what a policy draws."),
    ] = 0,
    drop: Annotated[
        bool,
        typer.Option("--drop", help="Turn a job away for which there are no slots when it comes."),
    ] = False,
    nodes: Annotated[int, typer.Option("--nodes", metavar="N", help="Of the cluster.")] = 16,
    slots: Annotated[int, typer.Option("--slots", metavar="N", help="Of a node.")] = 4,
    processes: Annotated[
        int, typer.Option("--jobs", metavar="N", help="Processes that simulate at once.")
    ] = 1,
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

    The jobs are those of a CSV file (--trace); --list shows its columns, and the policies. Prints a
    table with a row for each policy; with --json, a line for each: its summary, and every job.
    """
    if list_all:
        print_table(_catalogue())
        return
    if trace_file is None:
        raise UsageError("say which jobs: --trace FILE.csv; `edl simulate --list` has its columns")
    if min(nodes, slots, processes) < 1:
        raise UsageError("--nodes, --slots and --jobs must be at least 1")
    if seed < 0:
        raise UsageError(f"--seed is {seed}; write 0 or more")
    if history and not as_json:
        raise UsageError("--history is for --json; give both or neither")
    rules = Rules(
        interval_s=interval_s,
        resize=parse_resize_cost(resize_cost),
        interference=interference,
        failures=_failures(mtbf_s, repair_s, seed),
        drop=drop,
    )
    # All that can be wrong is told before the first run begins.
    own: dict[str, OwnPolicy | None] = {}
    for name in (name.strip() for name in policies.split(",")):
        own[name] = load_own_policy(name) if is_own(name) else None
        if own[name] is None:
            policy_named(name)
    jobs = tuple(read_trace(trace_file, nodes * slots))
    runs = [SimulatedRun(name, rules, nodes, slots, jobs, seed, of) for name, of in own.items()]
    if plot is not None:
        check_figure(plot)
        if len(runs) > MAX_RUNS:
            raise UsageError(
                f"--plot shows at most {MAX_RUNS} runs, not {len(runs)}; choose fewer with --policy"
            )
    outcomes: list[RunOutcome] = []
    with progress() as tell:
        for outcome in do_all(runs, processes, tell):
            if as_json:
                typer.echo(json.dumps(_figures(outcome, history)))
            outcomes.append(outcome)
    if not as_json:
        print_table(_results(outcomes))
    if plot is not None:
        figure_of(outcomes).savefig(plot)


def _failures(mtbf_s: float | None, repair_s: float | None, seed: int) -> Failures | None:
    if mtbf_s is None:
        if repair_s is not None:
            raise UsageError("--repair is for --mtbf; give both or neither")
        return None
    repair_s = REPAIR_S if repair_s is None else repair_s
    if not (0 < mtbf_s < math.inf and 0 < repair_s < math.inf):
        raise UsageError("--mtbf and --repair must be more than 0 seconds, and finite")
    return Failures(mtbf_s, repair_s, seed)


def _figures(outcome: RunOutcome, history: bool) -> dict[str, Any]:
    run = outcome.run
    setup: dict[str, Any] = {"policy": run.policy, "nodes": run.nodes, "slots": run.slots}
    setup["interval_s"] = run.rules.interval_s
    if history:
        setup["over_time"] = [level._asdict() for level in levels(outcome.result)]
    return setup | outcome.result.figures(history)


def _results(outcomes: Sequence[RunOutcome]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0))  # a row fits 80 columns
    table.add_column("policy", no_wrap=True)
    for column in ("jobs", "mean s", "p50 s", "p99 s", "worst ρ", "span h", "resizes"):
        table.add_column(column, no_wrap=True, justify="right")
    for outcome in outcomes:
        result = outcome.result
        jobs, ended = len(result.jobs), len(result.ended)
        means = ["-"] * 5  # not defined if all jobs were rejected
        if ended:
            means = [
                f"{result.mean_jct_s:.0f}",
                f"{result.jct_percentile_s(50):.0f}",
                f"{result.jct_percentile_s(99):.0f}",
                f"{result.worst_finish_time_fairness:.2f}",
                f"{result.makespan_s / 3600:.1f}",
            ]
        count = str(jobs) if ended == jobs else f"{ended}/{jobs}"
        resizes = str(sum(job.resizes for job in result.jobs))
        table.add_row(outcome.run.policy, count, *means, resizes)
    return table


def _catalogue() -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0))
    for column in ("", "name", ""):
        table.add_column(column)
    table.add_row("jobs", "--trace FILE.csv", f"columns {', '.join(COLUMNS)}")
    for name, (_, what) in POLICIES.items():
        table.add_row("policy", name, what)
    return table
