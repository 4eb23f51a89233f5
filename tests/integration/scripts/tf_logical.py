"""Train with logical workers; write a digest of all that is trained after each step.

The model has Dropout, BatchNormalization and a layer that is not trained; the samples are made with
noise while they are loaded, and the gradients are clipped. Each worker
writes a line `step sha256` for each step to <out>/w<pid>. `mixed` is `fit` in float16.
"""

import argparse
import hashlib
import os
import random
import signal
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import tensorflow as tf

import edl.tensorflow as edl
from edl import failpoints
from edl.binding import process
from edl.testing.throttle import throttle_step

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--way", choices=("eager", "function", "fit", "mixed"), default="function")
parser.add_argument("--die", default="", help="the failpoint at which w1 dies in step 3")
parser.add_argument("--checkpoint", default="")
parser.add_argument("--every", type=float, default=1000.0)
parser.add_argument("--sharded", action="store_true")
parser.add_argument("--samples", type=int, default=46)
parser.add_argument("--epochs", type=int, default=2)
args = parser.parse_args()


def die(point):
    if point == args.die:
        worker = process.current_worker()
        if worker.id == 1 and worker.step == 2 and not worker.warming_up:
            os.kill(os.getpid(), signal.SIGKILL)


failpoints.subscribe(die)
edl.init()
if args.way == "mixed":
    keras.mixed_precision.set_global_policy("mixed_float16")
keras.utils.set_random_seed(11)
inputs = np.random.default_rng(1).normal(size=(args.samples, 12)).astype(np.float32)


class Noisy:
    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        noise = np.random.normal(size=12).astype(np.float32)
        return inputs[index] + noise * random.random(), np.float32(inputs[index].sum())


model = keras.Sequential(
    [
        keras.Input((12,)),
        keras.layers.GaussianNoise(0.1),
        keras.layers.Dense(16, activation="tanh"),
        keras.layers.BatchNormalization(),
        keras.layers.Dropout(0.4),
        keras.layers.Dense(8, activation="relu", trainable=False),
        keras.layers.Dense(1),
    ]
)
optimizer = keras.optimizers.Adam(0.01)
if args.way == "mixed":
    optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
optimizer = edl.Optimizer(optimizer, model)
dataset = edl.Dataset(Noisy(), batch_size=3, shuffle=True, seed=3)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=args.every, sharded=args.sharded)


def train_step(x, y):
    with tf.GradientTape() as tape:
        found = model(x + keras.random.normal(tf.shape(x), stddev=0.01), training=True)
        loss = tf.reduce_mean(tf.square(found[:, 0] - y))
    weights = model.trainable_variables
    gradients = edl.DistributedGradientTape(tape).gradient(loss, weights)
    clipped, _ = tf.clip_by_global_norm(gradients, 1.0)
    optimizer.apply_gradients(zip(clipped, weights, strict=True))
    return loss


def digest():
    found = hashlib.sha256()
    for variable in (*model.variables, *optimizer.variables):
        if "seed_generator" not in variable.path:
            found.update(np.asarray(variable).tobytes())
    return found.hexdigest()


if args.way == "function":
    train_step = tf.function(train_step)
log = (args.out / f"w{os.getpid()}").open("a")
made = 0


def after_batch():
    global made
    throttle_step()
    if not edl.is_warming_up() and edl.step() != made:
        made = edl.step()
        print(made, digest(), file=log, flush=True)


class Log(keras.callbacks.Callback):
    begun = 0

    def on_train_batch_begin(self, batch, logs=None):
        self.begun += 1

    def on_train_batch_end(self, batch, logs=None):
        assert self.begun == 1, "once in a step, however many logical workers there are here"
        self.begun = 0
        after_batch()


if args.way in ("fit", "mixed"):
    model.compile(optimizer, "mse", metrics=["mae"])
    callbacks = [edl.KerasCallback(), Log(), keras.callbacks.EarlyStopping("val_loss", patience=99)]
    validation = inputs[:8], inputs[:8].sum(1)
    model.fit(
        dataset, epochs=args.epochs, callbacks=callbacks, validation_data=validation, verbose=2
    )
else:
    for _ in dataset.epochs(args.epochs):
        for x, y in dataset:
            if args.way == "eager":  # in a graph these would keep the seed of its trace
                x = x + tf.random.normal(tf.shape(x), stddev=0.01)
            train_step(x, y)
            after_batch()
