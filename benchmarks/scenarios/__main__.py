"""``python -m benchmarks.scenarios``: run all with stock and with edl, write the table.

Takes a quarter of an hour. With --only, the other rows stay as they are.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks import report as benchmark
from benchmarks.jobs import ROOT
from benchmarks.scenarios import report
from benchmarks.scenarios.play import Played, play_edl, play_stock
from benchmarks.scenarios.table import SCENARIOS, Scenario
from benchmarks.scenarios.verdict import edl_problems, problems
from edl.zookeeper.local_server import start_local, stop_local

PAGE = ROOT / "benchmarks" / "results" / "horovod-scenarios.md"
FIGURES = ROOT / "benchmarks" / "results" / "horovod-scenarios.json"
SYSTEMS = ("stock", "edl")

parser = argparse.ArgumentParser(prog="python -m benchmarks.scenarios", description=__doc__)
parser.add_argument("--only", nargs="+", choices=[one.name for one in SCENARIOS], metavar="NAME")
parser.add_argument("--system", choices=SYSTEMS, help="one of the two; nothing is written")
parser.add_argument("--keep", type=Path, help="leave the files of the jobs in this new directory")


def main() -> int:
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # jobs end with us
    chosen = [one for one in SCENARIOS if not args.only or one.name in args.only]
    systems = [args.system] if args.system else list(SYSTEMS)
    if args.keep:
        args.keep.mkdir(parents=True)
        found = run(chosen, systems, args.keep)
    else:
        with tempfile.TemporaryDirectory(prefix="edl-scenarios-") as scratch:
            found = run(chosen, systems, Path(scratch))
    if not args.system:
        write(found)
    return int(any(one[system]["problems"] for one in found for system in systems))


def write(found: list[dict[str, Any]]) -> None:
    """Put what was ``found`` into the figures and the table."""
    kept = json.loads(FIGURES.read_text())["scenarios"] if FIGURES.exists() else []
    rows = {one["name"]: one for one in (*kept, *found)}
    known = [
        {key: rows[one.name][key] for key in ("name", *SYSTEMS)}
        for one in SCENARIOS
        if one.name in rows
    ]
    whole = {"machine": benchmark.machine(), "scenarios": known}
    FIGURES.write_text(json.dumps(whole, indent=1) + "\n")
    PAGE.write_text(report.into(PAGE.read_text(), report.markdown(known)))
    print(f"written to {FIGURES} and {PAGE}")


def run(chosen: list[Scenario], systems: list[str], scratch: Path) -> list[dict[str, Any]]:
    """Play the scenarios by turns, so that both systems meet the same machine."""
    state = scratch / "zookeeper"
    zookeeper = start_local(state)
    try:
        return [
            {"name": one.name}
            | {system: play(one, system, scratch / f"{one.name}-{system}", zookeeper)
               for system in systems}
            for one in chosen
        ]  # fmt: skip
    finally:
        stop_local(state)


def play(scenario: Scenario, system: str, directory: Path, zookeeper: str) -> report.Result:
    directory.mkdir()
    played: Played
    if system == "stock":
        played = play_stock(scenario, directory)
        wrong = problems(scenario.stock, played)
    else:
        played = play_edl(scenario, directory, zookeeper)
        wrong = edl_problems(scenario, played)
    result = report.result(played, wrong)
    print(f"{scenario.name}, {system}: {report.cell(result)}", flush=True)
    return result


if __name__ == "__main__":
    sys.exit(main())
