"""`edl simulate`: run many jobs on one cluster under virtual time, with a policy."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.table import Table

from edl.cli.common import JsonOption, print_table, progress
from edl.cluster_policies import is_own, load_own_policy
from edl.errors import UsageError, some
from edl.figures import check_figure
from edl.simulator import trace
from edl.simulator.built_in import JSA, MIX, POLLUX, SETS, TRACE, VIRTUALFLOW, JobSet
from edl.simulator.costs import Failures, parse_resize_cost
from edl.simulator.engine import Rules
from edl.simulator.published.pollux_answers import JctComparison, answers, compare
from edl.simulator.published.workloads import mixed_workload, pollux_workload
from edl.simulator.published.workloads.jsa_workload import jsa_jobs
from edl.simulator.published.workloads.mixed_workload import mixed_jobs
from edl.simulator.published.workloads.pollux_measurements import measured_applications
from edl.simulator.published.workloads.virtualflow_workload import virtualflow_jobs
from edl.simulator.registry import POLICIES, registered_policy
from edl.simulator.results import Result, levels, spans
from edl.simulator.runs import RunOutcome, SimulatedRun, do_all
from edl.text import counted

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def simulate(
    workload_set: Annotated[
        str | None,
        typer.Argument(
            metavar="[pollux|jsa|mix|virtualflow]", help="Jobs that are built in: --list."
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
        ),
    ] = None,
    workloads: Annotated[
        str | None,
        typer.Option(
            "--workload",
            metavar="1..8",
            help=f"Of pollux: 6, or 1,3, or a range. Default: {WORKLOADS}.",
        ),
    ] = None,
    arrivals: Annotated[
        str | None,
        typer.Option(
            "--arrivals",
            metavar="SHAPE,…",
            help="Of jsa and mix: low, high, mixed, bursts, or jobs a minute. Default: high; for "
            "mix 0.333.",
        ),
    ] = None,
    applications_mix: Annotated[
        str | None,
        typer.Option(
            "--mix",
            metavar="NAME=PART,…",
            help="Of mix: how often each application comes, like cifar10=3,bert. Default: as in "
            "pollux.",
        ),
    ] = None,
    trace_file: Annotated[
        Path | None,
        typer.Option(
            "--trace", metavar="FILE.csv", help="The jobs of this file in place of built-in ones."
        ),
    ] = None,
    interval_s: Annotated[
        float | None,
        typer.Option(
            "--interval",
            metavar="SECONDS",
            help="Between two decisions; 0: on every arrival and end. Default: 60 for pollux and "
            "mix, 600 for jsa, else 0.",
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
        ),
    ] = None,
    repair_s: Annotated[
        float | None,
        typer.Option(
            "--repair",
            metavar="SECONDS",
            help=f"With --mtbf: mean time until it is back. Default: {REPAIR_S:g}.",
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
        ),
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option("--slots", metavar="N", help="Of a node. Default: 4; for virtualflow 8."),
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
    given = {
        "--load": loads,
        "--workload": workloads,
        "--arrivals": arrivals,
        "--mix": applications_mix,
    }
    names = [name.strip() for name in policies.split(",")]
    own = {name: load_own_policy(name) for name in names if is_own(name)}
    for name in names:
        if name not in own:
            registered_policy(name)
    job_sets = job_sets_of(workload_set, trace_file, given, drawn, nodes, slots)
    runs = [
        SimulatedRun(
            name, rules, nodes, slots, own=own.get(name), built_in=workload_set or "", **one
        )
        for name in names
        for one in job_sets
    ]
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


DRAWN = (JSA, MIX)  # by seed
OF_SETS = {  # the options for some sets of jobs only
    "--load": (POLLUX,),
    "--workload": (POLLUX,),
    "--arrivals": DRAWN,
    "--mix": (MIX,),
}
LOAD = "1.0"
WORKLOADS = "1..8"
REPAIR_S = 600.0


def job_sets_of(
    built_in: str | None,
    trace_file: Path | None,
    given: Mapping[str, str | None],
    seeds: Sequence[int],
    nodes: int,
    slots: int,
) -> list[dict[str, Any]]:
    """Return the fields of a SimulatedRun for each set of jobs that a policy is to get."""
    for option, of in OF_SETS.items():
        if given[option] is not None and built_in not in of:
            raise UsageError(f"{option} is for {' and '.join(of)}; leave it out")
    if trace_file is not None:
        jobs = trace.read_trace(trace_file, nodes * slots)
        if any(job.kind in measured_applications() for job in jobs):
            pollux_workload.check_measured(slots)
        return [{"jobs": tuple(jobs), "seed": seeds[0]}]
    if built_in in DRAWN:
        if built_in == MIX:
            pollux_workload.check_measured(slots)
            draw = partial(mixed_jobs, mix=given["--mix"] or "")
            shapes = given["--arrivals"] or mixed_workload.ARRIVALS
        else:
            draw, shapes = partial(jsa_jobs), given["--arrivals"] or "high"
        pairs = dict.fromkeys((each.strip(), seed) for each in shapes.split(",") for seed in seeds)
        return [
            {"load": shape, "workload": seed, "jobs": tuple(draw(shape, seed)), "seed": seed}
            for shape, seed in pairs
        ]
    if built_in == VIRTUALFLOW:
        return [{"jobs": tuple(virtualflow_jobs()), "seed": seeds[0]}]
    of_paper = [_load(text) for text in (given["--load"] or LOAD).split(",")]
    numbers = _numbers(given["--workload"] or WORKLOADS, "workload", pollux_workload.WORKLOADS)
    pollux_workload.check_measured(slots)
    return [
        {"load": load, "workload": number, "seed": seeds[0]}
        for load in of_paper
        for number in numbers
    ]


def job_set(name: str | None, trace_file: Path | None, compared: bool) -> JobSet:
    """Return the defaults that `edl simulate` has for the chosen jobs."""
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


def seeds_of(text: str, built_in: str | None) -> list[int]:
    seeds = _numbers(text, "seed")
    if min(seeds) < 0:
        raise UsageError(f"--seed is {min(seeds)}; write 0 or more")
    if len(seeds) > 1 and built_in not in DRAWN:
        raise UsageError(f"several seeds are for {' and '.join(DRAWN)}; say one")
    return seeds


def failures_of(mtbf_s: float | None, repair_s: float | None, seed: int) -> Failures | None:
    """Return the failures of nodes to simulate; None if no node fails."""
    if mtbf_s is None:
        if repair_s is not None:
            raise UsageError("--repair is for --mtbf; give both or neither")
        return None
    repair_s = REPAIR_S if repair_s is None else repair_s
    if not (0 < mtbf_s < math.inf and 0 < repair_s < math.inf):
        raise UsageError("--mtbf and --repair must be more than 0 seconds, and finite")
    return Failures(mtbf_s, repair_s, seed)


def check_comparable(runs: Sequence[SimulatedRun]) -> None:
    """Raise an error unless Pollux' results were published for each of `runs`, as it is set up."""
    rules = Rules(pollux_workload.INTERVAL_S, pollux_workload.RESIZE, whole_seconds=True)
    published = rules, pollux_workload.NODES, pollux_workload.SLOTS
    for run in runs:
        answers(run.policy, run.load, run.workload)
        if (run.rules, run.nodes, run.slots) != published:
            raise UsageError(
                "--compare: the published answers are of 16 nodes of 4 slots, an interval of 60 s, "
                "a resize cost of 30 s, without interference and failures; leave these options out"
            )


