"""A fixed global batch: who gets which slice of it, by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from edl.step.batching import Batching, logical_batching
from edl.step.engine import Batch, BatchStart, RingPlace, StepBatches
from edl.step.ledger import Ledger, complete_step, grant, start_epoch
from edl.step.record import StepRecord, StepRecords
from edl.step.source import AlignedSource, dealt
from edl.worker.sampler import AlignedSampler

# Global batches of 8, 8 and 4 samples.
SOURCE = AlignedSource(20, Batching(global_batch=8), False, 0, 0)


def given(ledger: Ledger, members: tuple[int, ...], step_batches: int = 1) -> Ledger:
    needs = [
        (worker, SOURCE.lacks(ledger, worker, step_batches, len(members))) for worker in members
    ]
    return grant(ledger, needs, SOURCE.policy(len(members)))


def test_each_global_batch_is_dealt_to_all_in_rank_order() -> None:
    ledger = given(start_epoch(20, 0), (4, 2, 7))  # of the step that is next, and the one after it
    assert dict(ledger.leases) == {
        4: ((0, 3), (8, 11)),
        2: ((3, 6), (11, 14)),
        7: ((6, 8), (14, 16)),
    }
    assert ledger.free == ((16, 20),)
    assert dealt(ledger, 8) == {0, 1}
    assert [SOURCE.batching.of_one(rank, 3) for rank in range(3)] == [3, 3, 2]


@pytest.mark.parametrize(
    ("samples", "sizes"),
    [(8, (2, 2, 2, 2)), (7, (3, 2, 2)), (6, (2, 2, 2)), (5, (3, 2)), (3, (3,)), (1, (1,))],
)
def test_the_rest_of_one_is_not_cut_into_single_samples(
    samples: int, sizes: tuple[int, ...]
) -> None:
    """BatchNorm has no variance of one sample. Nothing is dealt behind such a batch."""
    source = AlignedSource(16 + samples, Batching(global_batch=8), False, 0, 0)
    ledger = replace(start_epoch(16 + samples, 0), free=((8 - samples, 16),))
    after = grant(ledger, [(worker, 2) for worker in range(4)], source.policy(4))
    first = {worker: spans[0] for worker, spans in after.leases}
    assert tuple(stop - start for start, stop in first.values()) == sizes
    assert after.free == (((8, 16),) if samples < 8 else ())


def test_whole_global_batches_of_few_samples_are_dealt_to_all() -> None:
    source = AlignedSource(20, Batching(global_batch=4), False, 0, 0)
    ledger = grant(start_epoch(20, 0), [(worker, 1) for worker in range(4)], source.policy(4))
    assert [spans for _, spans in ledger.leases] == [((n, n + 1),) for n in range(4)]


def row(worker: int, samples: int, position: int, wanted: int) -> StepRecord:
    return StepRecord(1, 0, worker, 0, samples, position, wanted, 1, 0)


def test_none_is_dealt_behind_one_that_has_no_slice_for_somebody() -> None:
    source = AlignedSource(20, Batching(global_batch=2), False, 0, 3)
    needs = [(worker, source.lacks(start_epoch(20, 0), worker, 1, 3)) for worker in range(3)]
    assert needs == [(0, 5), (1, 5), (2, 5)]
    ledger = grant(start_epoch(20, 0), needs, source.policy(3))
    assert dict(ledger.leases) == {0: ((0, 1),), 1: ((1, 2),)}
    # The step trains it, so all may have the next one when it is complete.
    assert [source.lacks(ledger, worker, 1, 3) for worker in range(3)] == [4, 4, 4]
    records = StepRecords.of([row(0, 1, 0, 4), row(1, 1, 1, 4), row(2, 0, -1, 4)])
    after = complete_step(ledger, records, source.policy(3))
    assert dict(after.leases) == {0: ((2, 3),), 1: ((3, 4),)}


def test_between_two_steps_all_is_dealt_anew() -> None:
    ledger = given(start_epoch(20, 0), (0, 1))
    assert dict(ledger.leases) == {0: ((0, 4), (8, 12)), 1: ((4, 8), (12, 16))}
    regrouped = given(SOURCE.regroup(ledger, (0, 1, 2), 0), (0, 1, 2))
    assert dict(regrouped.leases)[2] == ((6, 8), (14, 16))


def test_in_a_step_the_others_keep_the_slices_that_it_trains() -> None:
    ledger = given(start_epoch(20, 0), (0, 1, 2))
    regrouped = SOURCE.regroup(ledger, (0, 2), 1)
    assert dict(regrouped.leases) == {0: ((0, 3),), 2: ((6, 8),)}
    assert regrouped.free == ((3, 6), (8, 20))
    # Then what the dead one had is a step of its own, of one worker rather than with a slice of one
    # sample; the next batches follow.
    records = StepRecords.of([row(0, 3, 0, 2), row(2, 2, 6, 2)])
    after = complete_step(regrouped, records, SOURCE.policy(2))
    assert dict(after.leases) == {0: ((3, 6),)}
    records = StepRecords.of([row(0, 3, 3, 2), row(2, 0, -1, 2)])
    assert dict(complete_step(after, records, SOURCE.policy(2)).leases) == {
        0: ((8, 12), (16, 18)),
        2: ((12, 16), (18, 20)),
    }


def test_a_batch_is_a_slice() -> None:
    sampler = AlignedSampler(SOURCE, 0)
    sampler.enter(0)
    ledger = given(start_epoch(20, 0), (0,), step_batches=2)
    assert dict(ledger.leases) == {0: ((0, 20),)}
    formed = [sampler.form(ledger) for _ in range(3)]
    assert [batch.samples for batch in formed if batch is not None] == [8, 8, 4]
    assert sampler.form(ledger) is None
    assert sampler.agrees_with(ledger)
    assert sampler.warm_up().samples == 4
    first = formed[0]
    assert first is not None
    sampler.regroup([first])
    assert (sampler.ahead, sampler.restarts) == (8, 2)
    assert np.array_equal(first.indices, np.arange(8))
    two = given(SOURCE.regroup(ledger, (0, 1), 0), (0, 1))
    assert not sampler.agrees_with(two), "its slice is the first half now"


@pytest.mark.parametrize("prefetch", [0, 2, 9])
@pytest.mark.parametrize("handed_out", range(1, 6))
def test_microbatches_that_cannot_be_read_are_formed_again(handed_out: int, prefetch: int) -> None:
    """Those of the open step, of which some repeat another worker's, and those of the next one."""
    batching = logical_batching("loader", Batching(2), 5)
    source = AlignedSource(23, batching, False, 0, 0, audit_steps=2)
    sampler = AlignedSampler(source, 0)
    sampler.take_place((0, 1))
    sampler.enter(0)
    ledger = grant(start_epoch(23, 0), [(each, 2) for each in (0, 1)], source.policy(0))
    sampler.set_microbatches(ledger)

    def form(count: int) -> list[Batch]:
        return [batch for _ in range(count) if (batch := sampler.form(ledger)) is not None]

    plain = form(10)
    assert [batch.repeats for batch in plain] == 2 * [False, False, False, True, True]
    sampler.restart()
    step = StepBatches()
    step.begin(summed=True)
    formed = form(handed_out + prefetch)
    for batch in formed[:handed_out]:
        step.add(BatchStart(batch, batch.repeats, RingPlace(False, False, 2), None, 6))
    sampler.form_again(step)
    again = [*formed[:handed_out], *form(10 - handed_out)]
    assert [told(batch) for batch in again] == [told(batch) for batch in plain]


