"""Keras' fit: trains by a ramp while workers come, go and die; see ramp_diary.py."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import ramp_problem as problem
import tensorflow as tf
from ramp_diary import Diary

import edl.tensorflow as edl

keras = tf.keras
keras.backend.set_floatx("float64")
diary = Diary()
edl.init()
x, y = problem.data()
dataset = edl.Dataset((np.arange(problem.SAMPLES), x, y), problem.BATCH, shuffle=True, seed=3)


class Net(keras.Model):
    def __init__(self):
        super().__init__()
        self.hidden = keras.layers.Dense(4, "tanh")
        self.out = keras.layers.Dense(1, use_bias=False)

    def call(self, inputs):
        return self.out(self.hidden(inputs))

    def train_step(self, batch):
        ids, inputs, said = batch
        tf.numpy_function(begun, [ids], [])
        losses = super().train_step((inputs, said))
        tf.numpy_function(diary.reduced, [], [])
        return losses


def begun(ids):
    tells.ids = ids.tolist()
    diary.begin(tells.epoch, tells.ids)


class Tells(keras.callbacks.Callback):
    """Writes down each update before fit begins the next."""

    ids, epoch = None, 0

    def on_epoch_begin(self, epoch, logs=None):
        self.epoch = epoch

    def on_train_batch_end(self, batch, logs=None):
        used = float(optimizer.learning_rate)
        edl.notify_batch_end()
        diary.end(
            self.epoch,
            self.ids,
            used,
            [weight.numpy() for weight in model.trainable_variables],
            [momentum.numpy() for momentum in optimizer.momentums],
        )


rate = edl.LRSchedule(
    edl.schedules.Constant(peak_lr=problem.PEAK_LR),
    edl.schedules.Scaling(batch=problem.BASE, ramp=problem.RAMP),
)
optimizer = edl.Optimizer(keras.optimizers.SGD(rate, momentum=problem.MOMENTUM))
model, tells = Net(), Tells()
model(x[:1])
hidden, bias, out = problem.first_weights()
model.hidden.set_weights([hidden, bias])
model.out.set_weights([out])
model.compile(optimizer, "mse")
model.fit(dataset, epochs=problem.EPOCHS, verbose=0, callbacks=[tells, edl.KerasCallback()])
