"""Reduce dense and sparse gradients by Horovod's options: in groups, with a divided average."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

import edl.tensorflow as hvd

keras = tf.keras
hvd.init()
own = hvd.rank() + 1


def variables():
    shapes = [(4, 2), (3,), (2,), (6, 2)]
    return [keras.Variable(tf.zeros(shape), name="same") for shape in shapes]


def loss(trained):
    table, one, other, last = trained
    rows = [tf.gather(each, [0, own]) for each in (table, last)]
    return own * sum(tf.reduce_sum(each) for each in [*rows, one, other])


def by_optimizer(trained, **options):
    optimizer = hvd.DistributedOptimizer(keras.optimizers.SGD(1.0), **options)
    with tf.GradientTape() as tape:
        value = loss(trained)
    gradients = tape.gradient(value, trained)
    assert any(isinstance(each, tf.IndexedSlices) for each in gradients)
    optimizer.apply_gradients(zip(gradients, trained, strict=True))
    return [-each.numpy() for each in trained]


def by_tape(trained, **options):
    with tf.GradientTape() as tape:
        value = loss(trained)
    means = hvd.DistributedGradientTape(tape, **options).gradient(value, trained)
    return [tf.convert_to_tensor(each).numpy() for each in means]


def check(way, trained, **options):
    for found in way(trained, **options):
        wanted = np.zeros(found.shape)
        for number in range(hvd.size()):
            if found.ndim == 1:
                wanted += number + 1
            else:
                wanted[[0, number + 1]] += number + 1
        np.testing.assert_allclose(found, wanted / hvd.size(), err_msg=str(options))


check(by_optimizer, variables(), num_groups=1)
check(by_optimizer, variables(), num_groups=9)
check(by_optimizer, variables(), gradient_predivide_factor=4.0)
trained = variables()
check(by_tape, trained, groups=[trained[:2], trained[3:]])
check(by_tape, variables(), groups=2, gradient_predivide_factor=4.0)
print("all is well", flush=True)
