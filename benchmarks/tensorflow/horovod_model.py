"""A Keras model whose ``fit`` reduces gradients through plain Horovod.

``horovod.tensorflow.keras.DistributedOptimizer`` of Horovod 0.28.1 reduces in methods that Keras 3
does not call: under its ``fit`` every worker would train for itself, without a word.
"""

from __future__ import annotations

from typing import Any

import horovod.tensorflow as hvd
import tensorflow as tf


class Reduced(tf.keras.Model):
    """Keras' own training step, with Horovod's tape in it."""

    def train_step(self, data: Any) -> dict[str, Any]:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True))
        # Horovod knows TensorFlow's variables, not those of Keras 3.
        variables = [variable.value for variable in self.trainable_variables]
        gradients = hvd.DistributedGradientTape(tape).gradient(loss, variables)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_variables, strict=True))
        self._loss_tracker.update_state(loss)
        return {"loss": self._loss_tracker.result()}


def reduced(model: tf.keras.Model) -> Reduced:
    return Reduced(model.inputs, model.outputs)
