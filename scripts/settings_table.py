"""Write the rows of the job's settings into docs/operations.md, from their declarations."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from edl.core.job_spec import JobSettings
from edl.core.settings import row
from edl.core.sizes import Sizes

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operations.md"
BEGIN, END = "<!-- settings of a job: scripts/settings_table.py -->\n", "<!-- end -->\n"


def table() -> str:
    """The table, with its marks."""
    rows = [row(one) for kind in (Sizes, JobSettings) for one in fields(kind)]
    head = ["| name | environment | default | |", "|---|---|---|---|"]
    return BEGIN + "\n".join(["", *head, *rows, ""]) + END


def written(page: str) -> str:
    """The page with the table as it is to be."""
    before, _, rest = page.partition(BEGIN)
    return before + table() + rest.partition(END)[2]


if __name__ == "__main__":
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
