"""How large batches are: what is asked for, and each worker's share of it."""

from __future__ import annotations

from typing import Any

import pytest

from edl.errors import UsageError
from edl.step.batching import Batching, batching, logical_batching
from edl.step.source import Source


def shares(asked: Batching, size: int) -> list[int]:
    return [asked.of_one(rank, size) for rank in range(size)]


def test_a_batch_of_each_worker() -> None:
    asked = Batching(4)
    assert [asked.of_all(size) for size in (1, 2, 12)] == [4, 8, 48]
    assert shares(asked, 3) == [4, 4, 4]


def test_at_most_so_many_together() -> None:
    """3 workers of 4 samples would have 12: the first gets 4 of 10, the others 3."""
    asked = Batching(4, 10)
    assert [asked.of_all(size) for size in (1, 2, 3, 12)] == [4, 8, 10, 12]
    assert shares(asked, 3) == [4, 3, 3]
    assert shares(asked, 12) == [1] * 12


def test_the_same_samples_together() -> None:
    asked = Batching(global_batch=8)
    assert shares(asked, 3) == [3, 3, 2]
    assert shares(asked, 9) == [1] * 8 + [0]


def test_a_range_begins_with_its_fewest() -> None:
    asked = Batching(batch_range=(6, 20))
    assert shares(asked, 4) == [2, 2, 1, 1]
    assert shares(asked.choosing(10), 4) == [3, 3, 2, 2]
    assert [asked.choosing(batch).of_all(4) for batch in (1, 10, 99)] == [6, 10, 20]
    assert asked.of_all(9) == 9  # one sample of each at least


def test_leases_are_as_long_as_the_batches_that_are_trained() -> None:
    source = Source(1000, Batching(4, 8), True, 7, 1)
    assert [source.policy(size).batch_size for size in (1, 2, 8)] == [4, 4, 1]
    assert source.need(1, 2) == 3 * 4
    assert source.need(1, 8) == 3 * 1
    chosen = Source(1000, Batching(batch_range=(6, 20)).choosing(20), True, 7, 1)
    assert (chosen.policy(2).batch_size, chosen.need(2, 2)) == (10, 5 * 10)
    assert (chosen.batch_size, chosen.warm_up_batch) == (6, 3)  # a newcomer knows of no choice


def test_what_is_asked_for() -> None:
    assert batching("loader") == Batching(1)
    assert batching("loader", 4, 8) == Batching(4, 8)
    assert batching("loader", global_batch=8) == Batching(global_batch=8)
    assert batching("loader", global_batch=[8, 64]) == Batching(batch_range=(8, 64))
    assert str(batching("loader", 4, 8)) == "batch_size=4, max_global_batch=8"
    assert str(batching("loader", global_batch=(8, 64))) == "global_batch=(8, 64)"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({"batch_size": 0}, "batch_size is 0; it must be at least 1"),
        ({"batch_size": None}, "batch_size is None; loader needs a whole number of samples"),
        ({"batch_size": 4, "max_global_batch": 3}, "not fewer than one of them has"),
        ({"batch_size": 4, "global_batch": 8}, "batch_size or max_global_batch, too"),
        ({"max_global_batch": 9, "global_batch": 8}, "batch_size or max_global_batch, too"),
        ({"global_batch": "8"}, "global_batch is '8'; loader needs a whole number"),
        ({"global_batch": (8,)}, "or two, the fewest and the most"),
        ({"global_batch": (8, 8)}, "or two, the fewest and the most"),
        ({"global_batch": (0, 8)}, "or two, the fewest and the most"),
        ({"micro_batch": 0}, "micro_batch is 0; it must be at least 1"),
        ({"global_batch": (1.5, 8)}, "or two, the fewest and the most"),
    ],
)
def test_what_cannot_be_is_one_sentence(asked: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        batching("loader", **asked)
    assert sentence in str(refused.value)


def test_a_batch_in_pieces_of_like_length() -> None:
    """64 samples of two are 32 each: 3 pieces of at most 12; a slow worker has as many smaller."""
    asked = Batching(global_batch=64, micro_batch=12)
    assert [asked.microbatches(size) for size in (1, 2, 3, 6)] == [6, 3, 2, 1]
    assert asked.split(32, 3) == [11, 11, 10]
    assert asked.split(16, 3) == [6, 5, 5]
    assert asked.split(2, 3) == [2]  # the last batch of an epoch: no piece of one sample
    assert asked.split(5, 3) == [3, 2]
    assert asked.split(1, 3) == [1]
    assert Batching(global_batch=8, micro_batch=1).split(2, 3) == [1, 1]  # as asked
    assert asked.split(40, 3) == [10, 10, 10, 10]  # formed for a smaller ring
    assert Batching(64).split(64, 1) == [64]
    assert Batching(64).microbatches(3) == 1
    assert str(batching("loader", 64, micro_batch=8)) == "batch_size=64, micro_batch=8"
    assert Source(1000, Batching(64, micro_batch=8), True, 7, 1).warm_up_batch == 8


def test_logical_workers_share_a_global_batch() -> None:
    asked = logical_batching("loader", Batching(4), 3)
    assert asked == Batching(4, global_batch=12, micro_batch=4, logical=3)
    assert logical_batching("loader", Batching(global_batch=12), 3) == asked
    assert [asked.microbatches(size) for size in (1, 2, 3)] == [3, 2, 1]
    assert [asked.iterations(25, size) for size in (1, 2, 3)] == [3, 3, 3]  # updates
    assert str(asked) == "batch_size=4 of each of 3 logical workers"


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        (Batching(4, 8), "asks for batch_size=4, max_global_batch=8; give it batch_size"),
        (Batching(4, micro_batch=2), "asks for batch_size=4, micro_batch=2"),
        (Batching(batch_range=(6, 20)), "asks for global_batch=(6, 20)"),
        (Batching(global_batch=8), "shared evenly by the job's 3 logical workers; give loader a"),
        (Batching(global_batch=2), "a multiple of 3"),
    ],
)
def test_what_logical_workers_cannot_share(asked: Batching, sentence: str) -> None:
    with pytest.raises(UsageError) as refused:
        logical_batching("loader", asked, 3)
    assert sentence in str(refused.value)
