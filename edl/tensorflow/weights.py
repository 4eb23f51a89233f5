"""Define ``edl.tensorflow.load_weights``, which reads what a job has trained.

A script that only uses the weights calls it; no job has to run.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np

from edl.binding.replica import few
from edl.checkpoint.location import location
from edl.checkpoint.weights import weights
from edl.errors import CheckpointError, UsageError
from edl.tensorflow.variables import (
    Array,
    EagerAccess,
    differences,
    dtype_of,
    variables_by_name,
    variables_of,
)


def load_weights(path: str | os.PathLike[str], model: Any = None) -> dict[str, Array]:
    """Return the weights in a checkpoint, as arrays by the path or name of their variable.

    No job is needed. Do not write to the arrays. The variables of tracked objects are among them;
    those of the optimizer are not.

    Args:
        path: a checkpoint, a directory with checkpoints (the intact one of the highest step is
            taken), or a file of ``edl checkpoint export``.
        model: a model, layer or module that has its variables already. The weights are also written
            to them; weights that it has no variable for are only returned. None: all are only
            returned.

    Raises:
        CheckpointError: there is no intact file, or it lacks a variable of the model or has it in
            another shape; the model is then unchanged.
        UsageError: the model has no variables (yet).
    """
    found = {
        name: np.frombuffer(blob.data, dtype=dtype_of(blob.dtype)).reshape(blob.shape)
        for name, blob in weights(location(path)).items()
    }
    if model is not None:
        mine = variables_by_name(variables_of(model) or [])
        if not mine:
            raise UsageError("the model has no variables yet; build it before edl.load_weights")
        if missing := [f"{name} is not there" for name in mine if name not in found]:
            raise CheckpointError(
                f"{path} is of another model: {few(missing)}; it has {few(list(found))}. Keras "
                "numbers the layers that it names itself, as they are made in a process: give the "
                "layers a name, in both scripts, or make the models in the same order"
            )
        if odd := differences(mine, {name: found[name] for name in mine}):
            raise CheckpointError(f"{path} is of another model: {few(odd)}")
        EagerAccess().write([(variable, found[name]) for name, variable in mine.items()])
    return found
