"""Gradients that are awkward to reduce, and a log by which the test can redo the training.

float64, bfloat16 and float16 variables, IndexedSlices, a variable without a gradient, a schedule
of the learning rate; the gradient of `wide` is clipped. Each worker writes what it trained on to
<out>/<pid>.jsonl.
"""

import argparse
import json
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl
from edl.testing import throttle

CLIP = 0.3  # a mean over 8 samples has the norm 0.35, one over 12 0.29

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=203)
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()

edl.init()
dataset = edl.Dataset(np.arange(args.samples), batch_size=4, shuffle=True, seed=3)
net = tf.Module()
net.wide = tf.Variable(tf.zeros(args.samples, tf.float64), name="wide")
net.brain = tf.Variable(tf.ones(5, tf.bfloat16), name="brain")
net.narrow = tf.Variable(tf.ones(5, tf.float16), name="narrow")
net.embedding = tf.Variable(np.random.rand(7, 3).astype(np.float32), name="embedding")
net.unused = tf.Variable(tf.ones(3), name="unused")
schedule = tf.keras.optimizers.schedules.ExponentialDecay(1.0, decay_steps=1, decay_rate=0.99)
sgd = edl.Optimizer(tf.keras.optimizers.SGD(schedule), net)
log = (args.out / f"{os.getpid()}.jsonl").open("w")


def report(**what):
    log.write(json.dumps(what) + "\n")
    log.flush()


@tf.function(input_signature=[dataset.element_spec])
def train(indices):
    with tf.GradientTape(persistent=True) as tape:
        loss = tf.reduce_mean(tf.gather(net.wide, indices))
        loss += tf.cast(tf.reduce_sum(net.brain), tf.float64)
        loss += tf.cast(tf.reduce_sum(net.narrow), tf.float64) / 4
        rows = tf.gather(net.embedding, indices % 7)
        loss += tf.cast(tf.reduce_mean(tf.square(rows)), tf.float64)
    weights = [net.wide, net.brain, net.narrow, net.embedding, net.unused]
    gradients = edl.DistributedGradientTape(tape).gradient(loss, weights)
    assert isinstance(tape.gradient(loss, net.embedding), tf.IndexedSlices)
    assert gradients[4] is None
    gradients[0] = tf.clip_by_norm(gradients[0], CLIP)
    sgd.apply_gradients(zip(gradients, weights, strict=True))


for epoch in dataset.epochs(args.epochs):
    for indices in dataset:
        rate, step = float(sgd.learning_rate), edl.step()
        counted = edl.current_worker().loader.engine.batches.samples
        train(indices)
        throttle.throttle_step()
        if not edl.is_warming_up():
            trained = indices.numpy().tolist()[:counted]
            report(step=step, epoch=epoch, rate=rate, indices=trained)

final = {
    variable.name: tf.cast(variable, tf.float64).numpy().tolist() for variable in net.variables
}
report(final=final, steps=edl.step(), traces=train.experimental_get_tracing_count())
