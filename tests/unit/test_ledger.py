"""The rules of the data ledger, by example."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from edl.errors import DataError
from edl.step.ledger import (
    LeasePolicy,
    Ledger,
    complete_batch,
    complete_step,
    free_leases,
    grant,
    restore,
    start_epoch,
)
from edl.step.record import StepRecord, StepRecords

POLICY = LeasePolicy(batch_size=4, lease_batches=2)


def row(worker: int, samples: int, position: int, wanted: int = 0) -> StepRecord:
    return StepRecord(1, 9, worker, 0, samples, position, wanted, 1, 0)


def trained(ledger: Ledger, *rows: StepRecord, applied_by: int | None = None) -> Ledger:
    """After a step with these records."""
    return complete_step(ledger, StepRecords.of(rows), POLICY, applied_by)


# --- an epoch begins ---


def test_an_epoch_begins_with_everything_free() -> None:
    ledger = start_epoch(100, epoch=3)
    assert (ledger.total, ledger.epoch, ledger.free) == (100, 3, ((0, 100),))
    assert (ledger.free_samples, ledger.leased_samples, ledger.done) == (100, 0, 0)
    assert not ledger.finished


@pytest.mark.parametrize("total", [0, -1])
def test_an_empty_dataset_is_refused(total: int) -> None:
    with pytest.raises(DataError, match=f"{total} samples; at least one"):
        start_epoch(total, 0)


def test_an_epoch_has_begun_with_its_first_sample() -> None:
    ledger = grant(start_epoch(100, 3), [(0, 4)], POLICY)
    assert ledger.epochs_begun == 3
    ledger = trained(ledger, row(0, 4, 0))
    assert ledger.epochs_begun == 4
    while not ledger.finished:
        ledger = trained(grant(ledger, [(0, 4)], POLICY), row(0, 4, ledger.held_by(0)[0][0]))
    assert ledger.epochs_begun == 4


# --- leases ---


def test_grants_are_made_in_rank_order() -> None:
    ledger = grant(start_epoch(100, 0), [(7, 4), (2, 4)], POLICY)
    assert ledger.held_by(7) == ((0, 8),)
    assert ledger.held_by(2) == ((8, 16),)
    assert ledger.free == ((16, 100),)


def test_who_needs_nothing_gets_nothing() -> None:
    ledger = grant(start_epoch(100, 0), [(0, 0), (1, 1), (2, 0)], POLICY)
    assert [worker for worker, _ in ledger.leases] == [1]


def test_a_need_longer_than_a_lease_is_met_in_whole_batches() -> None:
    assert grant(start_epoch(1000, 0), [(0, 21)], POLICY).held_samples(0) == 24


def test_leases_shrink_toward_the_end_of_an_epoch() -> None:
    policy = LeasePolicy(batch_size=4, lease_batches=8)
    lengths = [policy.share(free, size=2) for free in (1000, 100, 64, 40, 16, 5, 1)]
    assert lengths == [32, 28, 16, 12, 4, 4, 4]


def test_a_need_is_cut_to_the_fair_part_when_little_is_left() -> None:
    ledger = grant(start_epoch(20, 0), [(0, 100), (1, 100)], POLICY)
    assert (ledger.held_samples(0), ledger.held_samples(1)) == (12, 8)


def test_the_last_free_samples_go_to_those_that_ask_first() -> None:
    ledger = grant(start_epoch(6, 0), [(0, 4), (1, 4), (2, 4)], POLICY)
    assert [ledger.held_samples(w) for w in range(3)] == [4, 2, 0]
    assert ledger.free == ()


def test_leases_that_touch_become_one() -> None:
    ledger = grant(start_epoch(100, 0), [(0, 4)], POLICY)
    assert grant(ledger, [(0, 4)], POLICY).held_by(0) == ((0, 16),)


# --- a step ---


def two_workers() -> Ledger:
    return grant(start_epoch(20, 0), [(0, 8), (1, 8)], POLICY)  # 0: 0-8, 1: 8-16, free: 16-20


def test_a_step_takes_samples_from_the_front_of_the_leases() -> None:
    ledger = trained(two_workers(), row(0, 4, 0), row(1, 3, 8))
    assert ledger.held_by(0) == ((4, 8),)
    assert ledger.held_by(1) == ((11, 16),)
    assert ledger.done == 7


def test_a_step_grants_what_its_records_want() -> None:
    ledger = trained(two_workers(), row(0, 4, 0, wanted=4), row(1, 4, 8))
    assert ledger.held_by(0) == ((4, 8), (16, 20))
    assert ledger.free == ()


def test_a_batch_may_span_two_leases() -> None:
    ledger = trained(two_workers(), row(0, 2, 0, wanted=4), row(1, 4, 8))
    ledger = trained(ledger, row(0, 4, 2), row(1, 0, -1))
    ledger = trained(ledger, row(0, 4, 6), row(1, 0, -1))
    assert ledger.held_by(0) == ((18, 20),)


def test_a_worker_without_data_moves_nothing() -> None:
    ledger = two_workers()
    assert trained(ledger, row(0, 0, -1), row(1, 0, -1)) == ledger


@pytest.mark.parametrize(
    "wrong",
    [
        row(0, 4, 4),  # not its next samples
        row(0, 9, 0),  # more than it holds
        row(2, 1, 0),  # it holds none
        row(0, -1, 0),
    ],
)
def test_samples_that_are_not_the_next_ones_are_refused(wrong: StepRecord) -> None:
    ledger = two_workers()
    with pytest.raises(DataError, match=f"w{wrong.worker} trained {wrong.samples} samples"):
        trained(ledger, wrong)
    assert ledger == two_workers(), "and nothing was changed"


def test_an_epoch_ends_with_its_last_sample() -> None:
    ledger = grant(start_epoch(3, 0), [(0, 4)], POLICY)
    assert not ledger.finished
    ledger = trained(ledger, row(0, 3, 0))
    assert ledger.finished
    assert (ledger.done, ledger.leases) == (3, ())


# --- membership ---


def test_leases_of_who_is_gone_come_before_everything_after_them() -> None:
    ledger = free_leases(two_workers(), members=[1])
    assert ledger.free == ((0, 8), (16, 20))
    assert ledger.held_by(1) == ((8, 16),)
    assert grant(ledger, [(1, 4)], POLICY).held_by(1) == ((8, 16), (0, 8))


def test_what_a_leaver_had_trained_stays_done() -> None:
    ledger = trained(two_workers(), row(0, 4, 0), row(1, 4, 8))
    ledger = free_leases(ledger, members=[0])
    assert ledger.done == 8
    assert ledger.free == ((12, 20),), "and neighbours are one span again"


def test_nothing_is_given_back_when_all_stay() -> None:
    assert free_leases(two_workers(), [0, 1, 2]) == two_workers()


# --- the same everywhere, and after a restart ---


def test_a_ledger_survives_json() -> None:
    ledger = trained(two_workers(), row(0, 3, 0), row(1, 4, 8))
    again = restore(json.loads(json.dumps(ledger.snapshot())))
    assert again == ledger
    assert again.digest() == ledger.digest()


def test_workers_are_sorted_as_numbers() -> None:
    ledger = grant(start_epoch(100, 0), [(10, 4), (9, 4)], POLICY)
    assert [worker for worker, _ in restore(ledger.snapshot()).leases] == [9, 10]


def of_several() -> Ledger:
    """w0 and w1 have trained four samples each, and the first optimizer has counted them."""
    return trained(two_workers(), row(0, 4, 0), row(1, 4, 8), applied_by=1)


def test_what_one_optimizer_has_counted_is_in_hand_until_the_batch_ends() -> None:
    ledger = of_several()
    assert ledger.current == ((0, ((0, 4),)), (1, ((8, 12),)))
    assert (ledger.done, ledger.applied_by) == (0, 1)
    later = complete_step(
        ledger,
        StepRecords.of([replace(row(0, 4, -1), part=1), replace(row(1, 4, -1), part=1)]),
        POLICY,
        2,
    )
    assert (later.current, later.applied_by) == (ledger.current, 3)
    assert later.leases == ledger.leases, "a later step of the batch takes nothing"
    ended = complete_batch(later)
    assert (ended.done, ended.current, ended.applied_by, ended.partially_applied) == (8, (), 0, ())


def test_what_a_worker_has_in_hand_is_owed_to_those_that_have_not_counted_it() -> None:
    ledger = free_leases(of_several(), [1])
    assert ledger.partially_applied == ((0, 4, 1),)
    assert ledger.free == ((0, 8), (16, 20))
    assert ledger.counted([(0, 8)]) == (1, 4)
    assert ledger.counted([(2, 3), (3, 20)]) == (1, 2)
    assert ledger.counted([(4, 20)]) == (0, 16)
    assert ledger.counted([]) == (0, 0)
    assert restore(json.loads(json.dumps(ledger.snapshot()))) == ledger
    granted = grant(complete_batch(ledger), [(1, 8)], POLICY)
    assert granted.held_by(1)[-1] == (0, 8), "behind what it holds already"


def test_what_is_owed_is_owed_until_it_is_done() -> None:
    owed = replace(start_epoch(8, 0), partially_applied=((0, 4, 1),))
    ledger = grant(owed, [(0, 4)], POLICY)
    ledger = trained(ledger, row(0, 4, 0), applied_by=2)
    assert ledger.partially_applied == ((0, 4, 1),)
    again = free_leases(ledger, [])
    assert again.partially_applied == ((0, 4, 3),), (
        "two have counted it, and a third one may not have"
    )
    assert complete_batch(ledger).partially_applied == ()


def test_a_digest_is_the_same_on_every_machine() -> None:
    assert two_workers().digest() == 3281790528
    assert two_workers().digest() != start_epoch(20, 0).digest()


GOOD: dict[str, Any] = {
    "total": 9,
    "epoch": 0,
    "free": [[4, 9]],
    "leases": {"0": [[2, 4]]},
    "in_hand": {},
    "counted_by": 0,
    "owed": [],
    "trained": -1,
}


@pytest.mark.parametrize(
    "change",
    [
        {"free": [[3, 9]]},  # 3 is leased
        {"free": [[4, 10]]},  # outside
        {"free": [[-1, 1]]},
        {"free": [[5, 5]]},  # empty
        {"free": [[9, 4]]},
        {"free": [[4]]},
        {"free": None},
        {"in_hand": {"0": [[3, 4]]}},  # 3 is leased
        {"owed": [[1]]},
        {"trained": "some"},
        {"leases": {"zero": []}},
        {"leases": []},
        {"total": "many"},
        {"total": float("inf")},
        {"total": 0, "free": [], "leases": {}},
    ],
)
def test_what_is_no_ledger_is_refused(change: dict[str, Any]) -> None:
    assert restore(GOOD).done == 2
    with pytest.raises(DataError):
        restore({**GOOD, **change})


@pytest.mark.parametrize("missing", sorted(GOOD))
def test_a_torn_snapshot_is_refused(missing: str) -> None:
    with pytest.raises(DataError, match="not a ledger snapshot"):
        restore({key: value for key, value in GOOD.items() if key != missing})
