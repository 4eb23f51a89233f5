"""All runs, each simulated once, side by side; a run that was done before is read from disk."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.published.runs import PublishedRun
from benchmarks.scheduling.summary import Summary, summary
from edl.simulator.runs import do_all

ROOT = Path(__file__).parents[2]
CODE = (
    "edl/simulator",
    "edl/cluster",
    "edl/policy",
    "benchmarks/published",
    "benchmarks/scheduling/summary.py",
)
SLOW = "pollux"  # its runs come last: what is cut off then has the most

Found = Mapping[str, Summary]
"""By :func:`key`."""


def key(run: PublishedRun) -> str:
    """Return what tells a run apart from others: all but its jobs, which follow from the rest."""
    return repr(replace(run, jobs=()))


def collected(
    runs: Iterable[PublishedRun], processes: int, folder: Path, tell: Callable[[str], None]
) -> dict[str, Summary]:
    """Return the summary of each run, by its key; run what is not stored yet.

    Args:
        runs: the runs.
        processes: how many runs at once.
        folder: where summaries are stored, for this very code: other code begins anew.
        tell: is called with a line on the progress.
    """
    there = folder / digest()
    there.mkdir(parents=True, exist_ok=True)
    wanted = {key(run): run for run in runs}
    found = {name: Summary(**known) for name, known in _stored(there) if name in wanted}
    missing = [run for name, run in wanted.items() if name not in found]
    missing.sort(key=lambda run: run.policy == SLOW)
    tell(f"{len(wanted)} runs, {len(found)} of them done before")
    for number, outcome in enumerate(do_all(missing, processes) if missing else (), 1):
        name, one = key(outcome.run), summary(outcome)
        found[name] = one
        _store(there, name, one)
        tell(f"{number} of {len(missing)}: {outcome.run.title}, {one.took_s:.1f} s")
    return found


def digest() -> str:
    """Of the code that decides what a run comes to."""
    hashed = hashlib.sha256()
    for part in CODE:
        path = ROOT / part
        files = sorted(one for one in path.rglob("*") if one.is_file()) if path.is_dir() else [path]
        for file in files:
            if "__pycache__" not in file.parts:
                hashed.update(f"{file.relative_to(ROOT)}\n".encode() + file.read_bytes())
    return hashed.hexdigest()[:12]


def _stored(folder: Path) -> Iterator[tuple[str, dict[str, object]]]:
    for file in folder.glob("*.json"):
        known = json.loads(file.read_text(encoding="utf-8"))
        yield known["run"], known["summary"]


def _store(folder: Path, name: str, one: Summary) -> None:
    """In one piece, or not at all: a run that is cut off leaves no half of a file."""
    file = folder / f"{hashlib.sha256(name.encode()).hexdigest()[:16]}.json"
    part = file.with_suffix(".part")
    part.write_text(json.dumps({"run": name, "summary": one.figures()}), encoding="utf-8")
    part.replace(file)
