"""How `edl history` shows what is known of jobs."""

from __future__ import annotations

import pytest

from edl.cli.history import history_table, slot_lines
from edl.core.cluster.history import JobHistory, SlotInterval
from edl.core.cluster.job_life import LifeResult, LifeState

DAY_S = 86400.0


def test_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("edl.cli.history._clock", lambda time_s: f"day {time_s / DAY_S:g}")
    jobs = (
        JobHistory(
            9,
            "a",
            "ann@a",
            DAY_S,
            0.0,
            3 * DAY_S,
            LifeState.ENDED,
            LifeResult.FAILED,
            "",
            3,
            5400.0,
        ),
        JobHistory(7, "letters", state=LifeState.RUNNING, runs=1),
    )
    assert [line.rstrip() for line in history_table(jobs, 5 * DAY_S)] == [
        "JOB      STATE    RUNS  SLOT HOURS  SUBMITTED  LASTED  BY",
        "a        failed   3     1.50        day 1      48h     ann@a",
        "letters  running  1     0.00        -          -       -",
    ]
    slots = (
        SlotInterval(9, "a", "h0", 2, DAY_S, 3 * DAY_S),
        SlotInterval(9, "a", "h1", 1, 3 * DAY_S, None),
    )
    assert slot_lines(slots, 5 * DAY_S) == [
        "  day 1 to day 3 (48h): 2 slots of h0",
        "  day 3 to now (48h): 1 slot of h1",
    ]
