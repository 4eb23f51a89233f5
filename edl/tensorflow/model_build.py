"""Create the variables of a Keras model before its first batch, and refuse stateful layers."""

from __future__ import annotations

from typing import Any

import keras
import tensorflow as tf

from edl.binding.replica import few
from edl.errors import UsageError

NO_CALL = (
    "{name} has no call(), and these layers of it are not built: {layers}; call each once on a "
    "batch before the training, so that its variables are there"
)
FAILED = (
    "edl could not create the variables of {name} before its first batch, since a call on the "
    "features of a batch failed; call the model once on a batch before the training"
)


STATEFUL = (
    "{name} has stateful=True: its state goes on from batch to batch, and in a job batches that "
    "follow each other go to different workers; leave stateful=True out and give it each sequence "
    "as a sample, or train without `edl run`"
)


def refuse_stateful(model: Any, shared: bool) -> None:
    for layer in model._flatten_layers() if shared and isinstance(model, keras.Model) else ():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise UsageError(STATEFUL.format(name=f"the layer {layer.name}"))


def build_model(model: Any, dataset: Any) -> None:
    """Create the variables of `model` by a call, unless all of them are there."""
    # A subclassed model may have layers without variables after model.build(), as Keras warns.
    name = type(model).__name__
    if type(model).call is keras.Model.call:  # its train_step calls its layers
        if unbuilt := [layer.name for layer in model.layers if _lacks_variables(layer)]:
            raise UsageError(NO_CALL.format(name=name, layers=few(unbuilt)))
        return
    if not _lacks_variables(model):
        return
    spec = dataset.element_spec
    features = spec[0] if isinstance(spec, tuple) else spec
    named = {"training": False} if model._call_has_training_arg else {}

    def call(inputs: Any) -> None:
        model(inputs, **named)

    try:
        # As fit traces it, so that a dimension that varies, as after padding, stays unknown.
        tf.function(call, autograph=False).get_concrete_function(features)
    except Exception:  # noqa: BLE001 - a call() of the user's that works only eagerly, say
        try:
            call(tf.nest.map_structure(_zeros, features))
        except Exception as error:
            raise UsageError(FAILED.format(name=name)) from error


def _zeros(spec: Any) -> Any:
    return tf.zeros([1 if n is None else n for n in spec.shape], spec.dtype)


def _lacks_variables(layer: Any) -> bool:
    """Return whether a call of a layer or model may create variables."""
    if not layer.built and not getattr(layer.build, "_is_default", False):
        return True
    inside = not layer.built or isinstance(layer, keras.Model)
    parts = layer._flatten_layers(include_self=False, recursive=False) if inside else ()
    return any(map(_lacks_variables, parts))
