"""Lay out and print tables for people so that no text is cut off, however long it is."""

from __future__ import annotations

from collections.abc import Mapping

from rich.console import RenderableType
from rich.table import Column, Table
from rich.text import Text

from edl.cli.common import console

_UNLIMITED_COLUMNS = 1_000_000


def print_table(table: RenderableType) -> None:
    """Print a table, or a group of tables, to standard output."""
    screen = console()
    if not screen.is_terminal:
        # as wide as its texts, so that each row is one line and can be searched
        screen.width = _UNLIMITED_COLUMNS
    screen.print(table)


def columns(*titles: str) -> list[Column]:
    """Return columns with these titles, in which a word that is too wide goes on in a new line."""
    return [Column(title, overflow="fold") for title in titles]


def facts_table(rows: Mapping[str, str]) -> Table:
    """Return a table with a row for each item of `rows`: its title in bold, and its text."""
    table = Table.grid(Column(style="bold"), *columns(""), padding=(0, 2))
    for title, text in rows.items():
        table.add_row(title, Text(text))
    return table
