"""Define ``edl.diagnose`` for TensorFlow: measure how the layers of a model grow."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf

from edl.contrib.layer_balance import JobBalance, LayerBalance, LayerRow, Phases, chosen
from edl.errors import UsageError
from edl.tensorflow.variables import Array, EagerAccess, variables_by_name, variables_of

__all__ = ["LayerBalance", "LayerRow", "Phases", "layer_balance"]


def layer_balance(
    model: Any, layers: Iterable[str] | None = None, matrices: bool = False
) -> JobBalance:
    """Return a recorder of the norms of the weights of the layers of ``model`` in training.

    The script calls its ``record()`` after an update, as often as it wants; a row gets the number
    of samples that the job has trained. Its other methods are those of
    ``edl.diagnose.LayerBalance``. Nothing is sent between the workers, since all of them have the
    same weights.

    Args:
        model: a Keras model or layer that is built, a ``tf.Module``, or a list of variables.
        layers: paths (Keras) or names of floating-point variables with two or more dimensions, in
            the order of the network, or one such name; None: all such variables of ``model`` that
            are trainable, in the order in which the model lists them.
        matrices: as for :class:`edl.contrib.layer_balance.LayerBalance`.

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
    (weights,) = EagerAccess().read([variable])
    weights = np.asarray(weights, dtype=np.float64)
    # One row for each output; a Keras kernel has one column for each.
    return weights.T if weights.ndim == 2 else weights