def _load(text: str) -> str:
    """Return the name of the load of Pollux's workloads that `text` means: "1" is "1.0"."""
    same = text.strip()
    if same.replace(".", "", 1).isdecimal():
        same = str(float(same))
    if same not in pollux_workload.LOADS:
        raise UsageError(f"there is no load {text!r}; use {', '.join(pollux_workload.LOADS)}")
    return same


def _numbers(text: str, what: str, known: Sequence[int] = ()) -> list[int]:
    """Return the whole numbers in a text like "6", "1,3" or "1..8" (8 included), in that order."""
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


Done = tuple[RunOutcome, JctComparison | None]
"""A run that has ended, and how it compares with the published one, if it was to be compared."""

NARROW = (0, 0)  # so that a row fits into 80 columns
SUMMED = ("p50 s", "p99 s", "worst ρ", "span h", "resizes")
COMPARED = ("published", "same second", "took s")
LABELS = {POLLUX: ("load", "workload"), JSA: ("arrivals", "seed"), MIX: ("arrivals", "seed")}


def figures(outcome: RunOutcome, comparison: JctComparison | None, history: bool) -> dict[str, Any]:
    """Return one run as a dictionary of JSON values: policy, cluster, summary, and every job."""
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


def results_table(done: Sequence[Done]) -> Table:
    """Return a table with a row for each run, and a row for all runs of one policy at one load."""
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
    """Return the number cells, as text from left to right, of a row that sums up `group`."""
    results = [outcome.result for outcome, _ in group]
    jobs = sum(len(result.jobs) for result in results)
    ended = sum(len(result.ended) for result in results)
    count = str(jobs) if ended == jobs else f"{ended}/{jobs}"
    known = [comparison for _, comparison in group if comparison is not None]
    if known:
        return [
            count,
            f"{fmean(result.mean_jct_s for result in results):.1f}",
            f"{fmean(one.published_mean_jct_s for one in known):.1f}",
            f"{sum(one.matches for one in known)}/{jobs}",
            f"{sum(outcome.took_s for outcome, _ in group):.1f}",
        ]
    defined = [result for result in results if result.ended]
    means = _means(defined) if defined else ["-"] * 5
    return [count, *means, str(sum(job.resizes for result in results for job in result.jobs))]


