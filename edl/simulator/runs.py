"""One run as a value, so that another process can do it; several runs, side by side."""

from __future__ import annotations

import multiprocessing
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from edl.core.cluster.state import Node
from edl.simulator.engine import OnTime, Rules, simulate
from edl.simulator.published.workloads.pollux_workload import pollux_jobs
from edl.simulator.registry import policy
from edl.simulator.results import Result
from edl.simulator.work import SubmittedJob


@dataclass(frozen=True)
class Run:
    """What is simulated.

    Attributes:
        policy: its name.
        nodes: how many, each of so many ``slots``.
        jobs: empty: those of Pollux.
        seed: of what the policy draws at random.
        load, workload: of Pollux; of JSA the arrivals and the seed.
        built_in: name of the set of jobs; empty: a trace.
    """

    policy: str
    rules: Rules
    nodes: int
    slots: int
    load: str = ""
    workload: int = 0
    jobs: tuple[SubmittedJob, ...] = ()
    seed: int = 0
    built_in: str = ""

    @property
    def title(self) -> str:
        """For messages."""
        jobs = self.built_in or "the trace"
        if self.load:
            jobs += f" {self.load}, {self.workload}"
        return f"{self.policy}, {jobs}"


class Outcome(NamedTuple):
    """A run, its result, and the seconds that it took to compute."""

    run: Run
    result: Result
    took_s: float


def do(run: Run, on_time: OnTime | None = None) -> Outcome:
    """Simulate one run.

    Raises:
        UsageError: see :func:`edl.simulator.engine.simulate`.
    """
    began_s = time.perf_counter()
    jobs = run.jobs or pollux_jobs(run.load, run.workload)
    nodes = equal_nodes(run.nodes, run.slots)
    rule = policy(run.policy, run.seed, run.rules.resize.resize_s)
    result = simulate(jobs, nodes, rule, run.rules, on_time)
    return Outcome(run, result, time.perf_counter() - began_s)


def equal_nodes(count: int, slots: int) -> list[Node]:
    """Return ``count`` nodes of ``slots`` slots each, named n0, n1, and so on."""
    return [Node(f"n{number}", slots) for number in range(count)]


def do_all(
    runs: Sequence[Run], processes: int = 1, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Outcome]:
    """Simulate several runs, and give them out in their order, each as soon as it can be.

    Args:
        processes: that work at once.
        tell: is told how far it is.

    Raises:
        UsageError: see :func:`do`.
    """
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
    finally:  # after Ctrl-C, no run is begun any more
        pool.shutdown(cancel_futures=True)


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _teller(run: Run, what: str, tell: Callable[[str], None]) -> OnTime:
    def on_time(now_s: float, ended: int) -> None:
        tell(f"{what}: {ended} jobs have ended at {now_s / 3600:.1f} h")

    return on_time
