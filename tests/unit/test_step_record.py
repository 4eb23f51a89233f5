"""What the workers of a ring conclude from one table of step records."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edl.errors import RingError
from edl.step.record import (
    FIELDS,
    PARTS,
    WIDTH,
    StepRecord,
    StepRecords,
    Stop,
    SwitchTimes,
    agreed_generation,
    check_records,
    check_together,
    counts,
    global_samples,
    repair_times,
    stopping,
    wanting_to_stop,
)

ROW = StepRecord(
    generation=3,
    step=41,
    worker=0,
    epoch=1,
    samples=32,
    position=96,
    wanted=64,
    newest_generation=3,
    ledger=7,
)
TABLE = tuple(replace(ROW, worker=worker) for worker in (4, 0, 2))  # rank order, not id order
of = StepRecords.of


def test_a_row_is_one_line_of_int64() -> None:
    row = ROW.encode()
    assert row.shape == (1, WIDTH)
    assert row.dtype == np.int64
    assert row[0, :10].tolist() == [3, 41, 0, 1, 32, 96, 64, 3, 7, 1]
    assert {name for name, value in zip(FIELDS, row[0], strict=False) if value == -1} == {
        "taken",
        "end",
    }, "it is of no stream"
    assert set(row[0, 10:].tolist()) == {0, -1}


def test_a_row_ends_with_the_parts_of_the_last_switch() -> None:
    times = SwitchTimes(detect_us=1, median_step_us=2_500_000)
    assert FIELDS[-len(PARTS) :] == PARTS
    row = replace(ROW, **vars(times)).encode()
    assert row[0, : len(FIELDS)][-len(PARTS) :].tolist() == [1, *[0] * (len(PARTS) - 2), 2_500_000]
    seconds = times.seconds()
    assert (seconds["detect_s"], seconds["survivor_report_s"], seconds["median_step_s"]) == (
        1e-6,
        0.0,
        2.5,
    )


@pytest.mark.parametrize(
    ("led_since", "heard", "parts"),
    [
        pytest.param(3.0, 10.5, (2.0, 0.0, 0.5), id="the leader lives"),
        pytest.param(10.25, 10.5, (2.0, 0.25, 0.25), id="a new one since the failure"),
        pytest.param(10.5, 10.5, (2.0, 0.5, 0.0), id="both heard of in one look"),
        pytest.param(11.0, 10.5, (2.0, 0.5, 0.0), id="a new one after the repair was decided"),
        pytest.param(9.0, 9.5, (2.0, 0.0, 0.0), id="the news broke the ring"),
    ],
)
def test_what_went_before_a_rebuild(
    led_since: float, heard: float, parts: tuple[float, float, float]
) -> None:
    """It waited from 8.0 and knew at 10.0 that the ring is broken."""
    times = repair_times(8.0, 10.0, led_since, heard)
    seconds = times.seconds()
    assert (seconds["detect_s"], seconds["election_s"], seconds["survivor_report_s"]) == parts


def test_a_table_is_read_in_rank_order() -> None:
    table = np.concatenate([record.encode() for record in TABLE])
    records = StepRecords(table)
    assert tuple(records) == TABLE
    assert records.values("worker") == [4, 0, 2]
    assert records.column("worker").tolist() == [4, 0, 2]
    assert (records[1], records[-1], len(records)) == (TABLE[1], TABLE[2], 3)
    assert tuple(records[1:]) == TABLE[1:]
    assert records.differ_in("worker")
    assert not records.differ_in("step")


@pytest.mark.parametrize("shape", [(WIDTH,), (2, WIDTH - 1), (1, 2, WIDTH)])
def test_a_table_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(RingError, match=f"expected \\(size, {WIDTH}\\)"):
        StepRecords(np.zeros(shape, dtype=np.int64))


def test_rows_of_one_step_agree() -> None:
    check_records(of(TABLE))
    check_records(of(TABLE[:1]))


@pytest.mark.parametrize("name", ["generation", "step", "ledger"])
def test_a_worker_that_took_a_wrong_turn_is_named(name: str) -> None:
    rows = (TABLE[0], replace(TABLE[1], **{name: 99}), TABLE[2])
    with pytest.raises(RingError) as caught:
        check_records(of(rows))
    own = getattr(ROW, name)
    assert f"the {name} of step 41 (w0: 99, w2: {own}, w4: {own})" in str(caught.value)


AGREED = {"generation", "step", "worker", "epoch", "ledger", "stop", "part", "updated"}
AGREED |= {"exchange", "site"}  # tests/unit/test_step_mismatch.py


def test_rows_may_differ_in_what_is_a_workers_own() -> None:
    own = {
        "samples",
        "counted",
        "batches",
        "late",
        "position",
        "wanted",
        "newest_generation",
        "state",
        "buffers",
        "taken",
        "end",
        "size_change",
        "batch",
        "own_square",
        "mean_square",
        "save",
        "payload_bytes",
        "joined",
        "inside",
    } | {n for n in FIELDS if n.endswith("_us")}
    assert set(FIELDS) - own == AGREED
    for name in sorted(own):
        check_records(of((TABLE[0], replace(TABLE[1], **{name: 99}))))
    check_records(of((TABLE[0], replace(TABLE[1], stop=Stop.WANTED))))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"updated": 3}, "w4: 2, then the next batch, w0: 1 and 2, then the next batch"),
        ({"part": 1}, "w4: 2, then the next batch, w0: 2, then the same batch"),
        ({"updated": 0}, "w4: 2, then the next batch, w0: none, then the next batch"),
    ],
)
def test_optimizers_that_do_not_take_turns_alike_are_told(
    change: dict[str, int], told: str
) -> None:
    mine = replace(TABLE[0], updated=2)
    with pytest.raises(RingError) as caught:
        check_records(of((mine, replace(TABLE[1], **{"updated": 2, **change}))))
    assert f"do not take turns alike before step 41 ({told}); which of them" in str(caught.value)


def test_records_of_which_some_were_sent_too_early_count_for_nothing() -> None:
    late = [replace(row, late=1) for row in TABLE]
    assert counts(of(TABLE))
    assert counts(of(late))
    assert not counts(of([*late[:2], TABLE[2]]))


@pytest.mark.parametrize(
    ("change", "left"),
    [
        pytest.param({"epoch": 2}, "w0 left epoch 1", id="for the next epoch"),
        pytest.param({"stop": Stop.FINISHED}, "w0 left epoch 1", id="for good"),
        pytest.param({"epoch": 0}, "w2 and w4 left epoch 0", id="the others"),
    ],
)
def test_who_leaves_an_epoch_alone_is_named(change: dict[str, int], left: str) -> None:
    rows = (TABLE[0], replace(TABLE[1], **change), TABLE[2])
    for look in (check_records, check_together):
        with pytest.raises(RingError, match=f"{left} before its end, after 41 steps of the job"):
            look(of(rows))


def test_all_may_leave_together() -> None:
    check_records(of([replace(row, stop=Stop.FINISHED) for row in TABLE]))
    check_together(of([replace(row, stop=Stop.FINISHED, ledger=row.worker) for row in TABLE]))


def test_one_that_wants_to_stop_stops_all() -> None:
    assert wanting_to_stop(of(TABLE)) == []
    rows = [replace(row, stop=Stop.WANTED) for row in TABLE]
    assert wanting_to_stop(of([TABLE[0], rows[1], TABLE[2]])) == [0]
    assert wanting_to_stop(of(rows)) == [4, 0, 2]
    assert stopping([]) == (False, "no worker wants to stop training")
    assert stopping([2]) == (True, "w2 wants to stop training")
    assert stopping([4, 0]) == (True, "w0 and w4 want to stop training")


def test_nobody_has_two_rows() -> None:
    with pytest.raises(RingError, match="appears twice in the records of step 41"):
        check_records(of((TABLE[0], TABLE[1], TABLE[1])))


def test_the_global_batch_is_the_sum() -> None:
    rows = (replace(TABLE[0], samples=32), replace(TABLE[1], samples=0), TABLE[2])
    assert global_samples(of(rows)) == 64


def known(*generations: int) -> StepRecords:
    return of([replace(ROW, worker=w, newest_generation=g) for w, g in enumerate(generations)])


def test_no_switch_without_news() -> None:
    assert agreed_generation(known(3, 3)) == (None, "no worker knows a generation after 3")


def test_a_switch_waits_for_the_last_to_know() -> None:
    assert agreed_generation(known(4, 3, 4)) == (None, "generation 4 is not yet known to w1")


def test_all_switch_when_all_know() -> None:
    assert agreed_generation(known(4, 4, 4)) == (4, "all 3 workers know generation 4")


def test_a_generation_that_was_replaced_meanwhile_is_skipped() -> None:
    assert agreed_generation(known(5, 4)) == (None, "generation 5 is not yet known to w1")
    assert agreed_generation(known(5, 5))[0] == 5


def test_nobody_switches_back() -> None:
    assert agreed_generation(known(2, 2)) == (None, "no worker knows a generation after 3")
    assert agreed_generation(known(2, 3))[0] is None
