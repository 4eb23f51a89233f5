"""The loop by edl.Dataset."""

import tensorflow as tf

import edl.tensorflow as edl
from benchmarks.script import EPOCHS, arguments
from benchmarks.tensorflow.loading import BATCH_SIZE, MODES, columns, floats, gradients, smallest

progress, kind = arguments(MODES)
edl.init()
dataset = edl.Dataset(columns(kind), BATCH_SIZE[kind], shuffle=True)
batches = dataset.map(floats).prefetch(2)
weight = smallest()
optimizer = edl.Optimizer(tf.keras.optimizers.SGD(0.1), [weight])


@tf.function(input_signature=batches.element_spec)
def train(x, _y):
    optimizer.apply_gradients(zip(gradients(weight, x), [weight], strict=True))


for _epoch in dataset.epochs(EPOCHS):
    for x, y in batches:
        train(x, y)
        progress.completed(edl.step() + 1, edl.size())  # it moves with the next batch
