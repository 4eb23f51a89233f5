"""``python -m benchmarks``: run everything, write benchmarks/results/, print the table."""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from benchmarks import (
    crash,
    dashboard_cost,
    exact,
    goodput,
    installing,
    loading,
    report,
    resize,
    starting,
    step_time,
    thousand,
)
from benchmarks import page as pages
from benchmarks.cluster import recovery, recovery_page
from benchmarks.jobs import (
    ROOT,
    BenchmarkError,
    ChangedImportJob,
    EdlJob,
    FollowingEdlJob,
    HorovodrunJob,
    Job,
    PlainJob,
    StockJob,
    TwoHostsStockJob,
)
from benchmarks.peers import page as peers_page
from benchmarks.peers.jobs import GoodputTorchftJob
from benchmarks.peers.run import PeersRun
from benchmarks.preemption import live as preemption
from benchmarks.preemption import page as preemption_page
from benchmarks.tensorflow import MODES
from edl.zookeeper.local_server import start_local, stop_local

AnyJob = TypeVar("AnyJob", bound=Job)
System = tuple[str, type[Job], str]  # its name, its launcher, its script

STOCK_SYSTEM: System = (report.STOCK, StockJob, "stock")
HOROVODRUN_SYSTEM: System = (report.HOROVODRUN, HorovodrunJob, "edl")
CHANGED_SYSTEM: System = (report.CHANGED, ChangedImportJob, "stock")
BOTH = (STOCK_SYSTEM, (report.EDL, EdlJob, "edl"))

parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
PARTS = ["resize", "crash", "step-time", "starting", "horovod", "goodput", "peers", "thousand"]
PARTS += ["policy"]
# Only when asked for: one downloads, two take long, three are apart.
APART = ["installing", "cluster-recovery", "exact", "dashboard", "preemption", "loading"]
parser.add_argument("--only", choices=PARTS + APART, nargs="+", default=PARTS, help="parts of it")
parser.add_argument("--framework", choices=["torch", "tensorflow"], help="one of the two")
parser.add_argument("--repetitions", type=int, default=3, help="of resizes, crashes, preemptions")
parser.add_argument("--times", type=int, default=10, help="of each kill of a cluster's part")
parser.add_argument("--rounds", type=int, default=30, help="pairs of blocks of the step time")
parser.add_argument("--block", type=int, default=40, help="steps in a block")
parser.add_argument("--minutes", type=float, default=20.0, help="of goodput, for each system")
parser.add_argument("--every", type=float, default=60.0, help="seconds between its failures")
parser.add_argument("--seed", type=int, default=1, help="of its victims")
parser.add_argument("--quick", action="store_true", help="peers only: once, and few steps; print")
parser.add_argument("--no-control", action="store_true", help="leave out plain beside plain")
parser.add_argument("--no-stock-crash", action="store_true", help="leave out stock's crashes")
parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results")


def main() -> int:
    args = parser.parse_args()
    if args.quick:
        args.only, args.framework = ["peers"], "torch"
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with us
    with tempfile.TemporaryDirectory(prefix="edl-bench-") as scratch:
        bench = Bench(Path(scratch))
        try:
            results = bench.run(args)
        except BenchmarkError as error:
            print(f"benchmark: {error}", file=sys.stderr)
            return 1
        finally:
            bench.close()
    if args.quick:  # once and short: not what a page says
        print(peers_page.page(results["peers"], results["machine"]))
    else:
        write(args.out, results)
    return 0


