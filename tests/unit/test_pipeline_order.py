"""The order in which the ranks of a script train the samples of its tf.data pipeline."""

from __future__ import annotations

import numpy as np
import pytest

from edl.errors import UsageError
from edl.step.source import (
    Batch,
    Pipeline,
    PipelineOrder,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Stage,
    Take,
)


def order(total: int, *stages: Stage, ranks: int = 2, steps: int | None = None) -> PipelineOrder:
    pipeline = Pipeline(total)
    for stage in stages:
        pipeline = pipeline.followed_by(stage)
    return PipelineOrder(pipeline, ranks, steps, seed=5)


def test_each_rank_trains_its_shard() -> None:
    found = order(8, Shard(2), Batch(3))
    assert (found.total, found.steps) == (8, 2)
    expected = [0, 2, 4, 1, 3, 5, 6, 7]  # step by step, and rank by rank
    assert found(0).tolist() == found(1).tolist() == expected


def test_without_a_shard_each_rank_trains_all_samples() -> None:
    assert order(4, Batch(2))(3).tolist() == [0, 1, 0, 1, 2, 3, 2, 3]


def test_epochs_are_cuts_of_data_without_an_end() -> None:
    found = order(5, Repeat(), Batch(2), ranks=1, steps=2)
    epochs = [found(epoch).tolist() for epoch in range(3)]
    assert epochs == [[0, 1, 2, 3], [4, 0, 1, 2], [3, 4, 0, 1]]


def test_rounds_are_shuffled_differently_and_each_has_all_samples() -> None:
    found = order(6, Repeat(), Shuffle(100), Batch(3), ranks=1, steps=2)
    epochs = [found(epoch).tolist() for epoch in range(4)]
    assert all(sorted(each) == list(range(6)) for each in epochs)
    assert len({tuple(each) for each in epochs}) > 1


def test_ranks_shuffle_differently_unless_they_share_the_samples() -> None:
    own = order(50, Shuffle(50), Batch(50))(0)
    assert own[:50].tolist() != own[50:].tolist()
    shared = order(50, Shuffle(50), Shard(2), Batch(5))
    assert sorted(shared(2).tolist()) == list(range(50))
    same = order(50, Shuffle(50, seed=3), Batch(50))(0)
    assert same[:50].tolist() == same[50:].tolist(), "the script's own seed"


def test_an_order_that_stays() -> None:
    found = order(20, Shuffle(20, changes=False), Batch(5), ranks=1)
    assert found(0).tolist() == found(1).tolist() != list(range(20))


def test_batches_are_shuffled_as_wholes() -> None:
    found = order(8, Batch(2), Shuffle(4), Repeat(2), ranks=1)
    pairs = found(0).reshape(-1, 2)
    assert (pairs[:, 1] == pairs[:, 0] + 1).all()
    assert sorted(pairs[:4, 0]) == sorted(pairs[4:, 0]) == [0, 2, 4, 6]


def test_a_long_shuffle_keeps_to_its_buffer_if_there_is_no_end() -> None:
    found = order(4, Repeat(), Take(10**6), Shuffle(3), Batch(1), ranks=1, steps=10**6)
    assert sorted(np.unique(found(0))) == [0, 1, 2, 3]
    endless = order(9, Repeat(), Skip(0), Shuffle(3), Batch(3), ranks=1, steps=3)
    assert [sorted(each) for each in endless(0).reshape(3, 3)] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]


def test_take_and_skip() -> None:
    assert order(9, Skip(2), Take(4), Batch(2), ranks=1)(0).tolist() == [2, 3, 4, 5]
    assert order(9, Repeat(), Batch(2), Take(5), ranks=1).steps == 5


@pytest.mark.parametrize(
    ("stages", "refused"),
    [
        ((Shuffle(9, 7, False), Skip(2)), "skip"),
        ((Shuffle(9, 7, False), Shuffle(9), Shard(1), Take(6)), "take"),
        ((Repeat(1), Skip(2), Shuffle(9, 7, False), Repeat(1), Take(6)), "take"),
        ((Shuffle(9, 7, False), Take(9), Skip(0), Take(8)), "take"),
        ((Shuffle(9, 7), Skip(2)), None),  # TensorFlow's parts have common samples, too
        ((Take(6), Shuffle(9, 7, False)), None),
        ((Repeat(), Shuffle(9, 7, False), Take(6)), None),  # as steps of an epoch
        ((Shuffle(9, 7, False), Repeat(), Skip(2), Take(6)), None),
        ((Repeat(2), Skip(2), Shuffle(9, 7, False), Take(9)), None),  # samples come twice
        ((Repeat(), Take(30), Shuffle(9, 7, False), Take(6)), None),
        ((Shuffle(9, 7, False), Skip(0)), None),  # no other part
        ((Shuffle(9, 7, False), Take(9)), None),
        ((Shuffle(9, 7, False), Shard(1), Take(100)), None),
    ],
)
def test_one_part_of_an_order_that_stays_is_refused(
    stages: tuple[Stage, ...], refused: str | None
) -> None:
    """The script evaluates with the other part, which has TensorFlow's order."""
    if refused is None:
        assert order(9, *stages, Batch(1), ranks=1).steps
        return
    with pytest.raises(UsageError, match=rf"{refused}\(\d\), of .*; divide the arrays before"):
        order(9, *stages, Batch(1), ranks=1)


def test_a_limit_on_the_steps_is_no_part_of_the_samples() -> None:
    stays = Shuffle(9, 7, False)
    assert order(8, Repeat(), Batch(2), stays, Take(3), ranks=1).steps == 3
    assert order(8, stays, Batch(2), Take(4), ranks=1).steps == 4
    assert order(6, stays, Shard(2), Batch(2), Take(2)).steps == 2
    with pytest.raises(UsageError, match=r"take\(3\), of"):  # of rank 0, and not of rank 1
        order(7, stays, Shard(2), Take(3), Batch(1))


def test_the_last_batch_may_be_smaller() -> None:
    assert order(7, Batch(3), ranks=2).total == 14
    assert order(7, Batch(3, drop_last=True), ranks=2).total == 12


@pytest.mark.parametrize(
    ("stages", "steps", "sentence"),
    [
        ((Repeat(),), 3, "has no batch"),
        ((Repeat(), Batch(2)), None, "never ends"),
        ((Batch(2),), 4, "steps_per_epoch is 4, and the script's data set has 5 batches"),
        ((Shard(2), Batch(1)), None, "different numbers of batches, from 4 to 5"),
        ((Shard(2), Batch(5)), None, r"differ in size \(4 and 5 samples\)"),
    ],
)
def test_refused(stages: tuple[Stage, ...], steps: int | None, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        order(9, *stages, steps=steps)


def test_a_smaller_batch_within_an_epoch_is_refused() -> None:
    found = order(9, Batch(2), Repeat(), ranks=1, steps=12)
    with pytest.raises(UsageError, match="put repeat"):
        found(0)
