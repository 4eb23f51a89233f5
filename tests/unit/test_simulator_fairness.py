"""Finish-time fairness, worked out by hand."""

from __future__ import annotations

import pytest
from clusters import nodes, result, submitted

from edl.cluster.policies.simple import Fifo, MaxMin
from edl.simulator.results import isolated_s, mean_beside


def test_the_time_on_an_equal_part_of_the_slots() -> None:
    # One slot. a: 0 to 100 s; b comes at 50, begins at 100 and ends at 150.
    # While a is there: 50 s alone, 50 s two: 1.5 jobs; b: 50 s two, 50 s alone: 1.5.
    # On 1 / 1.5 of the slot a takes 150 s, b 75 s.
    jobs = [submitted("a", 0, 100), submitted("b", 50, 50)]
    done = result(Fifo(), jobs, nodes(1))
    assert mean_beside(done.jobs) == [1.5, 1.5]
    assert [job.isolated_s for job in done.jobs] == [150, 75]
    assert [job.finish_time_fairness for job in done.jobs] == pytest.approx([2 / 3, 4 / 3])
    figures = done.figures()
    assert figures["worst_finish_time_fairness"] == pytest.approx(4 / 3)
    assert figures["jobs"][0]["finish_time_fairness"] == pytest.approx(2 / 3)


def test_equal_shares_from_the_beginning_to_the_end_are_fair() -> None:
    # Four slots, two at a time for 100 s each of two slots: nobody loses anything.
    jobs = [submitted(name, 0, 200, min_slots=1, max_slots=4) for name in "ab"]
    done = result(MaxMin(), jobs, nodes(4))
    assert [job.jct_s for job in done.jobs] == [100, 100]
    assert done.worst_finish_time_fairness == pytest.approx(1)


@pytest.mark.parametrize(
    ("share", "seconds"),
    [
        (8.0, 25.0),  # at most 4 slots: 100 s of one slot
        (3.9, 100 / 3),  # three whole slots
        (2.0, 50.0),
        (1.0, 100.0),  # its minimum of two, half of the time
        (0.5, 200.0),
    ],
)
def test_an_isolated_job_keeps_its_limits(share: float, seconds: float) -> None:
    one = submitted("one", 0, 50, 2, min_slots=2, max_slots=4)
    assert isolated_s(one, share, 4) == pytest.approx(seconds)


def test_those_turned_away_are_beside_others_until_then() -> None:
    # b finds no slot at 50 s and is turned away at once.
    done = result(Fifo(), [submitted("a", 0, 100), submitted("b", 50, 50)], nodes(1), drop=True)
    assert mean_beside(done.jobs) == [1.0, 1.0]
    assert [job.isolated_s for job in done.jobs] == [100, 0]
    assert done.worst_finish_time_fairness == pytest.approx(1)
