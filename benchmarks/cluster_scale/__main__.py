"""``python -m benchmarks.cluster_scale``: a thousand jobs on two hundred hosts, with stand-ins."""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks import page, report
from benchmarks.cluster_scale.measure import Day, Steady, a_day, steady
from benchmarks.cluster_scale.report import (
    COMMAND,
    HOW,
    TITLE,
    day_section,
    published_section,
    steady_sections,
)
from benchmarks.jobs import ROOT
from edl.cluster.controller.controller import POLL_S
from edl.cluster.policies.registry import POLICIES

LEAST_REST_S = 2 * POLL_S

parser = argparse.ArgumentParser(prog="python -m benchmarks.cluster_scale", description=__doc__)
parser.add_argument("--only", choices=["steady", "day"], help="a part of it, which is only printed")
parser.add_argument("--jobs", type=int, default=1000, help="that train at once")
parser.add_argument("--kills", type=int, default=10, help="of the leading controller, in each part")
parser.add_argument("--policy", nargs="+", choices=POLICIES, default=list(POLICIES))
parser.add_argument("--rest", type=float, default=40.0, help="seconds in which nothing happens")
parser.add_argument("--day-jobs", type=int, default=10_000, help="submissions of the day")
parser.add_argument("--speed", type=float, default=12.0, help="of the day; 1: real time")
parser.add_argument("--seed", type=int, default=1, help="of the day")
parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results", help="a folder")


def main(arguments: Sequence[str] | None = None) -> int:
    args = parser.parse_args(arguments)
    if args.rest < LEAST_REST_S:
        parser.error(
            f"--rest is too short for a turn of the leader; give {LEAST_REST_S:g} s or more"
        )
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # all ends with us
    found: Steady | None = None
    played: Day | None = None
    with tempfile.TemporaryDirectory(prefix="edl-scale-") as scratch:
        if args.only != "day":
            place = Path(scratch) / "steady"
            place.mkdir()
            found = steady(place, args.jobs, args.kills, args.policy, args.rest, say)
            print(page_text(found, None), flush=True)
        if args.only != "steady":
            place = Path(scratch) / "day"
            place.mkdir()
            played = a_day(place, args.day_jobs, args.speed, args.kills, args.seed, "edl", say)
    text = page_text(found, played)
    print(text)
    if args.only is None:
        (args.out / "cluster-scale.md").write_text(text)
    return 0


def page_text(found: Steady | None, played: Day | None) -> str:
    """Return the page with what was measured; None: it was not."""
    sections = [] if found is None else steady_sections(found)
    if played is not None:
        sections.append(day_section(played))
    if found is not None:
        sections.append(published_section(found, played))
    how = f"Machine: {report.machine()}.\n\n{HOW}"
    return page.markdown(TITLE, COMMAND, how, sections)


def say(sentence: str) -> None:
    print(f"cluster-scale: {sentence}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
