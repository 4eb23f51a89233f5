"""Simulate, draw, and write benchmarks/results/scheduling.md; ``--quick`` takes seconds."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from types import ModuleType

from benchmarks.page import fill
from benchmarks.scheduling import fidelity, jsa, published, resizing, rivals, synthetic
from benchmarks.scheduling.scope import FULL, QUICK
from benchmarks.scheduling.store import ROOT, collected
from edl.errors import UsageError

PARTS: dict[str, ModuleType] = {
    "published": published,
    "jsa": jsa,
    "fidelity": fidelity,
    "rivals": rivals,
    "synthetic": synthetic,
    "resizing": resizing,
}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser("benchmarks.scheduling", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="print a small part, write no page")
    parser.add_argument("--only", choices=PARTS, help="leave the page's other parts")
    parser.add_argument("--jobs", type=int, default=1, help="processes that simulate at once")
    parser.add_argument(
        "--page", type=Path, default=ROOT / "benchmarks" / "results" / "scheduling.md"
    )
    parser.add_argument("--figures", type=Path, default=ROOT / "benchmarks" / "results")
    parser.add_argument("--done", type=Path, default=ROOT / "build" / "tables", help="done runs")
    given = parser.parse_args(arguments)
    if given.jobs < 1:
        parser.error("--jobs must be at least 1")
    scope = QUICK if given.quick else FULL
    parts = [PARTS[given.only]] if given.only else list(PARTS.values())
    runs = [run for part in parts for run in part.runs(scope)]
    try:
        found = collected(runs, given.jobs, given.done, _tell)
    except UsageError as error:
        print(f"tables: {error}", file=sys.stderr)
        return 1
    blocks = {name: text for part in parts for name, text in part.blocks(scope, found).items()}
    minutes = sum(one.took_s for one in found.values()) / 60
    _tell(f"{len(found)} runs took {minutes:.1f} minutes of one processor")
    if given.quick:
        print("\n\n".join(f"{name}\n\n{text}" for name, text in blocks.items()))
        return 0
    text = given.page.read_text(encoding="utf-8")
    given.page.write_text(fill(text, blocks), encoding="utf-8")
    if resizing in parts:
        resizing.draw(scope, found, given.figures)
    if rivals in parts:
        rivals.draw(given.figures)
    print(f"{given.page} is written")
    return 0


def _tell(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
