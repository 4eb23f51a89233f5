"""One worker's gradients are of another kind than those of the others.

--what inf: the loss is scaled (LossScaleOptimizer), and in each epoch one sample's gradient is
infinite. Each worker writes its scale before each step to <out>/<pid>.jsonl.
--what none: one worker leaves a variable out of its loss, in an eager loop.
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

BAD = 77  # the sample whose gradient is infinite
LEFT_OUT_AT = 5  # the step

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--what", choices=["inf", "none"], required=True)
args = parser.parse_args()

edl.init()
dataset = edl.Dataset(np.arange(120), batch_size=4, shuffle=True, seed=3)
net = tf.Module()
net.w = tf.Variable(tf.zeros(120), name="w")
net.sometimes = tf.Variable(tf.ones(3), name="sometimes")
sgd = tf.keras.optimizers.SGD(1.0)
log = (args.out / f"{os.getpid()}.jsonl").open("w")


def report(**what):
    log.write(json.dumps(what) + "\n")
    log.flush()


if args.what == "inf":
    optimizer = edl.Optimizer(
        tf.keras.optimizers.LossScaleOptimizer(sgd, initial_scale=64.0, dynamic_growth_steps=12),
        net,
    )
else:
    optimizer = edl.Optimizer(sgd, net)


@tf.function(input_signature=[dataset.element_spec])
def train_scaled(indices):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.gather(net.w, indices))
        infinite = tf.where(tf.reduce_any(indices == BAD), np.inf, 1.0)
        scaled = optimizer.scale_loss(loss * tf.cast(infinite, loss.dtype))
    optimizer.apply_gradients([(tape.gradient(scaled, net.w), net.w)])


def train(indices):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.gather(net.w, indices))
        if edl.step() < LEFT_OUT_AT or edl.rank() != 1:
            loss += tf.reduce_sum(net.sometimes)
    weights = [net.w, net.sometimes]
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


def scale():
    return float(optimizer.dynamic_scale.numpy()) if args.what == "inf" else 1.0


for _ in dataset.epochs(4):
    for indices in dataset:
        step, before = edl.step(), scale()
        (train_scaled if args.what == "inf" else train)(indices)
        throttle.throttle_step()
        if not edl.is_warming_up():
            counted = indices.numpy()[: edl.current_worker().loader.engine.batches.samples]
            report(step=step, scale=before, bad=bool((counted == BAD).any()))

report(final=net.w.numpy().tolist(), scale=scale())
