"""The Gantt chart of a cluster: lanes, boxes, and what is shown where there are too many."""

from __future__ import annotations

import random

import pytest

from edl.cluster.history import SlotInterval
from edl.dashboard.view.charts import (
    COLUMNS,
    MAX_LANES,
    MAX_ROWS,
    SAME_S,
    SlotChart,
    natural_order,
    slot_chart,
)


def used(
    submission: int, begin_s: float, end_s: float | None, slots: int = 1, host: str = "a"
) -> SlotInterval:
    return SlotInterval(submission, f"j{submission}", host, slots, begin_s, end_s)


def boxes(chart: SlotChart, host: str = "a") -> list[tuple[str, int, int, float, float | None]]:
    [row] = [one for one in chart.rows if one.host == host]
    return [(one.job, one.lane, one.lanes, one.from_s, one.to_s) for one in row.boxes]


def test_each_job_has_lanes_of_its_own_and_keeps_them() -> None:
    found = slot_chart(
        [
            used(1, 0.0, 10.0, 2),
            used(2, 5.0, None, 1),
            used(1, 10.0, 20.0, 1),
            used(3, 12.0, None, 1),
        ],
        {"a": 4, "b": 1},
        0.0,
        30.0,
    )
    assert [(row.host, row.lanes) for row in found.rows] == [("a", 4), ("b", 1)]
    assert boxes(found) == [
        ("j1", 0, 2, 0.0, 10.0),
        ("j2", 2, 1, 5.0, None),
        ("j1", 0, 1, 10.0, 20.0),  # it gave one back, and keeps the other
        ("j3", 1, 1, 12.0, None),
    ]
    assert (found.jobs, found.use) == (3, ())


def test_slots_that_are_no_neighbours_are_several_boxes() -> None:
    intervals = [used(1, 0.0, 5.0), used(2, 0.0, None), used(3, 0.0, 5.0), used(4, 6.0, None, 2)]
    assert boxes(slot_chart(intervals, {"a": 3}, 0.0, 9.0))[3:] == [
        ("j4", 0, 1, 6.0, None),
        ("j4", 2, 1, 6.0, None),
    ]


def test_a_slot_that_changes_hands_in_one_plan_stays_on_its_lane() -> None:
    """The event that the new job has it may be logged just before that of the old one's loss."""
    intervals = [used(1, 0.0, 5.00002, 2), used(2, 5.0, None, 1), used(1, 5.00002, None, 1)]
    found = slot_chart(intervals, {"a": 2}, 0.0, 9.0)
    assert [(row.host, row.lanes) for row in found.rows] == [("a", 2)]
    assert [(box[0], box[1]) for box in boxes(found)] == [("j1", 0), ("j2", 0), ("j1", 1)]


def test_a_host_that_is_gone_is_shown_with_what_it_had() -> None:
    found = slot_chart([used(1, 1.0, 2.0, 3, host="old")], {}, 0.0, 9.0)
    assert [(row.host, row.lanes) for row in found.rows] == [("old", 3)]


def test_what_lies_outside_of_the_time_is_cut_off() -> None:
    intervals = [used(1, 0.0, 10.0), used(2, 11.0, 40.0), used(3, 41.0, None), used(4, 5.0, 12.0)]
    found = slot_chart(intervals, {"a": 2}, 10.0, 30.0, cut_s=3.0)
    assert boxes(found) == [("j4", 0, 1, 10.0, 12.0), ("j2", 1, 1, 11.0, 40.0)]
    assert (found.from_s, found.to_s, found.cut_s) == (10.0, 30.0, 3.0)


def test_many_hosts_are_shown_together_by_their_use() -> None:
    slots = {f"n{number}": 4 for number in range(1000)}
    intervals = [used(n, 0.0, 50.0, 4, f"n{n}") for n in range(500)]
    found = slot_chart(intervals, slots, 0.0, 100.0)
    assert (found.rows, len(found.use), found.jobs) == ((), MAX_ROWS, 500)
    first, last = found.use[0], found.use[-1]
    assert (first.host, first.slots) == ("n0 to n24", 100)
    assert first.use == (1.0,) * (COLUMNS // 2) + (0.0,) * (COLUMNS // 2)
    assert last.use == (0.0,) * COLUMNS


def test_a_chart_has_a_bound_whatever_has_happened() -> None:
    draw = random.Random(7)
    for count in (10, 100, 10_000):
        intervals = []
        for number in range(count):
            begin_s = draw.uniform(-50.0, 100.0)
            end_s = None if draw.random() < 0.1 else begin_s + draw.uniform(0.0, 30.0)
            host = f"n{draw.randrange(1 + count // 20)}"
            intervals.append(used(number, begin_s, end_s, draw.randrange(1, 4), host))
        found = slot_chart(intervals, {"n0": 2}, 0.0, 100.0)
        assert bool(found.rows) != bool(found.use)
        assert sum(row.lanes for row in found.rows) <= MAX_LANES
        assert len(found.use) <= MAX_ROWS
        assert all(0.0 <= part <= 1.0 for row in found.use for part in row.use)
        for row in found.rows:
            for lane in range(row.lanes):
                mine = [box for box in row.boxes if box.lane <= lane < box.lane + box.lanes]
                mine.sort(key=lambda box: box.from_s)
                ends = [float("inf") if box.to_s is None else box.to_s for box in mine]
                begins = [box.from_s for box in mine[1:]]
                assert all(end <= begin + SAME_S for end, begin in zip(ends, begins, strict=False))


def test_the_use_of_a_column_is_the_mean_over_its_time() -> None:
    slots = {f"n{number}": 1 for number in range(MAX_LANES + 1)}
    found = slot_chart([used(1, 0.0, 0.5, host="n0")], slots, 0.0, float(COLUMNS))
    alone = slot_chart([used(1, 0.25, None, host="n0")], {**slots, "n0": 1}, 0.0, float(COLUMNS))
    together = found.use[0].slots
    assert found.use[0].use[0] == pytest.approx(0.5 / together, abs=0.01)
    assert alone.use[0].use[0] == pytest.approx(0.75 / together, abs=0.01)


def test_numbers_in_names_are_compared_as_numbers() -> None:
    names = ["node10", "node9", "a", "node9b", "10", "9"]
    assert sorted(names, key=natural_order) == ["9", "10", "a", "node9", "node9b", "node10"]
