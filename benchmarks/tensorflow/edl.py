"""The benchmark's script under edl, in all ways to train."""

import tensorflow as tf

import edl.tensorflow as edl
from benchmarks.script import EPOCHS, arguments
from benchmarks.tensorflow import MODES
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
edl.init()


def completed() -> None:
    if edl.generation() > 0:  # not in the warm-up, which trains nothing
        progress.completed(edl.step() + 1, edl.size())  # it moves with the next batch


class Told(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        progress.completed(edl.step(), edl.size())


def fit() -> None:
    model = deep()
    dataset = edl.Dataset(synthetic(), BATCH_SIZE, shuffle=True)
    loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(edl.Optimizer(sgd()), loss, jit_compile=False)
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=[edl.KerasCallback(), Told()])


def function(model: tf.keras.Model) -> None:
    dataset = edl.Dataset(synthetic(), BATCH_SIZE, shuffle=True)
    optimizer = edl.Optimizer(sgd(), model)

    @tf.function(input_signature=dataset.element_spec)
    def train(x, y):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return loss

    for _epoch in dataset.epochs(EPOCHS):
        for x, y in dataset:
            train(x, y)
            completed()


def graph() -> None:
    batches = edl.elastic_shard_generator(synthetic(), BATCH_SIZE, epochs=EPOCHS, shuffle=True)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec()).prefetch(2)
    step = edl.Optimizer(graph_sgd()).minimize(graph_loss(dataset))
    options = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    with edl.Session(config=options) as session:
        while not session.Done():
            session.run(step)
            edl.notify_batch_end()
            progress.completed(edl.step(), edl.size())


if mode == "fit":
    fit()
elif mode == "graph":
    graph()
else:
    function(deep() if mode == "function" else wide())
