"""Latencies in parts, from events, step logs and the ends of processes that are made by hand."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest

from benchmarks.jobs import BenchmarkError, Steps
from benchmarks.preemption import live, page, timeline
from benchmarks.preemption.timeline import Latency, Migration, Save
from benchmarks.resize import CHANGES, Stall

OFFSET_S = 1_000_000.0  # of the time of day


def steps(worker: int, first: int, *times: float) -> Steps:
    numbers = np.arange(first, first + len(times))
    return Steps(worker, np.array(times), numbers, np.full(len(times), 2))


def event(kind: str, at_s: float, **details: object) -> timeline.Event:
    at = datetime.fromtimestamp(at_s + OFFSET_S, UTC).isoformat()
    return {"kind": kind, "time": at, "step": 7, "generation": 1, **details}


def saved(at_s: float) -> timeline.Event:
    return event("checkpoint", at_s, bytes=9, capture_s=0.25, write_s=0.5)


# --- a latency


def test_the_parts_add_up_to_the_whole() -> None:
    found = timeline.between(10.0, [("a", 10.5), ("b", 10.5), ("c", 12.0)])
    assert found == Latency(2.0, {"a": 0.5, "b": 0.0, "c": 1.5})


def test_clocks_that_differ_a_little_make_no_negative_part() -> None:
    found = timeline.between(10.0, [("a", 10.5), ("b", 10.49), ("c", 12.0)])
    assert found.parts_s == {"a": 0.5, "b": 0.0, "c": 1.5}
    assert sum(found.parts_s.values()) == found.total_s


def test_a_part_that_ends_before_it_begins_is_an_error() -> None:
    with pytest.raises(BenchmarkError, match=r"part b ended 0\.300 s before it began"):
        timeline.between(10.0, [("a", 10.5), ("b", 10.2)])


def test_the_clocks_of_events_and_steps_are_compared() -> None:
    now = {"time": datetime.now(UTC).isoformat()}
    assert timeline.time_s(now, timeline.clock_offset_s()) == pytest.approx(
        time.monotonic(), abs=60
    )
    assert timeline.process_start_s() < time.monotonic()


# --- preempt


PREEMPTED = [
    event("generation", 1.0, members=["w0", "w1"]),
    saved(2.0),
    event("generation", 10.5, members=[]),
    saved(12.5),
    event("job_stopped", 12.6),
]


def preempted(events: Sequence[timeline.Event]) -> Latency:
    logs = [steps(4, 0, 9.0, 10.9), steps(5, 0, 9.0, 11.0)]
    ends_s = {3: 14.0, 4: 13.0, 5: 13.25, 6: 13.5}
    return timeline.preempted(10.0, events, OFFSET_S, logs, ends_s)


def test_a_job_that_is_preempted() -> None:
    found = preempted(PREEMPTED)
    assert found.total_s == pytest.approx(4.0)
    assert found.parts_s == pytest.approx(
        {
            "request": 0.5,
            "step": 0.5,
            "close": 0.75,
            "copy": 0.25,
            "write": 0.5,
            "workers": 0.75,
            "others": 0.75,
        }
    )
    assert list(found.parts_s) == list(page.PREEMPTED)


@pytest.mark.parametrize("left_out", [2, 3])
def test_a_job_that_was_not_preempted_or_not_saved_has_no_latency(left_out: int) -> None:
    events = [one for number, one in enumerate(PREEMPTED) if number != left_out]
    with pytest.raises(BenchmarkError, match="after edl preempt"):
        preempted(events)


def test_the_state_before_the_first_step_is_no_save_while_the_job_trains() -> None:
    events = [{**saved(1.0), "step": 0}, saved(2.0), event("leader", 3.0)]
    assert timeline.saves(events) == [Save(9, 0.25, 0.5)]


# --- start and resume


def test_a_start_waits_for_the_last_worker_in_each_part(tmp_path: Path) -> None:
    for worker, late in ((4, 0.0), (5, 0.5)):
        marks = {"process": 1.0, "imports": 3.0, "ring": 3.5, "model": 4.0 + late, "state": 7.0}
        if worker == 4:
            marks["rank 0"] = 4.0
        rows = [f"{name} {int(at_s * 1e9)}" for name, at_s in marks.items()]
        (tmp_path / f"{worker}.marks").write_text("\n".join([*rows, "half of a li"]))
    marks_of = timeline.read_marks(tmp_path)
    logs = [steps(4, 0, 7.5, 8.5), steps(5, 0, 7.75, 8.5)]
    anew = timeline.started(0.5, [], OFFSET_S, marks_of, logs)
    assert anew.total_s == pytest.approx(7.25)
    assert anew.parts_s == pytest.approx(
        {"process": 0.5, "imports": 2.0, "ring": 0.5, "model": 1.0, "state": 2.5, "step": 0.75}
    )
    resumed = timeline.started(0.5, [event("resumed", 4.25)], OFFSET_S, marks_of, logs)
    parts_s = {**anew.parts_s, "model": 0.5, "read": 0.25, "others": 0.25}
    assert resumed.parts_s == pytest.approx(parts_s)
    assert list(resumed.parts_s) == list(page.STARTED)
    later = timeline.started(0.5, [event("resumed", 6.0)], OFFSET_S, marks_of, logs)
    assert later.parts_s == pytest.approx({**parts_s, "read": 2.0, "others": 0.0, "state": 1.0})


# --- migrate


def switch(generation: int, stall_s: float) -> timeline.Event:
    parts = {f"{name}_s": stall_s / 4 for name in timeline.SWITCH}
    workers = {
        "w0": {"role": "old", "stall_s": stall_s, **parts},
        "w1": {"role": "old", "stall_s": 0.0, **dict.fromkeys(parts, 0.0)},
        "w2": {"role": "new", "stall_s": 9.0, **dict.fromkeys(parts, 9.0)},
    }
    return {**event("switch", 15.0, workers=workers), "generation": generation}


MIGRATED = [
    switch(1, 8.0),
    event("desired", 10.25),
    {**event("generation", 12.0, joined=["w2", "w3"]), "generation": 2},
    switch(2, 0.5),
    {**event("generation", 13.0, joined=[]), "generation": 3},
    switch(3, 0.25),
]


def test_a_migration_of_all_workers() -> None:
    logs = {
        4: steps(4, 2, 8.0, 9.0, 10.0, 11.25, 12.25),
        5: steps(5, 2, 8.0, 9.0, 10.0, 11.25, 12.25, 13.75),
        6: steps(6, 7, 13.75, 14.5),
        7: steps(7, 7, 13.75, 14.5),
        3: steps(3, 0, 1.0, 2.0),  # it has left long ago
    }
    found = timeline.migrated(10.0, 15.5, MIGRATED, OFFSET_S, logs, {4: 14.0, 5: 15.0})
    assert found.latency.total_s == pytest.approx(5.5)
    assert found.latency.parts_s == pytest.approx(
        {"request": 0.25, "newcomers": 1.75, "switches": 2.5, "end": 1.0}
    )
    assert list(found.latency.parts_s) == list(page.MIGRATED)
    assert found.stall_s == pytest.approx(0.25 + 0.5)  # two gaps where a step takes 1 s
    assert found.switches == 2
    assert found.switches_s == pytest.approx(dict.fromkeys(timeline.SWITCH, 0.75 / 4))


def test_a_migration_without_newcomers_has_no_latency() -> None:
    with pytest.raises(BenchmarkError, match="no worker has joined"):
        timeline.migrated(10.0, 15.5, MIGRATED[:2], OFFSET_S, {}, {})
    logs = {4: steps(4, 0, 9.0, 12.0)}
    with pytest.raises(BenchmarkError, match="no step alone"):
        timeline.migrated(10.0, 15.5, MIGRATED, OFFSET_S, logs, {4: 14.0})


# --- processes


def test_the_ends_of_processes_are_seen_and_a_late_one_is_named() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        with pytest.raises(BenchmarkError, match=f"still there after 0 s: .*{process.pid}"):
            live.ends([process.pid], 0.0)
        assert process.stdin is not None
        began_s = time.monotonic()
        process.stdin.close()
        found = live.ends([process.pid], 60.0)
    assert began_s <= found[process.pid] <= time.monotonic()
    assert live.ends([process.pid], 0.0).keys() == {process.pid}  # it has ended before


# --- the page


def latencies(scale: float) -> live.Latencies:
    def parts(names: Sequence[str]) -> Latency:
        seconds = {name: scale * number for number, name in enumerate(names, 1)}
        return Latency(sum(seconds.values()), seconds)

    switches_s = dict.fromkeys(timeline.SWITCH, 0.125 * scale)
    stall = Stall(0.5 * scale, 0.1, {}, (), switches_s, 3.0 * scale)
    anew = parts([name for name in page.STARTED if name not in ("read", "others")])
    return live.Latencies(
        saves=(Save(2_500_000, 0.125, 0.5), Save(2_500_000, 0.25, 0.75), Save(2_500_000, 0.5, 1.0)),
        preempted=(parts([*page.PREEMPTED]),),
        started=(anew,),
        resumed={size: (parts([*page.STARTED]),) for size in live.RESUMED},
        migrated=(Migration(parts([*page.MIGRATED]), 0.25, switches_s, 2),),
        resized=(dict.fromkeys(CHANGES, stall),),
    )


def test_the_page_has_singularitys_table_beside_the_parts() -> None:
    text = page.page({"resnet50": latencies(1.0), "mlp": latencies(0.5)}, "a machine")
    rows = text.splitlines()
    assert "`python -m benchmarks --only preemption` wrote this page; do not edit." in rows
    assert "| Singularity, ResNet-50, 26 M: migrate, 16 to 16 | 58 | 37 | all of it |" in rows
    assert "| Singularity, BERT, 109 M: grow, 8 to 16 | 34 | 15 | all of it |" in rows
    name = live.MODELS["resnet50"]
    # Preempt: 1 + ... + 7 s, 5 s of writing; resume: 1 + ... + 8 s, 5 s of reading, 7 s of giving.
    stopped = page.OUR_CHANGES["stopped"]
    assert f"| edl, {name}: {stopped} | 64.00 (64.00 to 64.00) | 17.00 | 61.00 |" in rows
    shrink = page.OUR_CHANGES["shrink"]
    assert f"| edl, {name}: {shrink} | 3.00 (3.00 to 3.00) | 0.125 | 0.400 |" in rows
    assert f"| {name} | 2.5 | 0.250 (0.125 to 0.500) | 0.750 (0.500 to 1.00) |" in rows
    anew = "1.00 | 2.00 | 3.00 | 4.00 |  |  | 5.00 | 6.00 |"
    assert f"| {name}: start anew, 2 workers | 21.00 (21.00 to 21.00) | {anew}" in rows
    (source,) = [row for row in rows if "Table 5" in row]
    assert "arXiv 2202.07848" in source
    assert "do not compare the seconds" in source


def test_a_table_of_the_page_is_whole() -> None:
    one = latencies(1.0)
    found = {"mlp": replace(one, preempted=2 * one.preempted, resumed={
        size: 2 * each for size, each in one.resumed.items()
    })}  # fmt: skip
    for section in (page._beside(found), page._saves(found), page._preempted(found),
                    page._started(found), *page._changes(found)):  # fmt: skip
        assert section.rows
        assert all(len(row) == len(section.head) for row in section.rows)
