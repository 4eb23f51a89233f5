"""Trains in Keras with a learning rate that is tuned, and writes down each of its updates."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import argparse
import json
from pathlib import Path

import numpy as np
import tensorflow as tf

import edl.tensorflow as edl
from edl import failpoints
from edl.errors import RingBroken
from edl.testing import throttle

SAMPLES, EPOCHS, BATCH = 480, 8, 4
keras = tf.keras

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--way", choices=["fit", "loop"], default="fit")
parser.add_argument("--miss", type=int, nargs="*", default=[], help="steps of the last rank")
args = parser.parse_args()


def miss(point):
    """Break the ring at the averages of a step, which the other workers have."""
    if point != "averaged" or edl.is_warming_up() or edl.rank() + 1 < edl.size():
        return
    if edl.step() in args.miss:
        args.miss.remove(edl.step())
        (args.out / f"missed.{edl.step()}").touch()
        raise RingBroken(edl.generation(), "a test takes it away")


failpoints.subscribe(miss)

keras.utils.set_random_seed(0)
edl.init()
x = np.random.default_rng(0).normal(size=(SAMPLES, 8)).astype(np.float32)
dataset = edl.Dataset((x, x.sum(1, keepdims=True)), BATCH, shuffle=True)
model = keras.Sequential(
    [
        keras.Input((8,)),
        keras.layers.Dense(8),
        keras.layers.BatchNormalization(),
        keras.layers.Dense(1),
    ]
)
sgd = keras.optimizers.SGD(0.01, momentum=0.9)
optimizer = edl.Optimizer(sgd, model if args.way == "loop" else None)


def loss_of(batch):
    return tf.reduce_mean((model(batch[0], training=True) - batch[1]) ** 2)


tuner = edl.LRTuner(
    optimizer,
    loss_of if args.way == "loop" else None,
    total=SAMPLES * EPOCHS,
    share=1.0,  # a step of this model is as short as what comes with an evaluation
)
edl.checkpoint(args.out / "saved", every_s=0.1)


def write_down() -> None:
    if edl.is_warming_up():
        return
    update, rate = edl.current_worker().loader.update, float(optimizer.learning_rate)
    row = [edl.generation(), update.number, update.after, rate, tuner.reason]
    with (args.out / f"w{edl.current_worker().id}.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    throttle.throttle_step()


class WritesDown(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        write_down()


@tf.function(input_signature=dataset.element_spec)
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of((x, y))
    weights = model.trainable_variables
    optimizer.apply_gradients(zip(tape.gradient(loss, weights), weights, strict=True))


if args.way == "fit":
    model.compile(optimizer, "mse")
    callbacks = [edl.KerasCallback(), tuner, WritesDown()]
    model.fit(dataset, epochs=EPOCHS, verbose=0, callbacks=callbacks)
else:
    for _ in dataset.epochs(EPOCHS):
        for batch in dataset:
            train_step(*batch)
            tuner.step(batch)
            write_down()
