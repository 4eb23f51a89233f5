"""3 samples, 2 workers: in the epoch's last step one of them trains a batch for padding.

Each worker writes down what it has counted, as a script counts its samples, and the job's means.
"""

import argparse
import json
import os
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("framework", choices=["torch", "tensorflow"])
parser.add_argument("out", type=Path)
args = parser.parse_args()
SAMPLES, EPOCHS = 3, 2

if args.framework == "torch":
    import torch

    import edl.torch as edl

    edl.init()
    data = edl.DataLoader(torch.arange(SAMPLES), batch_size=1)
    model = torch.nn.Linear(1, 1)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)

    def train(batch):
        optimizer.zero_grad()
        model(batch[:, None].float()).mean().backward()
        optimizer.step()
        return batch.double().mean()

else:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    import numpy as np
    import tensorflow as tf

    import edl.tensorflow as edl

    edl.init()
    data = edl.Dataset(np.arange(SAMPLES), 1)
    norm = tf.keras.layers.BatchNormalization(synchronized=True, momentum=0.5)
    model = tf.keras.Sequential([tf.keras.Input((1,)), norm, tf.keras.layers.Dense(1)])
    optimizer = edl.Optimizer(tf.keras.optimizers.SGD(0.1), model)

    @tf.function
    def train(batch):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(tf.cast(batch[:, None], tf.float32), training=True))
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(zip(gradients, model.trainable_variables, strict=True))
        return tf.reduce_mean(tf.cast(batch, tf.float64))


rounds = []
moving = None  # the average of the inputs of all steps, as batch normalisation keeps it
for _ in data.epochs(EPOCHS):
    total = seen = batches = 0
    steps = []
    for batch in data:
        value = train(batch)
        steps.append(edl.mean(value))
        total += float(value) * edl.batch_weight()
        seen += edl.batch_weight()
        batches += 1
    mean = edl.mean({"value": total / max(seen, 1)}, weight=seen)["value"]
    if args.framework == "tensorflow":
        moving = float(norm.moving_mean.numpy()[0])
    rounds.append(
        {"batches": batches, "seen": seen, "mean": mean, "steps": steps, "moving": moving}
    )
(args.out / f"{os.getpid()}.json").write_text(json.dumps(rounds))
