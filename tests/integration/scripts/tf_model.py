"""The counting model in Keras: its weights prove which samples were trained, see tally.py."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
from tally import SIGNAL, counted


class CountingModel(tf.keras.Model):
    """`w` is trained, and `common` with SIGNAL; the others are what was counted."""

    def __init__(self, samples):
        super().__init__(dtype="float64")
        self.w = self.add_weight(name="w", shape=(samples,), initializer="zeros")
        self.before = self.weight("before", (samples,), "float64")
        self.count = self.weight("count", (samples,), "int64")
        self.steps = self.weight("steps", (), "int64")
        if SIGNAL:
            self.common = self.add_weight(name="common", shape=(), initializer="zeros")
        self.built = True

    def weight(self, name, shape, dtype):
        return self.add_weight(
            name=name, shape=shape, dtype=dtype, initializer="zeros", trainable=False
        )

    def call(self, indices):
        each = tf.gather(self.w.value, indices)
        return each + SIGNAL * self.common if SIGNAL else each

    def moved(self):
        """Return what the trained batches have moved."""
        return self.w.numpy()

    def tally(self, most=float("inf")):
        """Count what the last step did. Tells what was wrong with it, or None."""
        now, before = self.moved(), self.before.numpy()
        if (now == before).all():
            return None
        times, problem = counted(before, now, most)
        self.before.assign(now)
        self.count.assign_add(times)
        self.steps.assign_add(1)
        return problem
