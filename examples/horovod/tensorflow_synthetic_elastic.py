"""The synthetic benchmark for Horovod Elastic in TensorFlow: a `tf.function` of one's own.

Alone:

    python examples/horovod/tensorflow_synthetic_elastic.py

Elastic; then, in another terminal, `edl scale --np 3` and back:

    edl run -np 2 --max-np 3 python examples/horovod/tensorflow_synthetic_elastic.py --rounds 300

The only line that differs from a script for Horovod is marked with (edl).
"""

import argparse
import time

import numpy as np
import tensorflow as tf

import edl.tensorflow as hvd  # (edl) was: import horovod.tensorflow as hvd

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--warm-up", type=int, default=10, help="batches before the first round")
parser.add_argument("--rounds", type=int, default=10)
parser.add_argument("--batches", type=int, default=10, help="of one round")
parser.add_argument("--fp16-allreduce", action="store_true", help="send gradients in 16 bits")
args = parser.parse_args()

base_rate = 0.01  # for one worker
features, classes = 256, 10
compression = hvd.Compression.fp16 if args.fp16_allreduce else hvd.Compression.none
tf.config.threading.set_intra_op_parallelism_threads(1)  # the workers share this machine's cores
hvd.init()

model = tf.keras.Sequential(
    [
        tf.keras.Input((features,)),
        tf.keras.layers.Dense(512, activation="relu"),
        tf.keras.layers.Dense(classes),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = tf.keras.optimizers.SGD(base_rate * hvd.size())
x = tf.random.normal((args.batch_size, features))
y = tf.random.uniform((args.batch_size,), maxval=classes, dtype=tf.int32)


@tf.function
def train_batch():
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))
    tape = hvd.DistributedGradientTape(tape, compression=compression)
    gradients = tape.gradient(loss, model.trainable_variables)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))


def train_batches(state, count):
    """Train ``count`` batches; how long that took, in seconds."""
    began = time.perf_counter()
    for _ in range(count):
        train_batch()
        state.commit()
    return time.perf_counter() - began


def say(text):
    if hvd.rank() == 0:
        print(text, flush=True)


@hvd.elastic.run
def train(state):
    if not state.warm:
        train_batches(state, args.warm_up)
        state.warm = True
        state.commit()
    while state.round < args.rounds:
        per_worker = args.batch_size * args.batches / train_batches(state, args.batches)
        state.rates.append(per_worker * hvd.size())
        say(f"round {state.round}: {state.rates[-1]:.0f} samples/s with {hvd.size()} workers")
        state.round += 1
        state.commit()


def on_reset():
    optimizer.learning_rate.assign(base_rate * hvd.size())


train_batch()  # makes the variables of model and optimizer, so that the state can hold them
state = hvd.elastic.TensorFlowKerasState(model, optimizer, rates=[], round=0, warm=False)
state.register_reset_callbacks([on_reset])
train(state)
say(f"{len(state.rates)} rounds: {np.mean(state.rates):.0f} samples/s on average")
