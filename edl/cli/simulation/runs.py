"""Decide which simulations (one policy on one set of jobs each) `edl simulate` has to run.

:func:`runs_of` returns them; the other functions read the options.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from edl.cluster.policies.registry import OwnPolicy
from edl.cluster_policies import is_own, load_own_policy
from edl.errors import UsageError
from edl.simulator import trace
from edl.simulator.built_in import JSA, MIX, POLLUX, SETS, TRACE, VIRTUALFLOW, JobSet
from edl.simulator.costs import Failures
from edl.simulator.engine import Rules
from edl.simulator.published.pollux_answers import answers
from edl.simulator.published.workloads import mixed_workload, pollux_workload
from edl.simulator.published.workloads.jsa_workload import jsa_jobs
from edl.simulator.published.workloads.mixed_workload import mixed_jobs
from edl.simulator.published.workloads.pollux_measurements import measured_applications
from edl.simulator.published.workloads.virtualflow_workload import virtualflow_jobs
from edl.simulator.registry import registered_policy
from edl.simulator.runs import SimulatedRun
from edl.simulator.workload import SubmittedJob

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


@dataclass(frozen=True)
class Setup:
    """The settings that all simulations of one `edl simulate` share, whatever their jobs."""

    # the names of the policies; all jobs are simulated once with each policy
    policies: Sequence[str]
    rules: Rules  # the rules of the simulation, such as the cost of a change of slots
    nodes: int  # the number of nodes of the cluster
    slots: int  # the number of slots of each node
    seeds: Sequence[int]  # the seeds, at least one; several only for jobs that are drawn at random
    # the policies among them that a user has written, by name
    own: Mapping[str, OwnPolicy] = field(default_factory=dict)

    def run(self, policy: str, **jobs: Any) -> SimulatedRun:
        """Return the description of a simulation with these settings; nothing is simulated."""
        own = self.own.get(policy)
        return SimulatedRun(policy, self.rules, self.nodes, self.slots, own=own, **jobs)


@dataclass(frozen=True)
class JobOptions:
    """The options of `edl simulate` that choose jobs, as the user typed them."""

    built_in: str | None  # the name of a built-in set of jobs; None if `trace_file` has the jobs
    trace_file: Path | None  # the file with the jobs; None for built-in ones
    # for the set `pollux`: multiples of the paper's rate of jobs, or "realistic", like "0.5,1.0";
    # None for 1.0
    loads: str | None
    # for the set `pollux`: the numbers of its workloads, like "1,3" or "1..8"; None for all
    workloads: str | None
    # for the sets `jsa` and `mix`: the arrival rates of jobs, by name or in jobs a minute; None for
    # the default of the set
    arrivals: str | None
    # for the set `mix`: how often each application comes, like "cifar10=3,bert"; None for the
    # published shares
    mix: str | None

    def __post_init__(self) -> None:
        given = (self.loads, self.workloads, self.arrivals, self.mix)
        for (option, of), value in zip(OF_SETS.items(), given, strict=True):
            if value is not None and self.built_in not in of:
                raise UsageError(f"{option} is for {' and '.join(of)}; leave it out")


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


def policy_names(text: str) -> tuple[list[str], dict[str, OwnPolicy]]:
    """Return the names of policies in `text`, which are separated by commas, in that order."""
    names, own = [name.strip() for name in text.split(",")], {}
    for name in names:
        if is_own(name):
            own[name] = load_own_policy(name)
        else:
            registered_policy(name)
    return names, own


def runs_of(jobs: JobOptions, setup: Setup) -> list[SimulatedRun]:
    """Return descriptions of the simulations to compute."""
    if jobs.trace_file is not None:
        return _alike(setup, _of_trace(jobs.trace_file, setup))
    if jobs.built_in == JSA:
        return _drawn(JSA, jsa_jobs, jobs.arrivals or "high", setup)
    if jobs.built_in == MIX:
        pollux_workload.check_measured(setup.slots)
        draw = partial(mixed_jobs, mix=jobs.mix or "")
        return _drawn(MIX, draw, jobs.arrivals or mixed_workload.ARRIVALS, setup)
    if jobs.built_in == VIRTUALFLOW:
        return _alike(setup, virtualflow_jobs(), VIRTUALFLOW)
    return _of_pollux(jobs.loads or LOAD, jobs.workloads or WORKLOADS, setup)


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


def _alike(setup: Setup, jobs: Sequence[SubmittedJob], built_in: str = "") -> list[SimulatedRun]:
    """Return a description of one simulation of `jobs` for each policy in `setup`."""
    (seed, *_) = setup.seeds
    return [
        setup.run(name, jobs=tuple(jobs), seed=seed, built_in=built_in) for name in setup.policies
    ]


def _of_trace(path: Path, setup: Setup) -> list[SubmittedJob]:
    """Return the jobs in the trace file `path`, a table in the CSV format."""
    jobs = trace.read_trace(path, setup.nodes * setup.slots)
    if any(job.kind in measured_applications() for job in jobs):
        pollux_workload.check_measured(setup.slots)
    return jobs


def _drawn(
    built_in: str,
    draw: Callable[[str, int], Sequence[SubmittedJob]],
    arrivals: str,
    setup: Setup,
) -> list[SimulatedRun]:
    """Return a description of a simulation for each policy, each arrival rate and each seed."""
    drawn = {
        (shape.strip(), seed): tuple(draw(shape.strip(), seed))
        for shape in arrivals.split(",")
        for seed in setup.seeds
    }
    return [
        setup.run(name, load=shape, workload=seed, jobs=jobs, seed=seed, built_in=built_in)
        for name in setup.policies
        for (shape, seed), jobs in drawn.items()
    ]


def _of_pollux(loads: str, workloads: str, setup: Setup) -> list[SimulatedRun]:
    """Return a simulation for each policy, load and workload of the paper Pollux."""
    chosen = [_load(text) for text in loads.split(",")]
    numbers = _numbers(workloads, "workload", pollux_workload.WORKLOADS)
    pollux_workload.check_measured(setup.slots)
    (seed, *_) = setup.seeds
    return [
        setup.run(name, load=load, workload=number, seed=seed, built_in=POLLUX)
        for name in setup.policies
        for load in chosen
        for number in numbers
    ]


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
