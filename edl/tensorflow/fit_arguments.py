"""Check the arguments and the model of ``fit`` from its callbacks, before it trains a wrong step.

Keras tells its callbacks neither the data nor the number of steps, so they are read from the frame
of the call of ``fit`` on the stack. If there is no such frame, no argument is checked.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import tensorflow as tf

from edl.errors import UsageError
from edl.tensorflow import training
from edl.tensorflow.collectives import turn_off_xla
from edl.tensorflow.dataset import ElasticDataset
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.training import refuse_stateful

_READ = ("x", "validation_data", "steps_per_epoch", "initial_epoch")


STEERED = (
    "{name} steers the training by {monitor!r}, a mean over the workers whose last bits depend on "
    "their number; with --logical give it monitor='val_loss' or another number of the validation, "
    "or leave out --logical"
)


def refuse_steered(callbacks: Iterable[Any]) -> None:
    """Refuse a callback that steers a job of logical workers by its training metrics."""
    # Numbers of the validation are the same on any number of workers: each uses all data.
    kinds = keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau
    for each in callbacks:
        if isinstance(each, kinds) and not str(each.monitor).startswith("val_"):
            name = type(each).__name__
            raise UsageError(STEERED.format(name=name, monitor=each.monitor))


def check_compiled(model: Any, now: training.Training) -> None:
    """Refuse a compiled `model` that edl cannot train, and turn off XLA in it."""
    refuse_stateful(model, now.worker.is_shared)
    optimizer = model.optimizer
    if not is_elastic(optimizer) and not now.reduction.several:  # which its train_step applies
        inner = getattr(optimizer, "inner_optimizer", None)
        what = (
            "wrap the whole of it: edl.Optimizer(keras.optimizers.LossScaleOptimizer(...)), which "
            "Keras puts around the optimizer by itself under mixed_float16"
            if is_elastic(inner)
            else f"compile(optimizer=edl.Optimizer({type(optimizer).__name__}(...)))"
        )
        raise UsageError(f"the model is compiled with an optimizer that edl does not know: {what}")
    if getattr(model, "steps_per_execution", 1) != 1:
        raise UsageError("edl counts every step: compile the model with steps_per_execution=1")
    turn_off_xla(model)


def check_list(callback: Any) -> None:
    if callback.model is None or "epochs" not in (callback.params or {}):
        raise UsageError(
            "fit was given a keras.callbacks.CallbackList, which does not know the model and the "
            "epochs of this fit; give it the callbacks themselves: model.fit(..., "
            "callbacks=[edl.KerasCallback(), ...])"
        )


def check_arguments(model: Any) -> int:
    """Check the arguments of the running `model.fit`, and return its `initial_epoch`."""
    given = _arguments(model)
    if given is None:
        return 0
    if not _is_elastic(given["x"]):
        raise UsageError(
            f"model.fit was given {_called(given['x'])} to train on; give it the edl.Dataset, or "
            "what its map and prefetch return: anything else would be trained by every worker alike"
        )
    if any(map(_is_elastic, _flat(given["validation_data"]))):
        raise UsageError(
            "validation_data is the edl.Dataset that is trained on; give arrays or a "
            "tf.data.Dataset, which every worker evaluates as a whole"
        )
    if given["steps_per_epoch"] is not None:
        raise UsageError(
            "leave out steps_per_epoch: an epoch of an edl.Dataset is each of its samples once, "
            "whatever the number of workers. To train a number of steps, give "
            "edl.KerasCallback(max_steps=n) and as many epochs as that may take"
        )
    return int(given["initial_epoch"] or 0)


def _arguments(model: Any) -> Mapping[str, Any] | None:
    frame = sys._getframe()
    while (caller := frame.f_back) is not None:
        frame = caller
        names = frame.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and "x" in names:
            return {name: names.get(name) for name in _READ}
    return None


def _is_elastic(data: Any) -> bool:
    return isinstance(data, ElasticDataset)


def _flat(data: Any) -> list[Any]:
    return [*data] if isinstance(data, list | tuple) else [data]


def _called(data: Any) -> str:
    if isinstance(data, tf.data.Dataset):
        return "another tf.data.Dataset"
    return f"a {type(data).__name__}"
