"""The benchmark's arithmetic, on step logs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks import crash, dashboard_cost, loading, parts, report, resize, step_time
from benchmarks.thousand import rendezvous


def steps(worker: int, gaps: list[float], sizes: list[int]) -> object:
    count = len(gaps)
    return resize.Steps(worker, np.cumsum(gaps), np.arange(count), np.array(sizes))


def test_a_stall_is_the_longest_gap_after_the_request() -> None:
    """Steps of 0.1 s until 1.9 s, the request at 1.85 s, a gap of 2 s, then the new size.

    The long gaps before the request and long after the change have other causes.
    """
    settled = resize.SETTLED
    gaps = [0.9, *[0.1] * 10, 2.0, *[0.1] * settled, 9.0]
    old = steps(7, gaps, [2] * 11 + [3] * (settled + 2))
    found = resize.stall([old], 1.85, 3)
    assert found.gap_s == pytest.approx(2.0)
    assert found.median_step_s == pytest.approx(0.1)
    assert found.timeline[1][0] == pytest.approx(0.9 + 1.0 + 2.0 - 1.85)
    assert found.whole_s == pytest.approx(0.9 + 1.0 + 2.0 - 1.85)


def test_the_worst_old_worker_counts() -> None:
    sizes = [3] * 10 + [2] * 40
    quick = steps(1, [0.1] * 50, sizes)
    slow = steps(2, [*[0.1] * 10, 0.5, *[0.1] * 39], sizes)
    found = resize.stall([quick, slow], 0.75, 2)
    assert found.gap_s == pytest.approx(0.5)
    assert found.gaps_s == pytest.approx({1: 0.1, 2: 0.5})


def survivor(worker: int, gaps: list[float], sizes: list[int], numbers: list[int]) -> object:
    return crash.Steps(worker, np.cumsum(gaps), np.array(numbers), np.array(sizes))


def test_a_crash_costs_the_worst_survivor_its_longest_gap() -> None:
    """A fault happens at 1.05 s, and one survivor still completes its step in the old ring.

    The long gap after they are back, when the replacement joins, has another cause.
    """
    sizes = [3] * 10 + [2] * 5 + [3] * 5
    gaps = [*[0.1] * 10, 0.45, *[0.1] * 4, 5.0, *[0.1] * 4]
    one = survivor(1, gaps, sizes, [*range(20)])
    sizes = [3] * 11 + [2] * 4 + [3] * 5
    gaps = [*[0.1] * 11, 0.6, *[0.1] * 3, 5.0, *[0.1] * 4]
    other = survivor(2, gaps, sizes, [*range(20)])
    found = crash.crash([one, other], 1.05)
    assert found.gap_s == pytest.approx(0.6)
    assert found.gaps_s == pytest.approx({1: 0.45, 2: 0.6})
    assert found.median_step_s == pytest.approx(0.1)
    assert found.redone == 0


def test_steps_that_are_trained_twice_are_redone() -> None:
    """Back to step 7 of 0 to 9; what was redone before the fault is not counted again."""
    numbers = [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9, 7, 8, 9, 10, 11]
    sizes = [3] * 11 + [2] * 5
    found = crash.crash([survivor(1, [0.1] * 16, sizes, numbers)], 1.15)
    assert found.redone == 3


def told(generation: int, **workers: dict[str, object]) -> dict[str, object]:
    zero = dict.fromkeys(("wait_s", "detect_s", "election_s", "survivor_report_s", "init_s"), 0.0)
    full = {name: {"role": "old", **zero, **parts} for name, parts in workers.items()}
    return {"kind": "switch", "generation": generation, "workers": full}


def test_the_parts_are_those_of_the_slowest_worker() -> None:
    events = [
        {"kind": "generation", "generation": 5},
        told(6, w3={"wait_s": 9.0, "stall_s": 9.0}),
        told(
            5,
            w1={"wait_s": 0.1, "stall_s": 0.2},
            w2={"wait_s": 0.25, "election_s": 0.0625, "survivor_report_s": 0.125, "stall_s": 0.5},
            w4={"role": "new", "wait_s": 8.0, "stall_s": 9.0},
        ),
        told(4, w3={"wait_s": 9.0, "stall_s": 9.0}),
    ]

    def after(generation: int) -> dict[str, float]:
        names = ("detect", "election", "survivor_report", "close")
        return parts.slowest(events, lambda switch: switch["generation"] > generation, names)

    assert after(4) == {
        "detect": 0.0,
        "election": 0.0625,
        "survivor_report": 0.125,
        "close": 0.0625,
    }
    assert after(6) == {}


def test_a_gap_beyond_what_was_asked_is_not_reached() -> None:
    def cost(gap_s: float, redone: int = 0) -> object:
        return crash.Crash(gap_s, 0.1, redone, {1: gap_s}, {"detect": 0.0125, "close": 0.0})

    crashes = {
        "stock": [cost(30.2, 3), cost(30.6, 7)],
        crash.PLAIN: [cost(0.2), cost(0.6)],
        crash.LEADER: [cost(1.4)],
        crash.FROZEN: [cost(crash.SESSION_S + 0.9)],
    }
    rows = report.crash_rows(crashes)
    reached = {row.what: row.reached for row in rows}
    assert [reached[what] for what in list(reached)[:3]] == [False, True, True]
    assert rows[0].stock.startswith("30.40 s")
    (redone,) = [row for row in rows if "redone" in row.what]
    assert (redone.stock, redone.edl, redone.reached) == ("3 to 7", "0", True)
    assert rows[-1].edl == "detect 12 ms"


def test_the_interval_of_a_median_holds_it() -> None:
    ratios = np.random.default_rng(1).normal(1.02, 0.05, 40)
    low, high = step_time.confidence(ratios)
    assert low < np.median(ratios) < high
    assert high - low < 0.06


def test_a_scale_out_is_compared_with_stock_and_with_its_limit() -> None:
    found = {report.STOCK: stalls(4.0), report.EDL: stalls(0.35)}
    assert report.resize_rows(found, None)[0].reached
    assert not report.resize_rows(found, 0.3)[0].reached
    found[report.EDL] = stalls(0.45)
    assert not report.resize_rows(found, None)[0].reached


def test_horovods_launcher_is_held_to_what_was_asked_and_its_scripts_to_nothing() -> None:
    found = {report.STOCK: stalls(4.0), report.HOROVODRUN: stalls(0.35)}
    found[report.CHANGED] = stalls(0.45)
    rows, _ = report.horovod_rows_and_notes({"torch": found})
    asked = [row for row in rows if row.ratio]
    assert [(row.what.split(":")[0], row.reached) for row in asked] == [
        ("**PyTorch, under horovodrun", True),
        ("**PyTorch, one changed import", None),
    ]
    found[report.HOROVODRUN] = stalls(0.45)
    rows, _ = report.horovod_rows_and_notes({"torch": found})
    assert rows[0].reached is False


def stalls(gap_s: float) -> list[dict[str, object]]:
    return [{"scale-out 2 → 3": resize.Stall(gap_s, 0.1, {}, (), {})}]


def test_a_rendezvous_is_told_by_its_median_run_and_for_each_member() -> None:
    cost = rendezvous.Cost
    runs = [
        cost(9.0, 0.5, 0.09, 99 << 20, 1400, 30_000_000),
        cost(1.0, 0.4, 0.03, 75 << 20, 1279, 20_179_200),
        cost(2.0, 0.3, 0.01, 70 << 20, 1279, 20_179_200),
    ]
    other = [cost(1.0, 0.1, 0.001, 75 << 20, 648, 1_142_400)]
    found = {rendezvous.IN_BULK: {256: runs}, rendezvous.ONE_BY_ONE: {16: other}}
    assert rendezvous.section(found).rows == [
        ["256 members, in bulk", "1.00", "0.40", "3", "5.0", "78.8", "30", "75"],
        ["16 members, one by one", "1.00", "0.10", "", "40.5", "71.4", "1", "75"],
    ]


def test_the_page_of_an_open_page_says_by_how_much_steps_are_longer() -> None:
    cost = dashboard_cost.PageCost(0.050, 0.051, 30, 1.02, 0.99, 1.05, 0.04, 0.041, 0.02)
    row = "| 50.00 | 51.00 | +2.00% (-1.00% to +5.00%) | 40.00, 41.00 | 2.0% |"
    assert row in dashboard_cost.page(cost, "a machine")


def test_a_loader_is_judged_by_the_mean_step_after_the_batches_loaded_before() -> None:
    """Batches come four at a time, and the first of a block were loaded before it."""
    before, ahead = [0.1] * (loading.WARM + 1), [1e-6] * loading.AHEAD
    block = [0.0, 0.0, 0.0, 0.04] * 20
    log = steps(7, [*before, *ahead, *block], [1] * (len(before) + len(ahead) + 80))
    job = type("Job", (), {"steps": lambda _: {7: log}})()
    assert loading.block_mean(job, 0, loading.AHEAD + 80) == pytest.approx(0.01)


def test_the_page_of_the_loaders_says_which_part_of_the_other_edl_gives() -> None:
    one = step_time.Comparison(0.032, 0.040, (1.25,), 1.25, 1.0, 2.0, 0.004, 0.005, 0.0, 0.0)
    found = loading.page({"torch": {"image-0": one}}, "a machine")
    assert "| 1,000 | 800 | 0.80 (0.50 to 1.00) | 4.00 | 5.00 | **no** |" in found
