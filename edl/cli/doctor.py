"""`edl doctor`: show whether this machine can run edl, and what to do if it cannot."""

from __future__ import annotations

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from edl.install import doctor as install_doctor
from edl.install.doctor import CheckResult

COLOURS = {CheckResult.OK: "green", CheckResult.LIMITED: "yellow", CheckResult.FAILED: "red"}


def doctor() -> None:
    """Check whether edl can run on this machine: Python, frameworks, Horovod, ZooKeeper.

    Shows a table of what was found, and what to do. Ends with 0 when edl can be used, 1 otherwise.
    """
    console = Console(highlight=False)
    with console.status("looking ..."):
        rows = tuple(install_doctor.checks())
    table = Table(show_lines=False)
    for title in ("check", "state", "found", "what to do"):
        table.add_column(title, overflow="fold")
    for row in rows:
        state = Text(row.state.value, style=COLOURS[row.state])
        table.add_row(Text(row.name), state, Text(row.found), Text(row.remedy))
    console.print(table)
    if not install_doctor.usable(rows):
        failed = sum(row.state is CheckResult.FAILED for row in rows)
        console.print(f"edl cannot be used here yet: {failed} failed, see the last column")
        raise typer.Exit(1)
    console.print("edl can be used here")
