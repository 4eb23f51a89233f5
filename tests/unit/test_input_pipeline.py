"""What edl remembers of the tf.data pipelines of an unchanged Horovod script."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from edl.core.step.pipeline_order import Batch, Repeat, Shard, Shuffle, Skip, Take
from edl.errors import UsageError
from edl.framework import process
from edl.transparent import input_pipeline
from edl.transparent.input_pipeline import InputPipelines, recorded, without_shard
from edl.transparent.script_exchange import ScriptExchange

IMAGES, LABELS = np.arange(24.0).reshape(12, 2), np.arange(12)


@pytest.fixture(autouse=True)
def recording(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let TensorFlow's functions be as they were afterwards."""
    monkeypatch.setattr(process, "is_initialized", lambda: True)
    monkeypatch.setattr(input_pipeline, "ranks", lambda: 4)
    kind: Any = tf.data.Dataset
    before = {
        name: kind.__dict__[name] for name in (*input_pipeline.RECORDED, input_pipeline.FIRST)
    }
    input_pipeline.record_pipelines.__wrapped__()
    yield
    for name, function in before.items():
        setattr(kind, name, function)


def slices() -> Any:
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def test_stages_are_remembered() -> None:
    made = slices().shard(4, 1).shuffle(5, seed=2).repeat().batch(3, drop_remainder=True)
    made = made.cache().prefetch(2).skip(1).take(tf.constant(7, tf.int64))
    found = recorded(made)
    assert found is not None
    shuffle = Shuffle(5, 2)
    stages = (Shard(4), shuffle, Repeat(), Batch(3, True), Skip(1), Take(7))
    assert (found.pipeline.total, found.pipeline.stages) == (12, stages)
    assert len(list(made)) == 7, "TensorFlow's own data set works as before"


def test_functions_of_samples_and_of_batches() -> None:
    def one(x: Any, y: Any) -> Any:
        return x, y

    def other(x: Any, y: Any) -> Any:
        return x + 1, y

    found = recorded(slices().map(one).batch(2).map(other, num_parallel_calls=2))
    assert found is not None
    assert (found.of_samples, found.of_batches) == ((one,), (other,))


def test_the_samples_of_all_ranks_are_evaluated() -> None:
    part = slices().shard(4, 3).batch(12)
    assert [each.numpy().tolist() for _, each in part] == [[3, 7, 11]]
    assert [len(each) for _, each in without_shard(part)] == [12]
    plain = slices().batch(4)
    assert without_shard(plain) is plain
    assert without_shard(IMAGES) is IMAGES


@pytest.mark.parametrize(
    ("made", "what"),
    [
        (lambda: slices().filter(lambda x, y: y > 3).batch(2), "a FilterDataset"),
        (lambda: slices().shard(2, 0).batch(2), "a ShardDataset"),
        (lambda: slices().batch(2).batch(2), "a BatchDataset"),
        (lambda: tf.data.Dataset.range(5).batch(2), "a RangeDataset"),
        (lambda: tf.data.Dataset.zip((slices(), slices())).batch(2), "a ZipDataset"),
        (lambda: [1, 2], "a list"),
    ],
)
def test_what_is_not_known_is_named(made: Any, what: str) -> None:
    with pytest.raises(UsageError, match=f"with {what} in it"):
        InputPipelines(ScriptExchange()).elastic(made(), None)


def test_data_that_differ_have_another_digest() -> None:
    def digest(images: Any) -> str:
        found = recorded(tf.data.Dataset.from_tensor_slices(images).batch(2))
        assert found is not None
        return found.digest()

    assert digest(IMAGES) == digest(IMAGES.copy())
    assert len({digest(IMAGES[rank::4]) for rank in range(4)} | {digest(IMAGES)}) == 5
    assert digest(np.array(["a", "b"])) != digest(np.array(["a", "c"]))
