"""A TensorFlow script for plain Horovod, with a loop of its own; it knows nothing of edl.

Each process appends a line `step sha256`, of the weights after each step, to <out>/w<pid>. With
`--habits plain` nothing is random, and it runs under plain Horovod, whose tape knows no variables
of Keras 3.
"""

import argparse
import hashlib
import os
from pathlib import Path

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import horovod.tensorflow as hvd
import numpy as np
import tensorflow as tf

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--epochs", type=int, default=1)
parser.add_argument("--steps", type=int, default=48, help="of all ranks together, in an epoch")
parser.add_argument("--habits", choices=("", "plain"), default="")
args = parser.parse_args()
PLAIN = args.habits == "plain"


def write(model, optimizer):
    digest = hashlib.sha256()
    for variable in (*model.weights, *optimizer.variables):
        if "seed" not in variable.path:
            digest.update(np.asarray(variable).tobytes())
    with open(args.out / f"w{os.getpid()}", "a") as file:
        file.write(f"{int(optimizer.iterations)} {digest.hexdigest()}\n")


def main():
    hvd.init()
    numbers = np.random.default_rng(0)
    images = numbers.random((300, 8, 8, 1)).astype(np.float32)
    labels = numbers.integers(0, 4, 300)
    dataset = tf.data.Dataset.from_tensor_slices((tf.cast(images, tf.float32), labels))
    if PLAIN:
        tf.keras.utils.set_random_seed(3)
        dataset = dataset.shard(hvd.size(), hvd.rank()).cache().repeat().batch(5)
    else:
        dataset = dataset.repeat().shuffle(1000).batch(5)
    dataset = dataset.map(lambda x, y: (x - 0.5, y), num_parallel_calls=2).prefetch(1)

    model = tf.keras.Sequential(
        [
            tf.keras.layers.Conv2D(4, 3, activation="relu"),
            *([] if PLAIN else [tf.keras.layers.BatchNormalization()]),
            tf.keras.layers.Flatten(),
            tf.keras.layers.Dropout(0.0 if PLAIN else 0.3),
            tf.keras.layers.Dense(4, activation="softmax"),
        ]
    )
    loss_of = tf.losses.SparseCategoricalCrossentropy()
    optimizer = tf.optimizers.Adam(0.001 * hvd.size())

    @tf.function
    def train(x, y, first):
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x, training=True))
        tape = hvd.DistributedGradientTape(tape)
        variables = model.trainable_variables
        gradients = tape.gradient(loss, [v.value for v in variables] if PLAIN else variables)
        optimizer.apply_gradients(zip(gradients, variables, strict=True))
        if first and not PLAIN:
            hvd.broadcast_variables(model.variables, root_rank=0)
            hvd.broadcast_variables(optimizer.variables, root_rank=0)
        return loss

    for epoch in range(args.epochs):
        for step, (x, y) in enumerate(dataset.take(args.steps // hvd.size())):
            loss = train(x, y, epoch == step == 0)
            write(model, optimizer)
            if step % 10 == 0 and hvd.rank() == 0:
                print(f"step {step}, loss {float(loss):.4f}")
        if hvd.local_rank() == 0:
            with open(args.out / "epochs", "a") as file:
                file.write(f"{epoch} {int(optimizer.iterations)}\n")
    if hvd.rank() == 0:
        tf.train.Checkpoint(model=model, optimizer=optimizer).save(str(args.out / "checkpoint"))
        np.savez(args.out / "weights.npz", *[np.asarray(weight) for weight in model.weights])
        print("done")


if __name__ == "__main__":
    main()
