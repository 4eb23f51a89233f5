"""A page of docs/benchmarks: a section for each measurement."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Section:
    """A measurement: its title, how it was done, a table, and what follows from it."""

    title: str
    how: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]
    notes: Sequence[str] = ()


def markdown(title: str, command: str, how: str, sections: Iterable[Section]) -> str:
    """The page that ``command`` writes."""
    lines = [f"# {title}", "", f"`{command}` wrote this page; do not edit.", "", how]
    for section in sections:
        align = ["---", *["---:"] * (len(section.head) - 1)]
        lines += ["", f"## {section.title}", "", section.how, ""]
        lines += [f"| {' | '.join(cells)} |" for cells in (section.head, align, *section.rows)]
        if section.notes:
            lines += ["", *(f"- {note}" for note in section.notes)]
    return "\n".join([*lines, ""])
