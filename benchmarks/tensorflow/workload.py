"""A deep model, whose graph takes seconds to build, and one that is all communication."""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from benchmarks.script import CLASSES, FEATURES, POOL, SAMPLES

BATCH_SIZE = 128  # of a worker
BLOCKS = 60
LEARNING_RATE, MOMENTUM = 0.01, 0.9

tf.config.threading.set_intra_op_parallelism_threads(1)
tf.config.threading.set_inter_op_parallelism_threads(2)


@functools.cache
def synthetic() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.int64]]:
    """Random features (SAMPLES, FEATURES) and labels, the same in every process."""
    random = np.random.default_rng(1)
    features = random.standard_normal((POOL, FEATURES), np.float32)
    labels = random.integers(CLASSES, size=POOL)
    return np.tile(features, (SAMPLES // POOL, 1)), np.tile(labels, SAMPLES // POOL)


def spec() -> tuple[tf.TensorSpec, tf.TensorSpec]:
    """Of a batch of any number of samples."""
    return tf.TensorSpec((None, FEATURES), tf.float32), tf.TensorSpec((None,), tf.int64)


def deep() -> tf.keras.Model:
    """60 residual blocks of 256 units: 4.0 M parameters in 242 variables."""
    tf.keras.utils.set_random_seed(0)
    x = inputs = tf.keras.Input((FEATURES,))
    for _ in range(BLOCKS):
        y = tf.keras.layers.BatchNormalization()(x)
        x = tf.keras.layers.add([x, tf.keras.layers.Dense(FEATURES, activation="relu")(y)])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(CLASSES)(x))


def wide() -> tf.keras.Model:
    """MLP 256-2048-2048-10, as in PyTorch: 4.7 M parameters in 6 variables, little to compute."""
    tf.keras.utils.set_random_seed(0)
    dense = tf.keras.layers.Dense
    hidden = [dense(2048, activation="relu"), dense(2048, activation="relu")]
    return tf.keras.Sequential([tf.keras.Input((FEATURES,)), *hidden, dense(CLASSES)])


def graph_loss(dataset: tf.data.Dataset) -> tf.Tensor:
    """Build the deep model in a TensorFlow 1 graph and return its loss on ``dataset``."""
    v1 = tf.compat.v1
    v1.set_random_seed(0)
    x, y = v1.data.make_one_shot_iterator(dataset).get_next()
    for block in range(BLOCKS):
        with v1.variable_scope(f"block{block}"):
            scale = v1.get_variable("scale", FEATURES, initializer=v1.ones_initializer())
            shift = v1.get_variable("shift", FEATURES, initializer=v1.zeros_initializer())
            mean, variance = tf.nn.moments(x, axes=[0])
            normal = tf.nn.batch_normalization(x, mean, variance, shift, scale, 1e-3)
            x += tf.nn.relu(_dense(normal, FEATURES))
    return loss_of(y, _dense(x, CLASSES))


def _dense(x: tf.Tensor, units: int) -> tf.Tensor:
    weights = tf.compat.v1.get_variable(f"weights{units}", (x.shape[-1], units))
    return tf.matmul(x, weights) + tf.compat.v1.get_variable(f"bias{units}", units)


def loss_of(y: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    losses = tf.nn.sparse_softmax_cross_entropy_with_logits(labels=y, logits=logits)
    return tf.reduce_mean(losses)


def sgd() -> tf.keras.optimizers.Optimizer:
    return tf.keras.optimizers.SGD(LEARNING_RATE, momentum=MOMENTUM)


def graph_sgd() -> tf.compat.v1.train.Optimizer:
    return tf.compat.v1.train.MomentumOptimizer(LEARNING_RATE, MOMENTUM)
