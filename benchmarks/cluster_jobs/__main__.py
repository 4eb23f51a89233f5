"""``python -m benchmarks.cluster_jobs``: play the jobs live and simulated, and write the page.

Takes 20 minutes, and needs root. Nothing else should need the processors meanwhile.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks import report as benchmark
from benchmarks.cluster_jobs import costs, gantt, live, profiling, report
from benchmarks.cluster_jobs.costs import Costs, costs_of, short_profiles
from benchmarks.cluster_jobs.live import PolicyChoice
from benchmarks.cluster_jobs.machines import CLIENT, Machines
from benchmarks.cluster_jobs.network import Network
from benchmarks.cluster_jobs.simulated import play_again
from benchmarks.cluster_jobs.workload import HOSTS, JOBS, WorkloadJob, named
from benchmarks.jobs import ROOT, BenchmarkError

PAGES = ROOT / "benchmarks" / "results"
POLICIES = ("fifo", "elastic_tiresias", "jsa", "edl")
DEMOTION_SLOT_HOURS = 0.0775  # jobs are short: 279 slot-seconds, not an hour

parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_jobs", description=__doc__)
parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
parser.add_argument("--job", nargs="+", choices=[job.name for job in JOBS], help="only these")
parser.add_argument("--no-kills", action="store_true", help="kill nothing")
parser.add_argument("--keep", type=Path, help="leave the files of the runs in this new directory")
parser.add_argument("--out", type=Path, default=PAGES, help="where the page is written")
parser.add_argument("--again", type=Path, help="measure nothing; take these raw figures")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    try:
        if args.again:
            measured = report.from_json(json.loads(args.again.read_text()), JOBS)
        elif args.keep:
            args.keep.mkdir(parents=True)
            measured = measure(args, args.keep.absolute())
        else:
            with tempfile.TemporaryDirectory(prefix="edl-cluster-") as scratch:
                measured = measure(args, Path(scratch))
    except BenchmarkError as error:
        print(f"benchmark: {error}", file=sys.stderr)
        return 1
    return write(measured, args.out)


def measure(args: argparse.Namespace, directory: Path) -> report.Measured:
    """Measure profiles and costs, and play the jobs under each policy."""
    jobs = named(args.job)
    machine = benchmark.machine()
    kills = () if args.no_kills else live.KILLS
    with Network((CLIENT, *HOSTS)) as network:
        network.move_here(CLIENT)
        with Machines(network, directory) as machines:
            profiles = profiling.measure(machines, _profiled(jobs), say)
            run = live.play(
                machines,
                PolicyChoice(costs.POLICY),
                costs.SHORT_JOBS,
                short_profiles(profiles),
                say,
                kills=(),
                cluster="costs",
            )
            found = costs_of(run, short_profiles(profiles))
            say(f"costs: {found}")
            measured = report.Measured(machine, jobs, profiles, found, [])
            for name in args.policy:
                run = live.play(machines, chosen(name, found), jobs, profiles, say, kills)
                say(f"costs in this run, for comparison: {costs_of(run, profiles)}")
                measured = replace(measured, runs=[*measured.runs, run])
                keep(measured, directory)  # should a later one fail, or be ended
    return measured


def _profiled(jobs: Sequence[WorkloadJob]) -> list[WorkloadJob]:
    """Return the jobs whose step times are measured: also those that the short jobs are like."""
    names = {job.name for job in jobs} | set(costs.LIKE.values())
    return [job for job in JOBS if job.name in names]


def chosen(name: str, found: Costs) -> PolicyChoice:
    """Return the policy of this name with the parameters that suit jobs of minutes."""
    if name == "elastic_tiresias":
        return PolicyChoice(name, {"demotion_slot_hours": DEMOTION_SLOT_HOURS})
    if name == "edl":
        return PolicyChoice(name, {"resize_s": found.resize_s})
    return PolicyChoice(name)


def write(measured: report.Measured, out: Path) -> int:
    """Simulate the runs, and write page, figure and raw figures; return the exit code."""
    results = [
        play_again(run, measured.jobs, measured.profiles, measured.costs) for run in measured.runs
    ]
    text = report.page(measured, results)
    out.mkdir(parents=True, exist_ok=True)
    (out / "cluster.md").write_text(text)
    keep(measured, out)
    gantt.draw(list(zip(measured.runs, results, strict=True)), out / report.FIGURE)
    print(text)
    wrong = report.problems(measured, results)
    for problem in wrong:
        print(f"benchmark: {problem}", file=sys.stderr)
    return int(bool(wrong))


def keep(measured: report.Measured, out: Path) -> None:
    """Write the raw figures into a directory."""
    (out / "cluster.json").write_text(json.dumps(report.to_json(measured), indent=1) + "\n")


began = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
