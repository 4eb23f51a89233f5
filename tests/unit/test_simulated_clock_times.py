"""Jobs with times since 1970: figures and messages count the hours from the first submission."""

from __future__ import annotations

from dataclasses import replace

import pytest
from clusters import submitted

from edl.simulator.costs import constant
from edl.simulator.engine import Rules
from edl.simulator.figure import figure_of
from edl.simulator.runs import SimulatedRun, do, do_all

NOW_S = 1.7e9
HOUR_S = 3600.0
JOBS = (submitted("a", NOW_S, HOUR_S, 4), submitted("b", NOW_S + HOUR_S, 2 * HOUR_S, 4))
RUN = SimulatedRun("fifo", Rules(0.0, constant(0)), 1, 4, jobs=JOBS)
LATER = tuple(replace(job, arrival_s=job.arrival_s + HOUR_S) for job in JOBS)


def test_the_figure_begins_at_the_first_submission_of_all_runs() -> None:
    charts = figure_of([do(RUN), do(replace(RUN, jobs=LATER))]).axes
    assert [chart.get_xlim() for chart in charts[:2]] == [pytest.approx((0, 4))] * 2
    starts = [[bar.get_x() for bar in chart.patches] for chart in charts[:2]]
    assert starts == [pytest.approx([0, 1]), pytest.approx([1, 2])]
    for chart in charts[2:4]:
        for line, hours in zip(chart.lines, ([0, 3], [0, 4]), strict=False):
            drawn = list(line.get_xdata())
            assert [drawn[0], drawn[-1]] == pytest.approx(hours)


def test_messages_count_from_it() -> None:
    said: list[str] = []
    list(do_all([RUN], tell=said.append))
    assert said[-1] == "1 of 1: fifo, the trace: 2 jobs have ended at 3.0 h"
