"""Graph mode, the way the EDL paper lists it, on handwritten digits and workers that come and go.

Alone:

    python examples/tensorflow_listing.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 3`:

    edl run -np 2 --max-np 3 python examples/tensorflow_listing.py --step-delay 0.1
"""

import argparse
import time

import numpy as np
import tensorflow as tf
from digits_data import load

import edl.tensorflow as edl

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=40)
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()

tf.compat.v1.disable_eager_execution()  # TensorFlow 2 builds graphs only when it is told to

images, labels = load()
test = np.arange(len(labels)) % 6 == 0  # held out
source = images[~test].reshape(-1, 64), labels[~test]


def layer(name, inputs, width):
    """Build a dense layer. Built twice with one name, it has the same weights."""
    with tf.compat.v1.variable_scope(name, reuse=tf.compat.v1.AUTO_REUSE):
        shape = (inputs.shape[-1], width)
        kernel = tf.compat.v1.get_variable("kernel", shape, initializer=tf.initializers.HeNormal())
        bias = tf.compat.v1.get_variable("bias", (width,), initializer=tf.zeros_initializer())
    return inputs @ kernel + bias


def network(x):
    return layer("out", tf.nn.relu(layer("hidden", x, 64)), 10)


def build_model(ds):
    """Return the loss on ``ds``: a mean over the batch."""
    x, y = tf.compat.v1.data.make_one_shot_iterator(ds).get_next()
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(y, network(x)))


edl.init()  # starts the daemon
ds = tf.data.Dataset.from_generator(
    edl.elastic_shard_generator(source, batch_size=32, epochs=args.epochs),
    output_signature=(
        tf.TensorSpec((None, 64), tf.float32),
        tf.TensorSpec((None,), tf.int64),
    ),
)
loss = build_model(ds)
opt = edl.Optimizer(tf.compat.v1.train.AdamOptimizer(1e-3))  # puts the allreduce into the graph
obj = opt.minimize(loss)
named = tf.argmax(network(tf.constant(images[test].reshape(-1, 64))), axis=1)
with edl.Session() as s:  # tf.compat.v1.Session that knows the job
    while not s.Done():
        _, value = s.run([obj, loss])
        time.sleep(args.step_delay)
        edl.notify_batch_end()
        if edl.step() % 100 == 0:
            mean = edl.mean(value)  # over all workers' samples in this step
            if edl.rank() == 0:
                print(f"step {edl.step()} loss {mean:.3f}", flush=True)
    if edl.rank() == 0:
        print(f"accuracy {np.mean(s.run(named) == labels[test]):.3f} steps {edl.step()}")
