"""What came of the scenarios, as a table for benchmarks/results/horovod-scenarios.md: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.scenarios.play import Played
from benchmarks.scenarios.table import SCENARIOS

BEGIN = "<!-- written by python -m benchmarks.scenarios -->"
END = "<!-- end of what is written -->"

Result = Mapping[str, Any]  # of one scenario with one system; JSON


def result(played: Played, problems: Sequence[str]) -> Result:
    """Return what is kept of one scenario with one system."""
    return {
        "problems": list(problems),
        "exit_code": played.code,
        "seconds": round(played.seconds, 1),
        "pause_s": round(played.pause_s, 2),
        "epochs": [dict(line) for line in played.lines],
    }


def markdown(results: Sequence[Mapping[str, Any]]) -> str:
    """Return a table with a row for each scenario.

    Each of ``results`` has its "name" and the results "stock" and "edl".
    """
    known = {one.name: one for one in SCENARIOS}
    head = "| what happens | stock Horovod 0.28.1 | edl | how edl differs by design |"
    rows = [
        f"| {known[one['name']].title} | {cell(one['stock'])} | {cell(one['edl'])} "
        f"| {known[one['name']].note} |"
        for one in results
    ]
    return "\n".join([head, "|---|---|---|---|", *rows])


def cell(result: Result) -> str:
    """Return the cell of a result.

    It says whether the scenario passed or how it failed, the size of the ring at the end of each
    epoch, and the seconds.
    """
    if result["problems"]:
        return f"**failed**: {'; '.join(result['problems'])} ({result['seconds']:.0f} s)"
    rings = ", ".join(str(line["size"]) for line in result["epochs"])
    if result["exit_code"]:
        return f"passed: {rings}, then horovodrun fails ({result['seconds']:.0f} s)"
    return f"passed: {rings} ({result['seconds']:.0f} s, longest pause {result['pause_s']:.2g} s)"


def into(page: str, table: str) -> str:
    """Return the page with ``table`` between BEGIN and END.

    Raises:
        ValueError: the page has no such place.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{begin}\n{table}\n{end}{after}"
