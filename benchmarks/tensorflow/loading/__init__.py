"""Two loops that do little but load, in TensorFlow: by edl.Dataset, and by tf.data.

MODES name the samples. The model has one input and one weight, so a step costs little beside its
batch.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import tensorflow as tf

MODES = ("tiny", "image")
SHAPES = {"tiny": (16,), "image": (224, 224, 3)}
SAMPLES = {"tiny": 65_536, "image": 1024}
BATCH_SIZE = {"tiny": 64, "image": 32}

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)


def columns(kind: str) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.int64]]:
    """Return all samples as bytes (SAMPLES, *SHAPES), and their labels (SAMPLES,)."""
    random = np.random.default_rng(0)
    pixels = random.integers(256, size=(SAMPLES[kind], *SHAPES[kind]), dtype=np.uint8)
    return pixels, random.integers(10, size=SAMPLES[kind])


def floats(x: tf.Tensor, y: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Return a batch whose bytes are floats from 0 to 1, and its labels."""
    return tf.cast(x, tf.float32) / 255.0, y


def smallest() -> tf.Variable:
    """Return the weight of a model of the first number of each sample."""
    return tf.Variable(0.0, name="weight")


def gradients(weight: tf.Variable, x: tf.Tensor) -> list[Any]:
    """Return the gradient of the mean of the model's outputs for a batch ``x``, in a list."""
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.reshape(x, (tf.shape(x)[0], -1))[:, 0] * weight)
    return list(tape.gradient(loss, [weight]))
