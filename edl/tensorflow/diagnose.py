"""Define ``edl.tensorflow.diagnose``, which records how a model's layers grow in training."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from edl.diagnose import LayerBalance, LayerRow, Phases
from edl.errors import UsageError
from edl.framework.diagnose import JobBalance, chosen
from edl.tensorflow.variables import Array, EagerAccess, variables_by_name, variables_of

__all__ = ["LayerBalance", "LayerRow", "Phases", "layer_balance"]


def layer_balance(
    model: Any, layers: Iterable[str] | None = None, matrices: bool = False
) -> JobBalance:
    """Return a recorder of how the weights of the layers of ``model`` grow in training.

    The recorder is an :class:`edl.diagnose.LayerBalance`. Nothing is sent between the workers,
    since all of them have the same weights.

    Args:
        model: a Keras model or layer that is built, a ``tf.Module``, or a list of variables.
        layers: paths (Keras) or names of variables with two or more dimensions, in the order of the
            network; None: all such variables that are trained, in the order of ``model.variables``.
        matrices: whether to record, too, how far D_i = W_{i+1}^T W_{i+1} - W_i W_i^T has moved
            since the first record, W_i being the weights of layer i (see :mod:`edl.diagnose`).

    Raises:
        UsageError: there are fewer than two such variables, one of ``layers`` does not exist, the
            model is not built, or its variables are those of a graph.
    """
    variables = variables_of(model)
    if not variables:
        raise UsageError("the model has no variables yet; build it before layer_balance")
    if not tf.executing_eagerly():
        raise UsageError(
            "layer_balance reads the variables of TensorFlow 2 and Keras; those of a graph are in "
            "its session"
        )
    trained = [layers is not None or variable.trainable for variable in variables]
    found = {
        name: variable
        for (name, variable), counts in zip(
            variables_by_name(variables).items(), trained, strict=True
        )
        if counts and len(variable.shape) >= 2 and variable.dtype.is_floating
    }
    reads = {name: partial(_read, each) for name, each in chosen(found, layers).items()}
    return JobBalance(reads, matrices)


def _read(variable: Any) -> Array:
    """Return the value of ``variable`` in float64, with one row for each output of the layer.

    A Keras kernel has one column for each output, so a matrix is transposed.
    """
    (weights,) = EagerAccess().read([variable])
    weights = np.asarray(weights, dtype=np.float64)
    return weights.T if weights.ndim == 2 else weights