def _means(results: Sequence[Result]) -> list[str]:
    """Return the five cells "mean s" to "span h" of a row that sums up `results`."""
    return [
        f"{fmean(result.mean_jct_s for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(50) for result in results):.0f}",
        f"{fmean(result.jct_percentile_s(99) for result in results):.0f}",
        f"{max(result.worst_finish_time_fairness for result in results):.2f}",
        f"{fmean(result.makespan_s for result in results) / 3600:.1f}",
    ]


def difference(run: SimulatedRun, comparison: JctComparison) -> str:
    """Return a text about the jobs whose completion time is not the published one."""
    names = [
        f"{name} {ours:g} s, published {theirs:g} s" for name, ours, theirs in comparison.differing
    ]
    return f"{run.title}: {some(names)}"


def catalogue() -> Table:
    """Return the table that `edl simulate --list` prints: built-in sets of jobs, and policies."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=NARROW)
    for column in ("", "name", ""):
        shown.add_column(column)
    for name, built_in in SETS.items():
        shown.add_row("jobs", name, built_in.what)
    shown.add_row("jobs", "--trace FILE.csv", TRACE.what)
    for name, (_, what) in POLICIES.items():
        shown.add_row("policy", name, what)
    return shown


MOST_RUNS = 6
MOST_BARS = 3000  # of a run, as single shapes; more are one picture within the .svg
SHADES = {  # from so many slots on
    0: ("waits", "#dddddd"),
    1: ("1 slot", "#c6dbef"),
    2: ("2 to 3", "#6baed6"),
    4: ("4 to 7", "#2171b5"),
    8: ("8 or more", "#08306b"),
}
COLOURS = ("C0", "C1", "C2", "C3", "C4", "C5")


def check_runs(count: int) -> None:
    """Raise an error if one figure cannot show `count` runs."""
    if count > MOST_RUNS:
        raise UsageError(
            f"--plot shows at most {MOST_RUNS} runs, not {count}; "
            "choose fewer with --policy, --load, --workload, --arrivals or --seed"
        )


def figure_of(outcomes: Sequence[RunOutcome]) -> Figure:
    """Return a figure with a Gantt chart of each run's jobs, and three charts of all runs below."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import LogLocator, NullFormatter

    count = len(outcomes)
    figure = Figure(figsize=(10.0, 2.4 * count + 2.8), layout="constrained")
    grid = figure.add_gridspec(count + 1, 3, height_ratios=[2.4] * count + [2.8])
    _explain(figure)
    first_s = min(job.arrival_s for one in outcomes for job in one.result.jobs)
    last_s = max(job.end_s for one in outcomes for job in one.result.jobs)
    for number, one in enumerate(outcomes):
        axes = figure.add_subplot(grid[number, :])
        _draw_jobs(axes, one, first_s)
        axes.set_xlim(0, (last_s - first_s) / 3600)
    below = [figure.add_subplot(grid[count, column]) for column in range(3)]
    for one, colour in zip(outcomes, COLOURS, strict=False):
        _draw_levels(below[0], below[1], one, first_s, colour)
        _draw_distribution(below[2], one, colour)
    total = max(one.run.nodes * one.run.slots for one in outcomes)
    below[0].axhline(total, color="0.6", linestyle=":")
    below[0].set(title="slots in use", xlabel="hours")
    below[1].set(title="jobs that wait", xlabel="hours")
    below[2].set(title="jobs that took no longer, %", xlabel="completion time, h", xscale="log")
    below[2].xaxis.set_major_locator(LogLocator(subs=(1.0, 3.0)))
    below[2].xaxis.set_major_formatter("{x:g}")
    below[2].xaxis.set_minor_formatter(NullFormatter())
    for axes in below:
        axes.set_ylim(bottom=0)
    below[2].legend(fontsize="small")
    return figure