class Bench:
    """One run: a directory for its jobs and a ZooKeeper of its own."""

    def __init__(self, scratch: Path) -> None:
        self._scratch = scratch
        self._state = scratch / "zookeeper"
        self._zookeeper = start_local(self._state)
        self._jobs = 0

    def close(self) -> None:
        stop_local(self._state)

    def run(self, args: argparse.Namespace) -> dict[str, Any]:
        results: dict[str, Any] = {"machine": report.machine()}
        if args.framework != "tensorflow":
            results["torch"] = self.torch(args)
        if args.framework != "torch":
            results["tensorflow"] = self.tensorflow(args)
        if "horovod" in args.only:
            results["horovod"] = self.horovod(args)
        if "goodput" in args.only and args.framework != "tensorflow":
            results["goodput"] = self.goodputs(args.minutes, args.every, args.seed)
        if "peers" in args.only and args.framework != "tensorflow":
            peers = PeersRun(self._job, self._scratch, say, quick=args.quick)
            found = results.get("goodput", {}).get("systems", {})
            results["peers"] = peers.run(args.repetitions, args.rounds, args.block, found)
        frameworks = (args.framework,) if args.framework else ("torch", "tensorflow")
        if "starting" in args.only:
            results["starting"] = {each: self.starts(each) for each in frameworks}
        if "policy" in args.only:
            results["policy"] = {
                each: self.policy_cost(each, args.rounds, args.block) for each in frameworks
            }
        results |= self._apart(args)
        if "thousand" in args.only and args.framework is None:
            results["thousand"] = {
                name: measure(say) for name, (measure, _) in thousand.MEASUREMENTS.items()
            }
        return {name: found for name, found in results.items() if found}

    def _apart(self, args: argparse.Namespace) -> dict[str, Any]:
        """Measure the parts that run only when they are asked for."""
        found: dict[str, Any] = {}
        if "installing" in args.only:
            found["installing"] = installing.measure(self._scratch, say)
        if "exact" in args.only:
            found["exact"] = exact.measure_all(self._job, self._scratch, args.rounds, say)
        if "loading" in args.only:
            frameworks = (args.framework,) if args.framework else ("torch", "tensorflow")
            found["loading"] = {
                each: loading.measure(each, self._job, self._scratch, args.rounds, say)
                for each in frameworks
            }
        if "cluster-recovery" in args.only:
            found["recovery"] = recovery.measure(self._scratch, say, args.times)
        if "dashboard" in args.only:
            found["dashboard"] = self.dashboard(args.rounds, args.block)
        if "preemption" in args.only:
            place = self._scratch / "preemption"
            found["preemption"] = preemption.measure(self._job, place, args.repetitions, say)
        return found

    def goodputs(self, minutes: float, every_s: float, seed: int) -> dict[str, Any]:
        """Each system after the other, with failures at the same seconds."""
        found: dict[str, goodput.Goodput] = {}
        systems: tuple[tuple[str, type[goodput.StruckJob], str], ...] = (
            (report.EDL, goodput.GoodputEdlJob, "edl"),
            (report.STOCK, goodput.GoodputStockJob, "stock"),
            ("torchrun", goodput.TorchrunJob, "torchrun"),
            ("torchft", GoodputTorchftJob, "torchft"),
        )
        for name, kind, script in systems:
            job = self._job(kind, {"EDL_BACKOFF_MAX_S": "1"})
            try:
                one = goodput.measure(job, f"benchmarks.torch.{script}", minutes, every_s, seed)
            except BenchmarkError as error:
                if name == report.EDL:
                    raise
                say(f"goodput, {name}, is left out: {error}")
                continue
            found[name] = one
            say(
                f"goodput, {name}: {one.ratio:.1%} ({one.useful:.0f} of {one.pace:.0f} samples/s), "
                f"stood still for {one.stopped_s:.1f} s, {one.redone} steps redone"
            )
        return {"minutes": minutes, "every_s": every_s, "seed": seed, "systems": found}

    def starts(self, framework: str) -> dict[str, starting.Starts]:
        """Both ways, one after the other."""
        found: dict[str, starting.Starts] = {}
        for way, settings in starting.SETTINGS.items():
            job, many = (
                self._job(EdlJob, {**settings, "XDG_STATE_HOME": str(self._scratch / "state")})
                for _ in range(2)
            )
            found[way] = one = starting.measure(job, many, framework)
            say(f"{framework}, {way}: {one}")
        return found

    def torch(self, args: argparse.Namespace) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if "resize" in args.only:
            results["resize"] = self.resizes("torch", args.repetitions, BOTH)
        if "crash" in args.only:
            results["crash"] = self.crashes("torch", args.repetitions, not args.no_stock_crash)
        if "step-time" in args.only:
            shape = (args.rounds, args.block)
            results["step_time"] = {"": self.step_times("torch", EdlJob, *shape)}
            if not args.no_control:
                results["control"] = self.step_times("torch", PlainJob, *shape)
        return results

    def tensorflow(self, args: argparse.Namespace) -> dict[str, Any]:
        results: dict[str, Any] = {}
        if "resize" in args.only:
            results["resize"] = self.resizes("tensorflow", args.repetitions, BOTH)
        if "crash" in args.only:
            beside_stock = not args.no_stock_crash
            results["crash"] = self.crashes("tensorflow", args.repetitions, beside_stock)
        if "step-time" in args.only:
            shape = (args.rounds, args.block // 2)  # its steps are twice as long
            results["step_time"] = {
                mode: self.step_times("tensorflow", EdlJob, *shape, mode=mode) for mode in MODES
            }
        return results

    def horovod(self, args: argparse.Namespace) -> dict[str, Any]:
        """Measure edl under Horovod's launcher, and with scripts that were written for Horovod.

        Return the repetitions of the resize benchmark by framework and system.
        """
        results = {}
        if args.framework != "tensorflow":
            systems = (STOCK_SYSTEM, HOROVODRUN_SYSTEM, CHANGED_SYSTEM)
            results["torch"] = self.resizes("torch", args.repetitions, systems)
        if args.framework != "torch":
            systems = (STOCK_SYSTEM, HOROVODRUN_SYSTEM)
            results["tensorflow"] = self.resizes("tensorflow", args.repetitions, systems)
        return results

    def resizes(
        self, framework: str, repetitions: int, systems: Sequence[System]
    ) -> dict[str, list[dict[str, resize.Stall]]]:
        """All systems by turns, so that they meet the same machine."""
        found: dict[str, list[dict[str, resize.Stall]]] = {system: [] for system, _, _ in systems}
        for repetition in range(repetitions):
            for system, kind, script in systems:
                stalls = resize.measure(self._job(kind), f"benchmarks.{framework}.{script}")
                found[system].append(stalls)
                text = ", ".join(
                    f"{change}: {stall.gap_s:.3f} s (median step {stall.median_step_s:.3f} s)"
                    for change, stall in stalls.items()
                )
                say(f"{framework}, repetition {repetition + 1}, {system}: {text}")
        return found

    def crashes(
        self, framework: str, repetitions: int, beside_stock: bool
    ) -> dict[str, list[crash.Crash]]:
        """By scenario. Stock and edl by turns, as in :meth:`resizes`."""
        found: dict[str, list[crash.Crash]] = {}
        crashes: list[tuple[str, crash.Crash]]
        for repetition in range(repetitions):
            crashes = []
            for name, settings in crash.STOCK.items() if beside_stock else ():
                job = self._job(TwoHostsStockJob, settings)
                crashes.append((name, crash.stock(job, f"benchmarks.{framework}.stock")))
                self._say_crash(framework, repetition, *crashes[-1])
            for faults, settings in crash.EDL:
                job = self._job(EdlJob, settings)
                for name, one in crash.edl(job, f"benchmarks.{framework}.edl", faults):
                    crashes.append((name, one))
                    self._say_crash(framework, repetition, name, one)
            for name, one in crashes:
                found.setdefault(name, []).append(one)
        return found

    @staticmethod
    def _say_crash(framework: str, repetition: int, name: str, one: crash.Crash) -> None:
        parts = ", ".join(f"{part} {s:.3f}" for part, s in one.parts_s.items() if s)
        say(
            f"{framework}, repetition {repetition + 1}, {name}: {one.gap_s:.3f} s (median step "
            f"{one.median_step_s:.3f} s), {one.redone} steps redone{f'; {parts}' if parts else ''}"
        )

    def step_times(
        self, framework: str, other: type[Job], rounds: int, block: int, mode: str = ""
    ) -> step_time.Comparison:
        """Plain Horovod, and ``other``, in turns."""
        script = "edl" if other is EdlJob else "plain"
        a = (self._job(PlainJob), f"benchmarks.{framework}.plain")
        b = (self._job(other), f"benchmarks.{framework}.{script}")
        turns = self._scratch / f"turns-{self._jobs}"
        arguments = ("--mode", mode) if mode else ()
        comparison = step_time.compare(a, b, turns, rounds, block, arguments)
        say(
            f"step time, {framework} {mode}, {script} beside plain: {comparison.a_s * 1e3:.1f} ms "
            f"and {comparison.b_s * 1e3:.1f} ms, ratio {comparison.ratio:.3f} "
            f"({comparison.low:.3f} to {comparison.high:.3f}), CPU "
            f"{comparison.a_cpu_s * 1e3:.1f} ms and {comparison.b_cpu_s * 1e3:.1f} ms"
        )
        return comparison

    def policy_cost(self, framework: str, rounds: int, block: int) -> step_time.Comparison:
        """Compare the step times of a job without a policy and of a job with one, in turns.

        ``rounds`` is how often the two jobs take turns, ``block`` for how many steps each time.
        """
        kinds = (EdlJob, FollowingEdlJob)
        a, b = ((self._job(kind), f"benchmarks.{framework}.edl") for kind in kinds)
        turns = self._scratch / f"turns-{self._jobs}"
        arguments = ("--mode", MODES[0]) if framework == "tensorflow" else ()
        found = step_time.compare(a, b, turns, rounds, block, arguments)
        say(
            f"policy, {framework}: {found.a_s * 1e3:.2f} ms and {found.b_s * 1e3:.2f} ms, ratio "
            f"{found.ratio:.4f} ({found.low:.4f} to {found.high:.4f})"
        )
        return found

    def dashboard(self, rounds: int, block: int) -> dashboard_cost.PageCost:
        """Compare the step times of a job while its page is open and while it is not, in turns.

        ``rounds`` is the number of pairs of blocks, ``block`` the number of steps in a block.
        """
        turns = self._scratch / f"turns-{self._jobs}"
        found = dashboard_cost.measure(
            self._job(EdlJob), "benchmarks.torch.edl", turns, rounds, block
        )
        say(
            f"dashboard: {found.without_s * 1e3:.2f} ms and {found.with_s * 1e3:.2f} ms, ratio "
            f"{found.ratio:.4f} ({found.low:.4f} to {found.high:.4f}), the server uses "
            f"{found.server_part:.1%} of a core"
        )
        return found

    def _job(self, kind: type[AnyJob], settings: Mapping[str, str] | None = None) -> AnyJob:
        self._jobs += 1
        directory = self._scratch / f"job-{self._jobs}"
        directory.mkdir()
        own = {"EDL_ZOOKEEPER": self._zookeeper} if issubclass(kind, EdlJob) else {}
        return kind(directory, {**own, **(settings or {})})


def _goodput_page(found: Mapping[str, Any], _machine: str) -> str:
    return goodput.markdown(found["systems"], found["minutes"], found["every_s"], found["seed"])


def _thousand_page(found: Mapping[str, Any], machine: str) -> str:
    sections = [make(found[name]) for name, (_, make) in thousand.MEASUREMENTS.items()]
    how = f"Machine: {machine}. {thousand.HOW}"
    return pages.markdown(thousand.TITLE, thousand.COMMAND, how, sections)


# By the name of a result: the file of its page, and what makes the page of the result and machine.
PAGES: Mapping[str, tuple[str, Callable[[Any, str], str]]] = {
    "goodput": ("goodput.md", _goodput_page),
    "starting": ("starting.md", starting.markdown),
    "installing": ("installing.md", installing.markdown),
    "recovery": ("cluster-recovery.md", recovery_page.markdown),
    "exact": ("exact.md", exact.page),
    "policy": ("policy.md", step_time.policy_page),
    "loading": ("loading.md", loading.page),
    "dashboard": ("dashboard.md", dashboard_cost.page),
    "peers": ("peers.md", peers_page.page),
    "preemption": ("preemption.md", preemption_page.page),
    "thousand": ("thousand.md", _thousand_page),
}


def write(out: Path, results: dict[str, Any]) -> None:
    """Write a table, a picture and the raw figures for each page of ``results`` into ``out``."""
    out.mkdir(parents=True, exist_ok=True)
    for page in ("torch", "tensorflow", "horovod"):
        if page not in results:
            continue
        mine = results[page]
        if page == "horovod":
            rows, notes = report.horovod_rows_and_notes(mine)
            report.horovod_picture(out / f"{page}.png", mine)
        else:
            rows, notes = report.rows_and_notes(page, mine)
            report.picture(out / f"{page}.png", mine)
        text = report.markdown(page, rows, notes)
        (out / f"{page}.md").write_text(text)
        raw = json.dumps(
            {"machine": results["machine"], **mine}, default=dataclasses.asdict, indent=1
        )
        (out / f"{page}.json").write_text(raw + "\n")
        print(text)
    for name, (file, page_of) in PAGES.items():
        if name in results:
            text = page_of(results[name], results["machine"])
            (out / file).write_text(text)
            print(text)
    print(f"written to {out}")


began = time.monotonic()


def say(text: str) -> None:
    print(f"{time.monotonic() - began:6.1f} s  {text}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
