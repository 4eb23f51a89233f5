"""Train a small network on handwritten digits with tf.function, on workers that come and go.

Alone:

    python examples/tensorflow_loop.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 3`:

    edl run -np 2 --max-np 3 python examples/tensorflow_loop.py --epochs 60 --step-delay 0.1

What differs from a plain TensorFlow script is marked with (edl).
"""

import argparse
import time

import tensorflow as tf
from digits_data import load

import edl.tensorflow as edl  # (edl)

# ---------------------------------------------------------------------------------------------
# Settings
parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=15)
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--clip", type=float, default=5.0, help="the largest norm of a gradient")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()

held_out = 6  # every 6th image is held out: 300 for the test, 1,497 to train on
tf.config.threading.set_intra_op_parallelism_threads(1)  # the workers share this machine's cores
tf.keras.utils.set_random_seed(0)

# ---------------------------------------------------------------------------------------------
# Data and model
edl.init()  # (edl) a job of one without a launcher

images, labels = load()
images = images[..., None]  # one channel
test = [number % held_out == 0 for number in range(len(labels))]
train = [not held for held in test]

# (edl) The batch size is that of one worker: 4 workers take 4 x 32 samples in a step.
dataset = edl.Dataset((images[train], labels[train]), args.batch_size, shuffle=True)

model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(64, activation="relu"),
        tf.keras.layers.Dense(10),
    ]
)
loss_of = tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True)
optimizer = edl.Optimizer(tf.keras.optimizers.SGD(0.03, momentum=0.9), model)  # (edl)


@tf.function(input_signature=dataset.element_spec)  # one trace, also for smaller last batches
def train_step(x, y):
    with tf.GradientTape() as tape:
        loss = loss_of(y, model(x, training=True))  # a mean over the batch
    tape = edl.DistributedGradientTape(tape)  # (edl) its gradients are the means over all workers
    gradients = tape.gradient(loss, model.trainable_variables)  # (edl) who come and go in here
    gradients, _ = tf.clip_by_global_norm(gradients, args.clip)
    optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
    return loss


def accuracy():
    """Share of the held-out digits that the model names rightly."""
    right = tf.argmax(model(images[test]), axis=1) == labels[test]
    return float(tf.reduce_mean(tf.cast(right, tf.float32)))


# ---------------------------------------------------------------------------------------------
# Training
#
# A newcomer runs this loop's first batch, and the end of the epoch, once for itself: a warm-up
# that builds the graph while the others train. Nothing of it counts, and its rank is never 0.
for epoch in dataset.epochs(args.epochs):  # (edl)
    for x, y in dataset:
        loss = train_step(x, y)
        if args.step_delay:
            time.sleep(args.step_delay)
    last = edl.mean(loss)  # (edl) of all workers' samples in the epoch's last step
    if edl.rank() == 0:
        print(
            f"epoch {epoch} loss {last:.3f} accuracy {accuracy():.3f} workers {edl.size()}",
            flush=True,
        )

if edl.rank() == 0:
    print(f"accuracy {accuracy():.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
