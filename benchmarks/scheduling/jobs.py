"""The runs on each set of jobs, with the cluster and the rules that the set is meant for."""

from __future__ import annotations

from functools import cache

from benchmarks.published.jsa_workload import jsa_jobs
from benchmarks.published.runs import JSA, POLLUX, SETS, VIRTUALFLOW, PublishedRun
from benchmarks.published.virtualflow_workload import virtualflow_jobs
from edl.simulator.costs import constant
from edl.simulator.engine import Rules
from edl.simulator.workload import SubmittedJob


def on_pollux(
    policy: str,
    load: str,
    workload: int,
    interval_s: float | None = None,
    cost_s: float | None = None,
) -> PublishedRun:
    """One workload of Pollux; as published if nothing else is said."""
    of = SETS[POLLUX]
    interval_s = of.interval_s if interval_s is None else interval_s
    resize = of.resize if cost_s is None else constant(cost_s)
    rules = Rules(interval_s, resize, whole_seconds=True)
    return PublishedRun(
        policy, rules, of.nodes, of.slots, load=load, workload=workload, built_in=POLLUX
    )


def on_jsa(policy: str, arrivals: str, seed: int, drop: bool) -> PublishedRun:
    """Jobs drawn as JSA's; the seed is that of the policy, too."""
    of, jobs = SETS[JSA], _drawn(arrivals, seed)
    rules = Rules(of.interval_s, of.resize, drop=drop)
    return PublishedRun(
        policy, rules, of.nodes, of.slots, jobs, seed, load=arrivals, workload=seed, built_in=JSA
    )


@cache
def _drawn(arrivals: str, seed: int) -> tuple[SubmittedJob, ...]:
    return tuple(jsa_jobs(arrivals, seed))


def on_virtualflow(policy: str) -> PublishedRun:
    """VirtualFlow's 20 jobs."""
    of, jobs = SETS[VIRTUALFLOW], tuple(virtualflow_jobs())
    rules = Rules(of.interval_s, of.resize)
    return PublishedRun(policy, rules, of.nodes, of.slots, jobs=jobs, built_in=VIRTUALFLOW)
