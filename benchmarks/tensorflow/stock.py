"""The benchmark's script under stock Horovod Elastic, as Horovod's own Keras example writes it.

Intervals are those of PyTorch's script. Horovod's state calls ``optimizer.variables()``, which is
no method any more in Keras 3: :class:`Variables` stands in for the optimizer there.
"""

import horovod.tensorflow.keras as hvd
import tensorflow as tf

from benchmarks.script import SAMPLES, arguments
from benchmarks.tensorflow.horovod_model import reduced
from benchmarks.tensorflow.workload import BATCH_SIZE, deep, sgd, synthetic

CHECK_EVERY, COMMIT_EVERY = 10, 100

progress, _ = arguments(("fit",))
hvd.init()
optimizer = sgd()
model = reduced(deep())
loss = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
model.compile(optimizer, loss, jit_compile=False)
optimizer.build(model.trainable_variables)


class Variables:
    """The TensorFlow variables of a Keras model or optimizer, as Keras 2 gave them."""

    def __init__(self, thing):
        self._thing = thing

    def __call__(self):
        return [variable.value for variable in self._thing.variables]


class PlainModel:
    built = True

    def __init__(self, model):
        self._variables = Variables(model)

    @property
    def variables(self):
        return self._variables()


class PlainOptimizer:
    def __init__(self, optimizer):
        self.variables = Variables(optimizer)


class Told(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        state.step += 1
        progress.completed(state.step, hvd.size())
        if state.step % COMMIT_EVERY == 0:
            state.commit()
        elif state.step % CHECK_EVERY == 0:
            state.check_host_updates()


@hvd.elastic.run
def train(state):
    whole = tf.data.Dataset.from_tensor_slices(synthetic())
    batches = whole.shuffle(SAMPLES, seed=hvd.rank()).repeat().batch(BATCH_SIZE).prefetch(2)
    model.fit(batches, steps_per_epoch=10**9, verbose=0, callbacks=[Told()])


state = hvd.elastic.KerasState(PlainModel(model), PlainOptimizer(optimizer), step=0)
train(state)
