"""A page of benchmarks/results: a section for each measurement."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
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
    """Return the text of the page that ``command`` writes."""
    lines = [f"# {title}", "", f"`{command}` wrote this page; do not edit.", "", how]
    for section in sections:
        lines += ["", f"## {section.title}", "", section.how, "", table(section.head, section.rows)]
        if section.notes:
            lines += ["", *(f"- {note}" for note in section.notes)]
    return "\n".join([*lines, ""])


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Text to the left in the first column, numbers to the right in the others."""
    align = ["---", *["---:"] * (len(head) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, align, *rows))


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Replace the text between ``<!-- NAME -->`` and ``<!-- end -->`` of a page, for each name.

    ``blocks`` has the new texts by name. Return the new page.
    """
    for name, block in blocks.items():
        before, begin, rest = text.partition(f"<!-- {name} -->\n")
        _, end, after = rest.partition("<!-- end -->")
        assert begin, f"the page has no place for {name}"
        assert end, f"the page's place for {name} has no end"
        text = f"{before}{begin}{block}\n{end}{after}"
    return text
