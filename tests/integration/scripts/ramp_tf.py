"""TensorFlow: trains by a ramp while workers come, go and die; see ramp_diary.py."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import ramp_problem as problem
import tensorflow as tf
from ramp_diary import Diary

import edl.tensorflow as edl

diary = Diary()
edl.init()
x, y = (tf.constant(array) for array in problem.data())
dataset = edl.Dataset(np.arange(problem.SAMPLES), problem.BATCH, shuffle=True, seed=3)
weights = [tf.Variable(array) for array in problem.first_weights()]
rate = edl.LRSchedule(
    edl.schedules.Constant(peak_lr=problem.PEAK_LR),
    edl.schedules.Scaling(batch=problem.BASE, ramp=problem.RAMP),
)
optimizer = edl.Optimizer(tf.keras.optimizers.SGD(rate, momentum=problem.MOMENTUM), weights)


@tf.function(input_signature=[dataset.element_spec])
def train(ids):
    with tf.GradientTape() as tape:
        hidden, bias, out = weights
        said = tf.tanh(tf.gather(x, ids) @ hidden + bias) @ out
        loss = tf.reduce_mean(tf.square(said - tf.gather(y, ids)))
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


for epoch in dataset.epochs(problem.EPOCHS):
    for batch in dataset:
        ids = batch.numpy().tolist()
        diary.begin(epoch, ids)
        train(batch)
        diary.reduced()
        used = float(optimizer.learning_rate)
        edl.notify_batch_end()
        diary.end(
            epoch,
            ids,
            used,
            [weight.numpy() for weight in weights],
            [momentum.numpy() for momentum in optimizer.momentums],
        )
