"""Compute simulations that are described as objects: one, or several in parallel processes."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import NamedTuple

from edl.cluster.policies.registry import OwnPolicy, policy_named, with_run
from edl.cluster.state import ClusterPolicy, Node
from edl.simulator.engine import OnTime, Rules, simulate
from edl.simulator.results import Result
from edl.simulator.workload import SubmittedJob


@dataclass(frozen=True)
class SimulatedRun:
    """The description of a simulation: the jobs, the cluster, the policy and the rules."""

    policy: str  # the name of a policy of edl, or "module:Class" for one that a user has written
    rules: Rules  # the rules by which time moves
    nodes: int  # the number of nodes of the cluster
    slots: int  # the number of slots of each node
    jobs: tuple[SubmittedJob, ...] = ()
    seed: int = 0  # the seed of the policy's random numbers; 0: the registered one
    own: OwnPolicy | None = None  # the policy, if a user has written it

    @property
    def title(self) -> str:
        return f"{self.policy}, the trace"

    def submissions(self) -> Sequence[SubmittedJob]:
        return self.jobs

    def cluster(self) -> Sequence[Node]:
        return equal_nodes(self.nodes, self.slots)

    def rule(self) -> ClusterPolicy:
        if self.own is None:
            return policy_named(self.policy, self.seed, self.rules.resize.resize_s)
        own = with_run(self.own.rule, self.seed, self.rules.resize.resize_s)
        return replace(self.own, rule=own)


class RunOutcome(NamedTuple):
    """A simulation that was computed: its description, its result, and how long that took."""

    run: SimulatedRun  # the description of the simulation
    result: Result  # the result of each job, and the number of decisions
    took_s: float  # the seconds of real time, not virtual time, that the computation took


def do(run: SimulatedRun, on_time: OnTime | None = None) -> RunOutcome:
    began_s = time.perf_counter()
    result = simulate(run.submissions(), run.cluster(), run.rule(), run.rules, on_time)
    return RunOutcome(run, result, time.perf_counter() - began_s)


def equal_nodes(count: int, slots: int) -> list[Node]:
    return [Node(f"n{number}", slots) for number in range(count)]


def do_all(
    runs: Sequence[SimulatedRun], processes: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Iterator[RunOutcome]:
    if processes == 1 or len(runs) == 1:
        for number, run in enumerate(runs, 1):
            what = f"{number} of {len(runs)}: {run.title}"

            def on_time(since_s: float, ended: int, what: str = what) -> None:
                tell(f"{what}: {ended} jobs have ended at {since_s / 3600:.1f} h")

            yield do(run, on_time)
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
