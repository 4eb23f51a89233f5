"""The parts of `edl.tensorflow.keras` in a job of one: state, callbacks. Says "all is well"."""

import contextlib

import numpy as np
import pytest
import tensorflow as tf

import edl.tensorflow.keras as hvd
from edl.tensorflow.keras import callbacks

STEPS, BATCH = 8, 4

hvd.init()
tf.keras.utils.set_random_seed(0)
x = np.random.default_rng(0).normal(size=(STEPS * BATCH, 3)).astype(np.float32)
y = x.sum(axis=1, keepdims=True)
model = tf.keras.Sequential([tf.keras.Input((3,)), tf.keras.layers.Dense(1)])
model.compile(hvd.DistributedOptimizer(tf.keras.optimizers.SGD(0.01, momentum=0.9)), "mse")


def fit(epochs, *callbacks):
    """Train; the number of batches of each epoch."""
    batches = []
    counting = tf.keras.callbacks.LambdaCallback(
        on_epoch_begin=lambda epoch, logs: batches.append(0),
        on_train_batch_end=lambda batch, logs: batches.append(batches.pop() + 1),
    )
    model.fit(x, y, batch_size=BATCH, epochs=epochs, verbose=0, callbacks=[counting, *callbacks])
    return batches


def numbers():
    variables = [*model.weights, *model.optimizer.variables]
    return [variable.numpy().tolist() for variable in variables]


# A state comes back as it was committed, as often as it is needed.
state = hvd.elastic.KerasState(model, epoch=0, batch=0, notes=[])
fresh = numbers()
assert fit(1) == [STEPS]
state.notes = ["one"]
state.commit()
kept = numbers()
assert kept != fresh
for _ in range(2):
    fit(1)
    state.notes.append("two")
    assert numbers() != kept
    state.restore()
    assert numbers() == kept
    assert state.notes == ["one"]


class Stop(tf.keras.callbacks.Callback):
    """Break off after the third batch."""

    def on_train_batch_end(self, batch, logs=None):
        if batch == 2:
            raise InterruptedError


# An epoch that was broken off is trained to its end, and no further.
state.epoch = 1
updates = [
    hvd.elastic.UpdateEpochStateCallback(state),
    hvd.elastic.UpdateBatchStateCallback(state),
]
commits = hvd.elastic.CommitStateCallback(state, batches_per_commit=2)
with contextlib.suppress(InterruptedError):
    fit(2, *updates, commits, Stop())
assert (state.epoch, state.batch) == (1, 3)
state.restore()
assert (state.epoch, state.batch) == (1, 2)
assert fit(2, *updates, commits) == [STEPS - 2, STEPS]
assert (state.epoch, state.batch) == (3, 0)

# The learning rate warms up to that of all workers together, and decays.
callbacks._ranks = lambda: 4
rates = []
watch = tf.keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: rates.append(float(model.optimizer.learning_rate))
)
fit(3, hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=2), watch)
assert np.isclose(rates[0], 0.2 + 0.6 / (2 * STEPS))
assert np.isclose(rates[2 * STEPS - 1 :], 0.8).all()
assert (np.diff(rates[: 2 * STEPS]) > 0).all()
rates.clear()
fit(3, hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=1.5), watch)
assert (np.diff(rates[: STEPS + STEPS // 2]) > 0).all()
assert np.isclose(rates[2 * STEPS - 1 :], 0.8).all()


def warmed_up(epochs, **given):
    """Return the rates of a warm-up of 0.8 in epochs of (workers, steps) at each batch."""
    warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, warmup_epochs=len(epochs), **given)
    warmup.set_model(model)
    warmup.set_params({"steps": epochs[0][0][1]})
    warmup.on_train_begin()
    model.optimizer.learning_rate = 1.0
    found, logs = [], {}
    for epoch, batches in enumerate(epochs):
        warmup.on_epoch_begin(epoch)
        share = 0.0
        for batch, (workers, steps) in enumerate(batches):
            callbacks._ranks, warmup.params["steps"] = lambda workers=workers: workers, steps
            callbacks._trained_share = lambda share=share: share
            warmup.on_train_batch_begin(batch)
            found.append(float(model.optimizer.learning_rate))
            share += 1 / steps
        warmup.on_epoch_end(epoch, logs)
    assert logs["lr"] == float(model.optimizer.learning_rate)
    return [*found, logs["lr"]]


# The arguments stand in Horovod's order.
warmup = hvd.callbacks.LearningRateWarmupCallback(0.8, 5, False, 7, 1)
assert (warmup.steps_per_epoch, warmup.verbose, warmup.end_epoch) == (7, 1, 5)
schedule = hvd.callbacks.LearningRateScheduleCallback(1.0, 0.5, 1, 9, False, False, 7)
assert (schedule.staircase, schedule.steps_per_epoch, schedule.end_epoch) == (False, 7, 9)

# Workers that join or leave change the number of steps of an epoch.
many, few = [(8, 4)] * 4, [(2, 16)] * 16
for warm in (warmed_up([few, many, many]), warmed_up([many, few, few])):
    assert warm[-3] < 0.795
    assert np.isclose(warm[-2:], 0.8).all()
within = warmed_up([few[:8] + many[:2], many])
trained = [(batch + 1) / 16 for batch in range(8)], [3 / 4, 1.0]
for share, rate in zip(trained[0], within[:8], strict=True):
    assert np.isclose(rate, 0.8 * (share / 2 + 1) / 2)
for share, rate in zip(trained[1], within[8:10], strict=True):
    assert np.isclose(rate, 0.8 * (7 * share / 2 + 1) / 8), "half of the epoch was trained before"
assert np.isclose(warmed_up([few, many], steps_per_epoch=16)[-1], 0.8)
model.optimizer.learning_rate = 0.8
rates.clear()
schedule = hvd.callbacks.LearningRateScheduleCallback(0.1, 0.5, 1, None, True, False, STEPS)
assert fit(3, schedule, watch) == [STEPS] * 3
assert np.allclose(rates[STEPS:], [0.1] * STEPS + [0.05] * STEPS)

# Metrics are averaged before others see them, and a broadcast changes nothing here.
logs = {"loss": 0.5, "accuracy": np.float32(0.25)}
hvd.callbacks.MetricAverageCallback().on_epoch_end(0, logs)
assert logs == {"loss": 0.5, "accuracy": 0.25}
before = numbers()
broadcast = hvd.callbacks.BroadcastGlobalVariablesCallback(0)
broadcast.set_model(model)
broadcast.on_train_batch_end(0)
assert numbers() == before


# An error of the script is no broken ring, whatever is named after Horovod in its message.
@tf.function
def train_as_in_horovod(index):
    return tf.gather(x, index)


refused = hvd.elastic.run(lambda state: train_as_in_horovod(tf.constant(STEPS * BATCH)))
with pytest.raises(tf.errors.InvalidArgumentError, match="horovod"):
    refused(state)
print("all is well", flush=True)
