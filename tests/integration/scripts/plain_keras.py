"""A Keras script for plain Horovod; it knows nothing of edl.

Each process appends a line `step sha256`, of the weights after each step, to <out>/w<pid>. Rank 0
appends the number of each epoch that has ended to <out>/epochs.
"""

import argparse
import hashlib
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow.keras as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()


class Diary(tf.keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        digest = hashlib.sha256()
        for variable in (*self.model.weights, *self.model.optimizer.variables):
            if "seed" not in variable.path:
                digest.update(np.asarray(variable).tobytes())
        step = int(self.model.optimizer.iterations)
        with open(args.out / f"w{os.getpid()}", "a") as file:
            file.write(f"{step} {digest.hexdigest()}\n")


class Epochs(tf.keras.callbacks.Callback):
    def __init__(self, path):
        super().__init__()
        self.path = path

    def on_epoch_end(self, epoch, logs=None):
        with open(self.path, "a") as file:
            file.write(f"{epoch}\n")


def main():
    hvd.init()
    numbers = np.random.default_rng(0)
    images = numbers.random((300, 8, 8, 1)).astype(np.float32)
    labels = numbers.integers(0, 4, 300)
    dataset = tf.data.Dataset.from_tensor_slices((images, labels))
    dataset = dataset.map(lambda image, label: (image - 0.5, label))
    dataset = dataset.repeat().shuffle(1000).batch(5)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.3),
            tf.keras.layers.Dense(4, activation="softmax"),
        ]
    )
    rate = 0.002 * hvd.size()
    optimizer = hvd.DistributedOptimizer(tf.keras.optimizers.Adam(rate))
    model.compile(optimizer=optimizer, loss="sparse_categorical_crossentropy", metrics=["accuracy"])
    callbacks = [
        hvd.callbacks.BroadcastGlobalVariablesCallback(0),
        hvd.callbacks.MetricAverageCallback(),
        hvd.callbacks.LearningRateWarmupCallback(initial_lr=rate, warmup_epochs=2, verbose=1),
        Diary(),
    ]
    if hvd.rank() == 0:
        callbacks.append(tf.keras.callbacks.ModelCheckpoint(str(args.out / "epoch{epoch}.keras")))
        callbacks.append(Epochs(str(args.out / "epochs")))
    history = model.fit(
        dataset,
        steps_per_epoch=40 // hvd.size(),
        epochs=args.epochs,
        callbacks=callbacks,
        verbose=2 if hvd.rank() == 0 else 0,
    )
    test = tf.data.Dataset.from_tensor_slices((images[:64] - 0.5, labels[:64]))
    test = test.shard(hvd.size(), hvd.rank()).batch(16)
    loss = hvd.allreduce(model.evaluate(test, verbose=0)[0])
    if hvd.rank() == 0:
        print(f"epochs {len(history.epoch)}, loss {float(loss):.4f}")


if __name__ == "__main__":
    main()
