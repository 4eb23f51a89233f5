"""The ledger of a stream: shards are leased whole, and what is behind their ends is nothing."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from edl.errors import DataError
from edl.step.batching import Batching
from edl.step.ledger import (
    Ledger,
    common,
    complete_step,
    free_leases,
    grant,
    joined,
    restore,
    start_epoch,
    subtract_spans,
    take,
)
from edl.step.record import StepRecord, StepRecords
from edl.step.source import MOST_SHARDS, SHARD, ShardPolicy, StreamSource, by_shard

POLICY = ShardPolicy(batch_size=4)


def row(worker: int, samples: int, position: int, taken: int, end: int = -1) -> StepRecord:
    return StepRecord(
        generation=1,
        step=9,
        worker=worker,
        epoch=0,
        samples=samples,
        position=position,
        wanted=0,
        newest_generation=1,
        ledger=0,
        taken=taken,
        end=end,
    )


def trained(ledger: Ledger, *rows: StepRecord) -> Ledger:
    """After a step with these records."""
    return complete_step(ledger, StepRecords.of(rows), POLICY)


def shard(number: int, offset: int = 0) -> tuple[int, int]:
    return number * SHARD + offset, (number + 1) * SHARD


def stream(shards: int) -> Ledger:
    return start_epoch(shards * SHARD, 0, is_stream=True)


def test_spans() -> None:
    spans = [(0, 4), (9, 12)]
    assert subtract_spans(spans, [(2, 10)]) == ((0, 2), (10, 12))
    assert subtract_spans(spans, []) == tuple(spans)
    assert common(spans, [(11, 20), (1, 3)]) == ((1, 3), (11, 12))
    assert take(spans, 5) == ((0, 4), (9, 10))
    assert spans == [(10, 12)]
    assert joined([(0, 4), (4, 6), (8, 9)]) == ((0, 6), (8, 9))
    assert by_shard([(SHARD - 2, 2 * SHARD + 1)]) == [
        (SHARD - 2, SHARD),
        shard(1),
        (2 * SHARD, 2 * SHARD + 1),
    ]


def test_shards_are_granted_whole_and_evenly() -> None:
    ledger = grant(stream(5), [(0, 2), (1, 2)], POLICY)
    assert ledger.held_by(0) == ((0, 2 * SHARD),)
    assert ledger.held_by(1) == ((2 * SHARD, 4 * SHARD),)
    assert ledger.free == (shard(4),)
    assert grant(stream(2), [(0, 2), (1, 2)], POLICY).held_by(0) == (shard(0),)


def test_the_nothing_behind_a_shard_goes_with_its_last_samples() -> None:
    ledger = grant(stream(2), [(0, 2)], POLICY)
    ledger = trained(ledger, row(0, 4, 0, taken=4))
    assert (ledger.done, ledger.held_by(0)) == (4, ((4, 2 * SHARD),))
    ledger = trained(ledger, row(0, 3, 4, taken=SHARD - 4))
    assert (ledger.done, ledger.held_by(0)) == (7, (shard(1),))
    ledger = trained(ledger, row(0, 0, SHARD, taken=SHARD))
    assert ledger.finished
    assert ledger.done == 7


def test_what_is_left_of_a_dead_workers_shard_is_read_on_by_another() -> None:
    ledger = grant(stream(2), [(0, 1), (1, 1)], POLICY)
    ledger = trained(ledger, row(0, 4, 0, 4), row(1, 4, SHARD, 4))
    ledger = grant(free_leases(ledger, [1]), [(1, 1)], POLICY)
    assert ledger.held_by(1) == (shard(1, 4), shard(0, 4))


def test_the_end_of_a_shared_stream_is_everybodys() -> None:
    source = StreamSource.of(1, Batching(4), False, 0, 0, shared=True)
    ledger = grant(start_epoch(source.total, 0, True), [(0, 8), (1, 8)], source.policy(2))
    assert ledger.held_by(1) == ((32, 64),)
    records = [row(0, 4, 0, 4), row(1, 0, -1, 0, end=10)]
    ledger = complete_step(ledger, StepRecords.of(records), source.policy(2))
    assert (ledger.free, ledger.leases) == ((), ((0, ((4, 10),)),))


def test_who_takes_what_it_does_not_hold_is_found() -> None:
    ledger = grant(stream(2), [(0, 1), (1, 1)], POLICY)
    with pytest.raises(DataError, match="but its leases are"):
        trained(ledger, row(0, 4, SHARD, 4))


def test_a_snapshot_knows_that_it_is_of_a_stream() -> None:
    ledger = replace(grant(stream(3), [(0, 2)], POLICY), trained=77)
    assert restore(json.loads(json.dumps(ledger.snapshot()))) == ledger


def test_a_worker_wants_to_know_its_next_shard() -> None:
    source = StreamSource.of(8, Batching(4), True, 7, 0)
    ledger = stream(8)
    assert source.lacks(ledger, 0, 1, 2) == 2
    assert source.lacks(grant(ledger, [(0, 1)], POLICY), 0, 1, 2) == 1
    assert sorted(source.order(3).at(0, 8).tolist()) == [*range(8)]
    assert source.known_total == 0


@pytest.mark.parametrize("shards", [0, MOST_SHARDS + 1])
def test_a_stream_without_shards_is_refused(shards: int) -> None:
    with pytest.raises(DataError, match=f"the stream has {shards} shards"):
        StreamSource.of(shards, Batching(4), False, 0, 0)
