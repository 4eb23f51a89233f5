"""``edl.diagnose``: how a model trains, in TensorFlow and Keras."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from edl.diagnose import LayerBalance, Phases, Row
from edl.errors import UsageError
from edl.framework.diagnose import JobBalance, chosen
from edl.tensorflow.variables import Array, EagerAccess, named, variables_of

__all__ = ["LayerBalance", "Phases", "Row", "layer_balance"]


def layer_balance(
    model: Any, layers: Iterable[str] | None = None, matrices: bool = False
) -> JobBalance:
    """What tells how the layers of ``model`` grow: see :class:`edl.diagnose.LayerBalance`.

    Nothing is sent, for all workers have the same weights.

    Args:
        model: a Keras model or layer that is built, a ``tf.Module``, a list of variables.
        layers: paths (Keras) or names of variables with two or more dimensions, in the order of the
            net; None: all of them that are trained, in the order of ``model.variables``.
        matrices: record D_i, too.

    Raises:
        UsageError: there are fewer than two such variables, one is not there, the model is not
            built, or its variables are those of a graph.
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
        for (name, variable), counts in zip(named(variables).items(), trained, strict=True)
        if counts and len(variable.shape) >= 2 and variable.dtype.is_floating
    }
    reads = {name: partial(_read, each) for name, each in chosen(found, layers).items()}
    return JobBalance(reads, matrices)


def _read(variable: Any) -> Array:
    """One row an output: a kernel of Keras has a column for each."""
    (weights,) = EagerAccess().read([variable])
    weights = np.asarray(weights, dtype=np.float64)
    return weights.T if weights.ndim == 2 else weights
