"""Compute simulations that are described as objects: one, or several in parallel processes.

:func:`do` computes one :class:`SimulatedRun`, and :func:`do_all` several.
"""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from edl.cluster.policies.registry import OwnPolicy, with_run
from edl.cluster.state import ClusterPolicy, Node
from edl.simulator.costs import ErrorModelPolicy, ModelErrors
from edl.simulator.engine import OnTime, Rules, simulate
from edl.simulator.published.workloads.pollux_workload import pollux_jobs
from edl.simulator.registry import registered_policy
from edl.simulator.results import Result
from edl.simulator.workload import SubmittedJob


@dataclass(frozen=True)
class SimulatedRun:
    """The description of a simulation: the jobs, the cluster, the policy and the rules."""

    # the name of the policy, as `registry` has it, or "module:Class" for one that a user has
    # written
    policy: str
    rules: Rules  # the rules by which time moves
    nodes: int  # the number of nodes of the cluster
    slots: int  # the number of slots of each node
    # the load of a published workload of Pollux, like "1.0"; for drawn jobs (JSA's and mixed ones)
    # the rates of submission; empty: the jobs have neither
    load: str = ""
    # the number of a published workload of Pollux, 1 to 8; for drawn jobs their seed
    workload: int = 0
    # the jobs to simulate; empty: the workload of Pollux that `load` and `workload` name
    jobs: tuple[SubmittedJob, ...] = ()
    seed: int = 0  # the seed of the policy's random numbers; 0: the registered one
    # the name of the built-in set of jobs, for the title; empty: the jobs are from a trace
    built_in: str = ""
    # the policy, if it is one that a user has written; None: a registered one
    own: OwnPolicy | None = None
    # the nodes of the cluster, if they are not all alike; empty: `nodes` nodes of `slots` slots
    machines: tuple[Node, ...] = ()
    # the errors with which the policy sees the jobs; None: it sees them as they are
    wrong: ModelErrors | None = None
    # pairs of a parameter of the policy and its value, where it is not as registered
    parameters: tuple[tuple[str, float], ...] = ()

    @property
    def title(self) -> str:
        """The policy and the jobs in a few words, for messages, like "tiresias, pollux 1.0, 3"."""
        jobs = self.built_in or "the trace"
        if self.load:
            jobs += f" {self.load}, {self.workload}"
        return f"{self.policy}, {jobs}"


class RunOutcome(NamedTuple):
    """A simulation that was computed: its description, its result, and how long that took."""

    run: SimulatedRun  # the description of the simulation
    result: Result  # the result of each job, and the number of decisions
    took_s: float  # the seconds of real time, not virtual time, that the computation took


def do(run: SimulatedRun, on_time: OnTime | None = None) -> RunOutcome:
    """Compute the simulation that `run` describes, in this process, and return its outcome."""
    began_s = time.perf_counter()
    jobs = run.jobs or pollux_jobs(run.load, run.workload)
    nodes = run.machines or equal_nodes(run.nodes, run.slots)
    result = simulate(jobs, nodes, _policy_of(run), run.rules, on_time)
    return RunOutcome(run, result, time.perf_counter() - began_s)


def _policy_of(run: SimulatedRun) -> ClusterPolicy:
    """Return the policy of a simulation, with the seed, the costs and the speeds of its rules."""
    rules = run.rules
    rule = run.own.rule if run.own is not None else registered_policy(run.policy)
    speeds = ",".join(f"{kind}={speed:g}" for kind, speed in rules.speeds.items())
    found: Any = with_run(rule, run.seed, rules.resize.resize_s, speeds)
    if run.parameters:
        found = replace(found, **dict(run.parameters))
    if run.own is not None:
        found = replace(run.own, rule=found)
    return found if run.wrong is None else ErrorModelPolicy(found, run.wrong)


def equal_nodes(count: int, slots: int) -> list[Node]:
    """Return `count` nodes of `slots` slots each, named n0, n1, and so on."""
    return [Node(f"n{number}", slots) for number in range(count)]


def do_all(
    runs: Sequence[SimulatedRun], processes: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Iterator[RunOutcome]:
    """Compute several simulations, and yield their outcomes in the order of `runs`."""
    if processes == 1 or len(runs) == 1:
        for number, run in enumerate(runs, 1):
            yield do(run, _teller(run, f"{number} of {len(runs)}: {run.title}", tell))
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(min(processes, len(runs)), context, _leave_interrupts_to_the_parent)
    try:
        tell(f"{len(runs)} runs")
        for number, outcome in enumerate(pool.map(do, runs), 1):
            tell(f"{number} of {len(runs)} runs are done")
            yield outcome
    finally:  # after Ctrl-C, no further run begins
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _teller(run: SimulatedRun, what: str, tell: Callable[[str], None]) -> OnTime:
    """Return a function that passes the progress of a simulation to `tell`, as a message."""

    def on_time(since_s: float, ended: int) -> None:
        tell(f"{what}: {ended} jobs have ended at {since_s / 3600:.1f} h")

    return on_time
