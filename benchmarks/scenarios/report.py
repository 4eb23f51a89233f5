"""What came of the scenarios, as a table for docs/horovod.md: pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.scenarios.play import Played

BEGIN = "<!-- written by python -m benchmarks.scenarios -->"
END = "<!-- end of what is written -->"

Result = Mapping[str, Any]  # of one scenario with one system; JSON


def result(played: Played, problems: Sequence[str]) -> Result:
    """What is kept of a scenario with one system."""
    return {
        "problems": list(problems),
        "exit_code": played.code,
        "seconds": round(played.seconds, 1),
        "pause_s": round(played.pause_s, 2),
        "epochs": [dict(line) for line in played.lines],
    }


def markdown(scenarios: Sequence[Mapping[str, Any]]) -> str:
    """A row a scenario; each has "title", "note" and the results "stock" and "edl"."""
    head = "| what happens | stock Horovod 0.28.1 | edl | how edl differs by design |"
    rows = [
        f"| {one['title']} | {cell(one['stock'])} | {cell(one['edl'])} | {one['note']} |"
        for one in scenarios
    ]
    return "\n".join([head, "|---|---|---|---|", *rows])


def cell(told: Result) -> str:
    """Passed or failed how, the size of the ring at the end of each epoch, the seconds."""
    rings = ", ".join(str(line["size"]) for line in told["epochs"])
    end = "" if told["exit_code"] == 0 else ", then horovodrun fails"
    seconds = f"{told['seconds']:.0f} s, longest pause {told['pause_s']:.2g} s"
    if told["problems"]:
        return f"**failed**: {'; '.join(told['problems'])} ({seconds})"
    return f"passed: {rings}{end} ({seconds})"


def into(page: str, table: str) -> str:
    """The page with ``table`` between BEGIN and END.

    Raises:
        ValueError: the page has no such place.
    """
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} ... {END}")
    return f"{before}{begin}\n{table}\n{end}{after}"
