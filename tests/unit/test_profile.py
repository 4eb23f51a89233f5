"""The curve of throughput over size, and the readings that it is made of."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from edl.cli.sizing import draw, profile_table
from edl.errors import UsageError
from edl.figures import check_figure
from edl.job.profile import Curve, Point, in_order, measured_point, sizes
from edl.records import ProgressSample

CURVE = (
    Curve("digits", 1_000_000.0)
    .with_point(Point(4, 300.0, 0.05, 50, 2.5))
    .with_point(Point(1, 100.0, 0.04, 50, 2.0))
    .with_point(Point(2, 180.0, 0.045, 50, 2.25))
)


def steps(
    first: int, last: int, step_s: float = 0.1, size: int = 2, **changes: int
) -> list[ProgressSample]:
    return [
        replace(ProgressSample(0, 3, size, 0, step, 8 * size * step, step * step_s), **changes)
        for step in range(first, last + 1)
    ]


def test_throughput_is_samples_by_time_of_one_clock() -> None:
    point = measured_point(steps(100, 160), np=2, steps=50, warm_up=5)
    assert point is not None
    assert (point.np, point.steps, point.unit) == (2, 55, "samples")
    assert point.throughput == pytest.approx(160.0)
    assert (point.step_s, point.seconds) == pytest.approx((0.1, 5.5))


def test_readings_may_be_rare_and_come_twice() -> None:
    rare = steps(100, 160)[::7]
    point = measured_point([one for one in rare for _ in range(3)], np=2, steps=30, warm_up=5)
    assert point is not None
    assert point.throughput == pytest.approx(160.0)


def test_the_first_steps_of_a_ring_do_not_count() -> None:
    slow = steps(10, 14, step_s=1.0)
    warm = [replace(r, at_s=r.at_s + 100.0) for r in steps(15, 70)]
    point = measured_point([*slow, *warm], np=2, steps=50, warm_up=5)
    assert point is not None
    assert point.step_s == pytest.approx(0.1)


def test_too_few_steps_are_no_measurement() -> None:
    assert measured_point([], np=2) is None
    assert measured_point(steps(100, 154), np=2, steps=50, warm_up=5) is None
    assert measured_point(steps(100, 155), np=2, steps=50, warm_up=5) is not None


@pytest.mark.parametrize("change", [{"generation": 4}, {"worker": 1}])
def test_only_the_newest_ring_counts_and_one_clock(change: dict[str, int]) -> None:
    """A crash, or another leader: what was seen before is of another ring or another clock."""
    readings = [*steps(0, 200), *steps(201, 220, **change)]
    assert measured_point(readings, np=2, steps=50) is None
    assert measured_point([*readings, *steps(221, 260, **change)], np=2, steps=50) is not None


def test_a_ring_of_another_size_is_not_measured() -> None:
    assert measured_point(steps(0, 200, size=3), np=2) is None


def test_pauses_between_epochs_do_not_count() -> None:
    first = steps(0, 40)
    second = [replace(r, epoch=1, at_s=r.at_s + 60.0) for r in steps(41, 80)]
    point = measured_point([*first, *second], np=2, steps=50, warm_up=5)
    assert point is not None
    assert point.step_s == pytest.approx(0.1)


def test_but_they_do_when_there_is_little_else() -> None:
    """An epoch of two steps, then one second in which the script evaluates."""
    readings = [
        replace(r, epoch=r.step // 2, at_s=r.at_s + 1.0 * (r.step // 2)) for r in steps(0, 170)
    ]
    each = readings[1::2]  # each reading is of another epoch
    assert measured_point(each, np=2, steps=50, warm_up=5) is not None
    point = measured_point(each, np=2, steps=50, warm_up=5)
    assert point is not None
    assert point.step_s == pytest.approx(0.6)


def test_a_script_that_reports_no_samples_is_measured_by_its_commits() -> None:
    silent = [replace(r, samples=0) for r in steps(0, 100)]
    point = measured_point(silent, np=2, steps=50)
    assert point is not None
    assert (point.unit, point.throughput) == ("commits", pytest.approx(20.0))
    assert Curve("digits", 0.0).with_point(point).unit == "commits/s"


def test_speed_up_and_efficiency_are_relative_to_the_smallest_size() -> None:
    assert [p.np for p in CURVE.points] == [1, 2, 4]
    assert [CURVE.speedup(p) for p in CURVE.points] == [1.0, 1.8, 3.0]
    assert [CURVE.efficiency(p) for p in CURVE.points] == [1.0, 0.9, 0.75]
    part = Curve("digits", 0.0).with_point(CURVE.points[1]).with_point(CURVE.points[2])
    assert part.speedup(part.points[1]) == pytest.approx(300 / 180)
    assert part.efficiency(part.points[1]) == pytest.approx(300 / 180 / 2)


def test_a_size_is_measured_again() -> None:
    again = CURVE.with_point(Point(2, 190.0, 0.04, 50, 2.0))
    assert [p.throughput for p in again.points] == [100.0, 190.0, 300.0]


def test_a_curve_survives_its_storage_and_has_all_figures() -> None:
    assert Curve.from_json(CURVE.to_json()) == CURVE
    figures = CURVE.figures()
    assert (figures["job"], figures["unit"]) == ("digits", "samples/s")
    assert figures["points"][2] == {
        "np": 4,
        "throughput": 300.0,
        "speedup": 3.0,
        "efficiency": 0.75,
        "step_s": 0.05,
        "steps": 50,
        "seconds": 2.5,
    }


@pytest.mark.parametrize(
    ("text", "order"), [("1..4", (4, 3, 2, 1)), ("4", (4,)), ("1,4,2,4", (4, 2, 1)), ("2..2", (2,))]
)
def test_sizes_are_stepped_through_downwards(text: str, order: tuple[int, ...]) -> None:
    assert sizes(text) == order


@pytest.mark.parametrize("text", ["", "many", "4..1", "0..2", "1..", "-1", "1,,2"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"no numbers of workers; write 1\.\.4"):
        sizes(text)


def test_no_size_at_all() -> None:
    with pytest.raises(UsageError, match="are no numbers of workers"):
        in_order([])


def test_the_table_has_a_row_for_each_size() -> None:
    shown = profile_table(CURVE)
    columns = [[str(cell) for cell in column.cells] for column in shown.columns]
    assert columns[:5] == [
        ["1", "2", "4"],
        ["100.0", "180.0", "300.0"],
        ["0.0400", "0.0450", "0.0500"],
        ["1.00", "1.80", "3.00"],
        ["1.00", "0.90", "0.75"],
    ]


@pytest.mark.parametrize(("name", "begin"), [("c.png", b"\x89PNG"), ("c.svg", b"<?xml")])
def test_a_figure_is_drawn(name: str, begin: bytes, tmp_path: Path) -> None:
    check_figure(tmp_path / name)
    draw(CURVE, tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(begin)


def test_a_figure_that_cannot_be_drawn_is_refused_before_anything_is_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match=r"the name must end with \.png or \.svg"):
        check_figure(tmp_path / "curve.pdf")
    with pytest.raises(UsageError, match="there is no folder"):
        check_figure(tmp_path / "nosuch" / "curve.png")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="--plot needs matplotlib: `pip install matplotlib`"):
        check_figure(tmp_path / "curve.png")
