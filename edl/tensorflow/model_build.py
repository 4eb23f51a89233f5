"""Create the variables of a Keras model before its first batch (:func:`build`)."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def build_model(model: Any, dataset: Any) -> None:
    """Create the variables of ``model`` by calling it with zeros, if a layer of it is not built.

    A subclassed model may have layers without any variables after ``model.build()``, as Keras
    warns. The zeros have the shapes of the first component of ``dataset``'s batches (the features),
    or of the whole batch if it is no tuple.
    """
    if _lacks_variables(model):
        spec = dataset.element_spec
        features = spec[0] if isinstance(spec, tuple) else spec
        # A dimension that varies, as after padding, does not matter to variables.
        shapes = tf.nest.map_structure(
            lambda s: tf.zeros([1 if n is None else n for n in s.shape], s.dtype), features
        )
        model(shapes)


def _lacks_variables(layer: Any) -> bool:
    """Return whether ``layer`` (a layer or model), or a layer in it, is not built."""
    return not layer.built or any(map(_lacks_variables, getattr(layer, "layers", ())))
