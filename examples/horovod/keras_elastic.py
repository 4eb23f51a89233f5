"""A Keras script for Horovod Elastic on handwritten digits; one import makes it one for edl.

Alone:

    python examples/horovod/keras_elastic.py

Elastic, and slow enough to watch; then, in another terminal, `edl scale --np 3`:

    edl run -np 2 --max-np 3 python examples/horovod/keras_elastic.py --epochs 40 --step-delay 0.1

The only line that differs from a script for Horovod is marked with (edl).
"""

import argparse
import hashlib
import sys
import time
from pathlib import Path

import tensorflow as tf

import edl.tensorflow.keras as hvd  # (edl) was: import horovod.tensorflow.keras as hvd

sys.path.append(str(Path(__file__).resolve().parents[1]))
from digits_data import load

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--epochs", type=int, default=8)
parser.add_argument("--batch-size", type=int, default=32, help="samples of one worker in a step")
parser.add_argument("--step-delay", type=float, default=0.0, help="seconds to sleep in each step")
args = parser.parse_args()

base_rate = 1e-3  # for one worker
held_out = 6  # every 6th image is held out: 300 for the test, 1,497 to train on
tf.config.threading.set_intra_op_parallelism_threads(1)  # the workers share this machine's cores
hvd.init()

images, labels = load()
images = images[..., None]  # one channel
test = [number % held_out == 0 for number in range(len(labels))]
train_images, train_labels = images[[not t for t in test]], labels[[not t for t in test]]
dataset = tf.data.Dataset.from_tensor_slices((train_images, train_labels))
dataset = dataset.repeat().shuffle(len(train_labels)).batch(args.batch_size)

model = tf.keras.Sequential(
    [
        tf.keras.Input((8, 8, 1)),
        tf.keras.layers.Conv2D(16, 3, padding="same", activation="relu"),
        tf.keras.layers.Conv2D(32, 3, padding="same", activation="relu"),
        tf.keras.layers.MaxPooling2D(2),
        tf.keras.layers.Flatten(),
        tf.keras.layers.Dense(10),
    ]
)
model.compile(
    optimizer=hvd.DistributedOptimizer(tf.keras.optimizers.Adam(base_rate * hvd.size())),
    loss=tf.keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    metrics=["accuracy"],
)


@hvd.elastic.run
def train(state):
    model.fit(
        dataset,
        steps_per_epoch=len(train_labels) // (args.batch_size * hvd.size()),
        epochs=args.epochs - state.epoch,
        callbacks=[
            hvd.callbacks.MetricAverageCallback(),
            tf.keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: time.sleep(args.step_delay)
            ),
            hvd.elastic.UpdateEpochStateCallback(state),
            hvd.elastic.UpdateBatchStateCallback(state),
            hvd.elastic.CommitStateCallback(state),
        ],
        verbose=2 if hvd.rank() == 0 else 0,
    )


def on_reset():
    model.optimizer.learning_rate.assign(base_rate * hvd.size())


state = hvd.elastic.KerasState(model, batch=0, epoch=0)
state.register_reset_callbacks([on_reset])
train(state)

_, accuracy = model.evaluate(images[test], labels[test], verbose=0)
weights = b"".join(weight.tobytes() for weight in model.get_weights())
print(
    f"rank {hvd.rank()}: accuracy {accuracy:.3f} weights {hashlib.sha256(weights).hexdigest()}",
    flush=True,
)
