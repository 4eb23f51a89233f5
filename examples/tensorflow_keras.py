"""Train a small network on handwritten digits with Keras' fit, on workers that come and go.

Alone:

    python examples/tensorflow_keras.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 3`:

    edl run -np 2 --max-np 3 python examples/tensorflow_keras.py --epochs 60 --step-delay 0.1

What differs from a plain Keras script is marked with (edl).
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
model.compile(
    optimizer=edl.Optimizer(tf.keras.optimizers.Adam(2e-3)),  # (edl)
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)

# ---------------------------------------------------------------------------------------------
# Training
pause = tf.keras.callbacks.LambdaCallback(
    on_train_batch_end=lambda batch, logs: time.sleep(args.step_delay)
)
model.fit(
    dataset,
    epochs=args.epochs,
    callbacks=[edl.KerasCallback(), pause],  # (edl) the same on all workers; rank 0 writes files
    verbose=2,  # (edl) rank 0 shows it
)

if edl.rank() == 0:
    _, accuracy = model.evaluate(images[test], labels[test], verbose=0)
    print(f"accuracy {accuracy:.3f} epochs {args.epochs} steps {edl.step()}", flush=True)
