"""The tables of JSA: ratios and their spread."""

from __future__ import annotations

import jsa_table
import pytest
from jsa_table import Outcome, outcome, ratios, said, table

from edl.simulator.results import JobResult, Result

OURS = [Outcome(100, 90, 600.0), Outcome(100, 80, 660.0)]
THEIRS = [Outcome(100, 45, 1800.0), Outcome(100, 20, 1320.0)]


def test_jobs_count_that_ended_within_eight_hours() -> None:
    jobs = [
        JobResult(name, "", 0.0, 0.0, end_s, 1.0, dropped=dropped)
        for name, end_s, dropped in (("a", 600.0, False), ("b", 30000.0, False), ("c", 60.0, True))
    ]
    # a and b took 600 and 30,000 s; b ended after 28,800 s, c was turned away.
    assert outcome(Result(tuple(jobs), 9)) == Outcome(3, 1, 15300.0)


def test_ratios_are_taken_seed_by_seed() -> None:
    assert ratios(True, OURS, THEIRS) == pytest.approx([2, 4])
    assert ratios(False, OURS, THEIRS) == pytest.approx([3, 2])
    assert said([2.0, 4.0], 2) == "3.00 (2.00 to 4.00)"


def test_a_table_in_markdown() -> None:
    names = (*jsa_table.BASELINES, *jsa_table.FIXED)
    found = {("0.4", "jsa"): OURS} | {("0.4", name): THEIRS for name in names}
    _, _, line = table(["0.4"], found, drop=True).splitlines()
    cells = [cell.strip() for cell in line.strip("|").split("|")]
    # Beside each of the first three the ratio of the sketch.
    assert cells[:4] == ["0.4", "100", "85 (80 to 90)", "3.00 (2.00 to 4.00); 1.65"]
    assert cells[6:] == ["3.00 (2.00 to 4.00)"] * 3
    assert "10.0 to 11.0" in table(["0.4"], found, drop=False)
