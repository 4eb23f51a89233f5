"""The loop by tf.data."""

import tensorflow as tf

from benchmarks.script import EPOCHS, arguments
from benchmarks.tensorflow.loading import (
    BATCH_SIZE,
    MODES,
    SAMPLES,
    columns,
    floats,
    gradients,
    smallest,
)

progress, kind = arguments(MODES)
whole = tf.data.Dataset.from_tensor_slices(columns(kind))
batches = whole.shuffle(SAMPLES[kind]).batch(BATCH_SIZE[kind]).map(floats).prefetch(2)
weight = smallest()
optimizer = tf.keras.optimizers.SGD(0.1)


@tf.function(input_signature=batches.element_spec)
def train(x, _y):
    optimizer.apply_gradients(zip(gradients(weight, x), [weight], strict=True))


step = 0
for _epoch in range(EPOCHS):
    for x, y in batches:
        train(x, y)
        step += 1
        progress.completed(step, 1)
