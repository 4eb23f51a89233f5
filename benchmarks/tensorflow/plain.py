"""The benchmark's script under plain Horovod: fixed size, as Horovod's own examples write it.

All workers build the same model from a seed, so nothing is broadcast; what Horovod has for that
in Keras and in sessions does not work with Keras 3 and TensorFlow 2.21.
"""

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

from benchmarks.script import SAMPLES, arguments
from benchmarks.tensorflow import MODES
from benchmarks.tensorflow.horovod_model import reduced
from benchmarks.tensorflow.workload import (
    BATCH_SIZE,
    deep,
    graph_loss,
    graph_sgd,
    loss_of,
    sgd,
    spec,
    synthetic,
    wide,
)

progress, mode = arguments(MODES)
if mode == "graph":
    tf.compat.v1.disable_eager_execution()
hvd.init()

step = 0


def completed() -> None:
    global step
    step += 1
    progress.completed(step, hvd.size())


class Told(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        completed()


def sampler() -> tf.data.Dataset:
    whole = tf.data.Dataset.from_tensor_slices(synthetic()).shard(hvd.size(), hvd.rank())
    batches = whole.shuffle(SAMPLES // hvd.size(), seed=0).repeat().batch(BATCH_SIZE)
    return batches.prefetch(2)


def fit() -> None:
    model = reduced(deep())
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(sgd(), loss, jit_compile=False)
    model.fit(sampler(), steps_per_epoch=10**9, verbose=0, callbacks=[Told()])


def function(model: tf.keras.Model) -> None:
    optimizer = sgd()

    @tf.function
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        # Horovod knows TensorFlow's variables, not those of Keras 3.
        gradients = tape.gradient(loss, [v.value for v in model.trainable_variables])
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for x, y in sampler():
        train(x, y)
        completed()


def batches():
    """Yield this worker's share of the data, through a generator as in the edl script."""
    x, y = synthetic()
    random = np.random.default_rng(hvd.rank())
    while True:
        mine = random.permutation(np.arange(hvd.rank(), SAMPLES, hvd.size()))
        for first in range(0, len(mine) - BATCH_SIZE, BATCH_SIZE):
            yield x[mine[first : first + BATCH_SIZE]], y[mine[first : first + BATCH_SIZE]]


def graph() -> None:
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec()).prefetch(2)
    train = hvd.DistributedOptimizer(graph_sgd()).minimize(graph_loss(dataset))
    options = tf.compat.v1.ConfigProto(
        intra_op_parallelism_threads=1, inter_op_parallelism_threads=2
    )
    with tf.compat.v1.train.MonitoredTrainingSession(config=options) as session:
        while not session.should_stop():
            session.run(train)
            completed()


if mode == "fit":
    fit()
elif mode == "graph":
    graph()
else:
    function(deep() if mode == "function" else wide())
