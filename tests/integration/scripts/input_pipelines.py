"""Checks what edl remembers of the tf.data pipelines of an unchanged Horovod script."""

import sys
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf

from edl.binding import process
from edl.errors import UsageError
from edl.step.source import Batch, Repeat, Shard, Shuffle, Skip, Take
from edl.tensorflow.replica import last_seed
from edl.transparent import tensorflow_loop
from edl.transparent.script import ScriptExchange
from edl.transparent.tensorflow_loop import InputPipelines, recorded, undivided, without_shard

IMAGES, LABELS = np.arange(24.0).reshape(12, 2), np.arange(12)


def slices():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def stages_are_remembered():
    made = slices().shard(4, 1).shuffle(5, seed=2).repeat().batch(3, drop_remainder=True)
    made = made.cache().prefetch(2).skip(1).take(tf.constant(7, tf.int64))
    found = recorded(made)
    stages = (Shard(4), Shuffle(5, 2), Repeat(), Batch(3, True), Skip(1), Take(7))
    assert (found.pipeline.total, found.pipeline.stages) == (12, stages), found.pipeline
    assert len(list(made)) == 7, "TensorFlow's own data set works as before"


def functions_of_samples_and_of_batches():
    def one(x, y):
        return x, y

    def other(x, y):
        return x + 1, y

    found = recorded(slices().map(one).batch(2).map(other, num_parallel_calls=2))
    assert (found.of_samples, found.of_batches) == ((one,), (other,))


def the_samples_of_all_ranks_are_evaluated():
    part = slices().shard(4, 3).batch(12)
    assert [each.numpy().tolist() for _, each in part] == [[3, 7, 11]]
    assert [len(each) for _, each in without_shard(part)] == [12]
    part = slices().shard(4, 3).skip(1).take(1).batch(4)
    assert [each.numpy().tolist() for _, each in part] == [[7]]
    assert [each.numpy().tolist() for _, each in without_shard(part)] == [[4, 5, 6, 7]]
    plain = slices().batch(4)
    assert without_shard(plain) is plain
    assert without_shard(IMAGES) is IMAGES


def steps_of_an_evaluation_are_those_of_all_ranks():
    part = slices().shard(4, 1)
    for dataset, steps, expected in (
        (part.batch(1), 2, 8),
        (part.batch(2), 2, 6),  # batches of 2 and 1 samples on each rank; 6 of 2 samples in all
        (part.repeat().batch(2), 2, 8),
        (part.batch(1), None, None),
        (slices().batch(2), 3, 3),
    ):
        assert undivided(dataset, steps) == (without_shard(dataset), expected)
    assert undivided((IMAGES, LABELS), 2) == ((IMAGES, LABELS), 2)


def fit_and_evaluate_have_the_steps_of_all_ranks():
    part = slices().shard(4, 1).batch(1)
    given = {"x": slices().batch(2), "validation_data": part, "validation_steps": 2}
    script = tensorflow_loop.KerasScript()
    script.pipelines = SimpleNamespace(elastic=lambda x, steps: x)
    script._agreed = lambda callbacks, verbose: ([], verbose)
    arguments = script.arguments(given)
    assert arguments["validation_data"] is without_shard(part)
    assert arguments["validation_steps"] == 8
    tensorflow_loop.replace_fit()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile(loss="mse")
    batches = []
    count = keras.callbacks.LambdaCallback(on_test_batch_end=lambda batch, logs: batches.append(1))
    model.evaluate(part, steps=2, verbose=0, callbacks=[count])
    model.evaluate(part, None, None, 0, None, 2, [count])
    model.evaluate(x=part, verbose=0, callbacks=[count])
    assert len(batches) == 8 + 8 + 12


def what_is_not_known_is_named():
    for made, what in (
        (slices().filter(lambda x, y: y > 3).batch(2), "a FilterDataset"),
        (slices().shard(2, 0).batch(2), "a ShardDataset"),
        (slices().batch(2).batch(2), "a BatchDataset"),
        (tf.data.Dataset.range(5).batch(2), "a RangeDataset"),
        (tf.data.Dataset.zip((slices(), slices())).batch(2), "a ZipDataset"),
        ([1, 2], "a list"),
    ):
        with pytest.raises(UsageError, match=f"with {what} in it"):
            InputPipelines(ScriptExchange()).elastic(made, None)


def what_fit_was_given_is_named():
    class Sequence(keras.utils.PyDataset):
        pass

    for given, what in (
        ({"x": IMAGES, "y": LABELS}, "arrays"),
        ({"x": [IMAGES]}, "arrays"),
        ({"x": tf.constant(IMAGES)}, "arrays"),
        ({"x": (each for each in [(IMAGES, LABELS)])}, "a generator, whose"),
        ({"x": Sequence()}, "a Sequence, whose"),
    ):
        with pytest.raises(UsageError, match=f"model.fit was given {what}"):
            tensorflow_loop.KerasScript().arguments(given)


def data_that_differ_have_another_digest():
    def digest(images):
        return recorded(tf.data.Dataset.from_tensor_slices(images).batch(2)).digest()

    assert digest(IMAGES) == digest(IMAGES.copy())
    assert len({digest(IMAGES[rank::4]) for rank in range(4)} | {digest(IMAGES)}) == 5
    assert digest(np.array(["a", "b"])) != digest(np.array(["a", "c"]))


def the_seed_of_rank_0_becomes_that_of_all():
    sent, orders = [], []

    def known(payload):
        sent.append(payload)
        return list(sent)

    tensorflow_loop.Dataset = lambda arrays, batch_size, order: orders.append(order)
    for rank in range(4):
        tf.random.set_seed(42 + rank)
        part = slices().shuffle(12).shard(4, rank).batch(2, drop_remainder=True)
        InputPipelines(SimpleNamespace(known=known)).elastic(part, None)
        assert last_seed() == 42, "of the script: what logical workers draw follows from it"
    for order in orders:
        assert order(0).tolist() == orders[0](0).tolist()
    other = tf.data.Dataset.from_tensor_slices((IMAGES + 1, LABELS)).batch(2)
    with pytest.raises(UsageError, match="train on different data"):
        InputPipelines(SimpleNamespace(known=known)).elastic(other, None)


process.is_initialized = lambda: True
tensorflow_loop.ranks = lambda: 4
tensorflow_loop.record_pipelines()
globals()[sys.argv[1]]()