def _draw_jobs(axes: Axes, outcome: RunOutcome, first_s: float) -> None:
    """Draw a line over time for each job of a run, the darker the more slots it has."""
    jobs = outcome.result.jobs
    bars: dict[str, list[tuple[float, float, float]]] = {}
    for row, job in enumerate(sorted(jobs, key=lambda job: job.arrival_s)):
        for span in spans(job):
            bars.setdefault(_shade(span.slots), []).append((row, span.from_s, span.to_s))
    many = sum(map(len, bars.values())) > MOST_BARS
    for shade, of in bars.items():
        rows = [row for row, _, _ in of]
        starts = [(from_s - first_s) / 3600 for _, from_s, _ in of]
        widths = [(to_s - from_s) / 3600 for _, from_s, to_s in of]
        axes.barh(rows, widths, 0.9, starts, color=shade, linewidth=0, rasterized=many)
    axes.invert_yaxis()
    axes.set(title=outcome.run.title, ylabel=counted(len(jobs), "job"), yticks=[])


def _shade(slots: int) -> str:
    return SHADES[max(least for least in SHADES if least <= slots)][1]


def _explain(figure: Figure) -> None:
    """Add a legend to `figure` that says which colour stands for how many slots."""
    from matplotlib.patches import Patch

    patches = [Patch(color=shade, label=name) for name, shade in SHADES.values()]
    figure.legend(handles=patches, loc="outside upper center", ncols=len(patches), fontsize="small")


def _draw_levels(
    used: Axes, waiting: Axes, outcome: RunOutcome, first_s: float, colour: str
) -> None:
    """Draw the slots in use and the number of waiting jobs of one run over time."""
    found = levels(outcome.result)  # the first one is at 0, before each job
    hours = [max(0.0, level.at_s - first_s) / 3600 for level in found]
    for axes, values in (
        (used, [level.used for level in found]),
        (waiting, [level.waiting for level in found]),
    ):
        axes.step(hours, values, where="post", color=colour, linewidth=0.8)


def _draw_distribution(axes: Axes, outcome: RunOutcome, colour: str) -> None:
    """Draw the cumulative distribution of the completion times of one run's ended jobs."""
    hours = sorted(job.jct_s / 3600 for job in outcome.result.ended)
    parts = [100 * number / len(hours) for number in range(1, len(hours) + 1)]
    axes.step(hours, parts, where="post", color=colour, linewidth=1.2, label=outcome.run.title)
