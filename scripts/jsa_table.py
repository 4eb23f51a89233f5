"""JSA beside its baselines, as tables for docs/scheduling.md: jobs completed, and completion times.

Run it as `python scripts/jsa_table.py --seed 0..2 --jobs 2`. Beside a ratio stands that of a sketch
of 100 lines with the same model of a job, made before the simulator, where there is one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from edl.simulator import jsa
from edl.simulator.built_in import JSA, SETS
from edl.simulator.engine import Rules
from edl.simulator.results import Result
from edl.simulator.runs import Run, do_all

RATES = ("low", "0.4", "0.7", "high", "1.5", "mixed", "bursts")
BASELINES = ("jsa_max", "jsa_random", "jsa_min")
FIXED = tuple(f"{name}_fixed" for name in BASELINES)
# Ratios to BASELINES; in drop mode of jobs completed, in queue mode of mean completion times.
SKETCH: Mapping[tuple[bool, str], tuple[float, float, float]] = {
    (True, "0.4"): (1.65, 1.25, 1.05),
    (True, "0.7"): (2.59, 1.82, 1.04),
    (True, "high"): (3.08, 2.01, 1.05),
    (True, "1.5"): (3.12, 2.13, 1.06),
    (False, "low"): (1.23, 1.56, 1.86),
    (False, "0.4"): (5.53, 2.44, 1.56),
    (False, "0.7"): (10.3, 5.63, 1.14),
    (False, "high"): (7.53, 4.37, 1.16),
}


@dataclass(frozen=True)
class Outcome:
    """What one policy made of one seed.

    Attributes:
        completed: jobs that ended within the hours of arrivals.
        mean_jct_s: of all that were not turned away.
    """

    offered: int
    completed: int
    mean_jct_s: float


def outcome(result: Result) -> Outcome:
    """The figures of one run."""
    completed = sum(1 for job in result.ended if job.end_s <= jsa.UNTIL_S)
    return Outcome(len(result.jobs), completed, result.mean_jct_s)


def ratios(drop: bool, ours: Iterable[Outcome], theirs: Iterable[Outcome]) -> list[float]:
    """By how much JSA is better, seed by seed: jobs completed, or completion times."""
    pairs = zip(ours, theirs, strict=True)
    if drop:
        return [one.completed / max(1, other.completed) for one, other in pairs]
    return [other.mean_jct_s / one.mean_jct_s for one, other in pairs]


def said(values: Sequence[float], digits: int) -> str:
    """Mean, and the smallest and the largest."""
    low, high = min(values), max(values)
    return f"{fmean(values):.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def simulated(
    rates: Sequence[str], seeds: Sequence[int], drop: bool, processes: int
) -> dict[tuple[str, str], list[Outcome]]:
    """Rate and policy -> the outcome of each seed."""
    of = SETS[JSA]
    rules = Rules(of.interval_s, of.resize, drop=drop)
    runs = [
        Run(policy, rules, of.nodes, of.slots, rate, seed, jobs, seed=seed, built_in=JSA)
        for rate in rates
        for seed in seeds
        for jobs in [tuple(jsa.jobs(rate, seed))]
        for policy in ("jsa", *BASELINES, *FIXED)
    ]
    found: dict[tuple[str, str], list[Outcome]] = {}
    for one in do_all(runs, processes, lambda text: print(text, file=sys.stderr)):
        found.setdefault((one.run.load, one.run.policy), []).append(outcome(one.result))
    return found


def table(rates: Sequence[str], found: Mapping[tuple[str, str], list[Outcome]], drop: bool) -> str:
    """In Markdown."""
    what = "jobs completed" if drop else "mean completion time, min"
    columns = ["arrivals", "jobs", what, *(f"to {name}" for name in (*BASELINES, *FIXED))]
    lines = [_line(columns), _line(["---"] * len(columns))]
    for rate in rates:
        ours = found[rate, "jsa"]
        jobs = f"{fmean(one.offered for one in ours):.0f}"
        if drop:
            value = said([one.completed for one in ours], 0)
        else:
            value = said([one.mean_jct_s / 60 for one in ours], 1)
        cells = [rate, jobs, value]
        sketched = SKETCH.get((drop, rate), ())
        for number, name in enumerate((*BASELINES, *FIXED)):
            cell = said(ratios(drop, ours, found[rate, name]), 2)
            if number < len(sketched):
                cell += f"; {sketched[number]:g}"
            cells.append(cell)
        lines.append(_line(cells))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> None:
    """Print both tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", default="0..2", help="from..to")
    parser.add_argument("--arrivals", default=",".join(RATES))
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    given = parser.parse_args()
    low, _, high = given.seed.partition("..")
    seeds = range(int(low), int(high or low) + 1)
    rates = given.arrivals.split(",")
    for drop in (True, False):
        print(f"{'Drop' if drop else 'Queue'} mode, seeds {given.seed}:\n")
        print(table(rates, simulated(rates, seeds, drop, given.jobs), drop))
        print()


if __name__ == "__main__":
    main()
