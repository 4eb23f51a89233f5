"""Policies on synthetic traces: rigid jobs, bursts, wrong models, two kinds of nodes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache
from statistics import fmean

from benchmarks.page import table
from benchmarks.published.model_errors import ModelErrors
from benchmarks.published.runs import PublishedRun
from benchmarks.published.synthetic import (
    INTERVAL_S,
    NODES,
    RESIZE,
    SLOTS,
    SPEEDS,
    bursts,
    elastic_jobs,
    rigid_jobs,
    two_kinds,
    wide_job_first,
)
from benchmarks.scheduling.jobs import on_jsa, on_pollux
from benchmarks.scheduling.published import percent
from benchmarks.scheduling.rivals import beside, standing
from benchmarks.scheduling.scope import OURS, Scope
from benchmarks.scheduling.store import Found, key
from benchmarks.scheduling.summary import Summary
from edl.simulator.engine import Rules
from edl.simulator.workload import SubmittedJob

MEASURED = "1.0", 6  # the load and the workload of Pollux that are seen with errors
WIDE, RIGID, BURSTS = "one wide job first", "rigid", "bursts"
KINDS = "two kinds of nodes"
ORDERS = ("fast", "slow", "mixed")

Trace = Mapping[str, list[PublishedRun]]
"""The runs of each policy."""


def runs(scope: Scope) -> Iterator[PublishedRun]:
    """Of all tables."""
    for trace in traces(scope).values():
        for of in trace.values():
            yield from of
    for name, errors in _errors(scope):
        yield on_wrong(name, errors)
    for parameters in _variations(scope):
        for of in _varied(scope, parameters).values():
            yield from of


def blocks(scope: Scope, found: Found) -> dict[str, str]:
    """Return the tables of the traces, of wrong models, and of other parameters."""
    return {
        "synthetic": _traces(scope, found),
        "synthetic-errors": _wrong(scope, found),
        "synthetic-parameters": _parameters(scope, found),
    }


def traces(scope: Scope) -> dict[str, Trace]:
    """By the name of the trace."""
    known = (*scope.beside, OURS)
    made: dict[str, Trace] = {}
    if scope.wide:
        made[WIDE] = {name: [on_wide(name)] for name in known}
    for seed in scope.drawn:
        made[f"{RIGID}, seed {seed}"] = {name: [on_rigid(name, seed)] for name in known}
    made[BURSTS] = {name: [on_bursts(name, seed) for seed in scope.drawn] for name in known}
    for order in scope.orders:
        title = f"{KINDS}, {order} first" if order != "mixed" else f"{KINDS}, in turn"
        made[title] = {name: [on_kinds(name, order, scope.drawn[0])] for name in known}
    made["Pollux {}, workload {}".format(*MEASURED)] = {
        name: [on_pollux(name, *MEASURED)] for name in known
    }
    return made


def on_wide(policy: str) -> PublishedRun:
    """Return the run of a wide job and small ones behind it, by a policy."""
    return _run(policy, "wide", 0)


def on_rigid(policy: str, seed: int) -> PublishedRun:
    """Return the run of rigid jobs by a policy."""
    return _run(policy, "rigid", seed)


def on_bursts(policy: str, seed: int) -> PublishedRun:
    """Return the run of long elastic jobs, and bursts of short ones."""
    return _run(policy, "bursts", seed)


def on_kinds(policy: str, order: str, seed: int) -> PublishedRun:
    """Return the run of elastic jobs on nodes of two kinds, named in this order."""
    made = _run(policy, "elastic", seed)
    rules = replace(made.rules, speeds=SPEEDS)
    return replace(made, rules=rules, machines=tuple(two_kinds(order)))


def on_wrong(policy: str, errors: ModelErrors) -> PublishedRun:
    """Return the run of a workload of Pollux by a policy that sees errors."""
    made = on_pollux(policy, *MEASURED)
    return replace(made, wrong=errors) if errors != ModelErrors() else made


def _run(policy: str, jobs: str, seed: int) -> PublishedRun:
    rules = Rules(INTERVAL_S, RESIZE)
    return PublishedRun(
        policy, rules, NODES, SLOTS, _drawn(jobs, seed), workload=seed, built_in=jobs
    )


@cache
def _drawn(jobs: str, seed: int) -> tuple[SubmittedJob, ...]:
    if jobs == "wide":
        return tuple(wide_job_first())
    return tuple({"rigid": rigid_jobs, "bursts": bursts, "elastic": elastic_jobs}[jobs](seed))


def _traces(scope: Scope, found: Found) -> str:
    rows = []
    for title, trace in traces(scope).items():
        of = {name: [found[key(run)] for run in each] for name, each in trace.items()}
        ours = standing(of[OURS])
        for name, each in of.items():
            one = standing(each)
            row = [title, name, f"{one.mean_jct_s:.0f}", f"{one.p99_jct_s:.0f}"]
            row += [f"{one.worst_fairness:.2f}", f"{fmean(s.p90_fairness for s in each):.2f}"]
            row += [f"{100 * fmean(s.unfair for s in each):.0f} %", _resizes(each)]
            rows.append(row + (["", "", ""] if name == OURS else beside(ours, one)))
    head = ["trace", "policy", "mean s", "p99 s", "worst fairness", "90th percentile", "above 1"]
    head += ["resizes a job", f"{OURS} beside it: mean", "p99", "worst fairness"]
    return table(head, rows)


def _errors(scope: Scope) -> Iterator[tuple[str, ModelErrors]]:
    for name in (*scope.misled, OURS):
        yield name, ModelErrors()
        yield from ((name, ModelErrors(step_times=size)) for size in scope.step_time_errors)
        yield from ((name, ModelErrors(lengths=size)) for size in scope.length_errors)


def _wrong(scope: Scope, found: Found) -> str:
    rows = []
    for name, errors in _errors(scope):
        one, exact = (found[key(on_wrong(name, each))] for each in (errors, ModelErrors()))
        what = "none"
        if errors.step_times:
            what = f"step times, {100 * errors.step_times:g} %"
        elif errors.lengths:
            what = f"lengths, exp({errors.lengths:g} z)"
        row = [what, name, f"{one.mean_jct_s:.0f}", percent(one.mean_jct_s / exact.mean_jct_s)]
        rows.append([*row, f"{one.p99_jct_s:.0f}", _resizes([one]), str(one.most_resizes)])
    head = ["error", "policy", "mean s", "", "p99 s", "resizes a job", "the most of a job"]
    return table(head, rows)


def _variations(scope: Scope) -> Iterator[tuple[tuple[str, float], ...]]:
    yield ()
    for name, value in scope.varied:
        yield ((name, value / 2),)
        yield ((name, value * 2),)


def _varied(
    scope: Scope, parameters: tuple[tuple[str, float], ...]
) -> dict[str, list[PublishedRun]]:
    """Return the runs of edl's policy with these parameters, by trace."""
    seeds = scope.drawn[:1]
    made = {
        WIDE: [on_wide(OURS)] if scope.wide else [],
        RIGID: [on_rigid(OURS, seed) for seed in seeds],
        BURSTS: [on_bursts(OURS, seed) for seed in seeds],
        "Pollux": [on_pollux(OURS, *MEASURED)],
        "JSA, high": [on_jsa(OURS, "high", seed, drop=False) for seed in seeds],
    }
    return {
        title: [replace(run, parameters=parameters) for run in of]
        for title, of in made.items()
        if of
    }


def _parameters(scope: Scope, found: Found) -> str:
    rows, head = [], list[str]()
    for parameters in _variations(scope):
        varied = _varied(scope, parameters)
        what = ", ".join(f"`{name}` {value:g}" for name, value in parameters) or "none"
        of = {title: standing([found[key(run)] for run in each]) for title, each in varied.items()}
        cells = [f"{one[0]:.0f}, {one[1]:.0f}, {one[2]:.2f}" for one in of.values()]
        head = ["changed", *varied]
        rows.append([what, *cells])
    return table(head, rows)


def _resizes(of: list[Summary]) -> str:
    return f"{fmean(one.resizes / one.offered for one in of):.1f}"