def told(batch: Batch) -> tuple[list[int], int, bool]:
    return batch.keys, batch.follow, batch.repeats


# Five logical workers with 2 samples each: global batches of 10, 10 and 3 samples.
LOGICAL = AlignedSource(23, logical_batching("loader", Batching(2), 5), False, 0, 0)


def dealt_to(members: tuple[int, ...], batches: int) -> Ledger:
    return grant(start_epoch(23, 0), [(each, batches) for each in members], LOGICAL.policy(0))


def test_logical_workers_are_not_divided() -> None:
    assert dict(dealt_to((4, 2, 7), 1).leases) == {4: ((0, 4),), 2: ((4, 8),), 7: ((8, 10),)}
    last = dict(dealt_to((4, 2, 7), 9).leases)
    assert last == {4: ((0, 4), (10, 14), (20, 22)), 2: ((4, 8), (14, 18), (22, 23)), 7: last[7]}
    assert last[7] == ((8, 10), (18, 20))


def test_the_survivors_train_the_logical_workers_of_a_dead_one_in_the_same_step() -> None:
    before = dealt_to((4, 2, 7), 2)
    after = LOGICAL.regroup(before, (2, 7), in_hand=1)
    assert dict(after.leases) == {2: ((4, 8), (0, 2)), 7: ((8, 10), (2, 4))}
    assert after.free == ((10, 23),), "later batches are dealt anew after the step"
    assert LOGICAL.added_pieces(before, (2, 7), in_hand=1) == 1
    assert LOGICAL.added_pieces(before, (7,), in_hand=1) == 4
    assert LOGICAL.added_pieces(before, (4, 2, 7), in_hand=1) == 0
    assert LOGICAL.added_pieces(before, (2, 7), in_hand=0) == 0, "between two steps"
    again = LOGICAL.regroup(after, (7,), in_hand=1)
    assert dict(again.leases) == {7: ((8, 10), (2, 4), (0, 2), (4, 8))}
    assert SOURCE.added_pieces(given(start_epoch(20, 0), (4, 2)), (2,), in_hand=1) == 0


def test_a_worker_without_a_part_of_the_step_gets_one() -> None:
    """The last global batch has two logical workers; the worker of one is gone."""
    before = grant(Ledger(23, 0, ((20, 23),)), [(each, 1) for each in (4, 2, 7)], LOGICAL.policy(0))
    assert dict(before.leases) == {4: ((20, 22),), 2: ((22, 23),)}
    assert dict(LOGICAL.regroup(before, (2, 7), 1).leases) == {2: ((22, 23), (20, 22))}
    assert dict(LOGICAL.regroup(before, (7,), 1).leases) == {7: ((20, 23),)}
    assert LOGICAL.added_pieces(before, (7,), 1) == 2


def test_the_replicas_of_a_sampler_share_the_last_global_batch_evenly() -> None:
    sampled = replace(LOGICAL, total=20 + 5, sampler=lambda _: np.arange(25))
    assert [sampled.units.at(position) for position in (0, 19, 20, 24)] == [2, 2, 1, 1]
    rest = Ledger(25, 0, ((20, 25),))
    last = grant(rest, [(each, 1) for each in (4, 2)], sampled.policy(0))
    assert dict(last.leases) == {4: ((20, 23),), 2: ((23, 25),)}
    assert sampled.added_pieces(last, (4,), 1) == 2
