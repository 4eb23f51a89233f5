"""Take the place of ``horovod.tensorflow.keras`` and ``horovod.keras`` in an unchanged script."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import keras
from horovod.tensorflow import Compression

from edl.binding.api import absent
from edl.transparent import horovod_callbacks as callbacks
from edl.transparent import horovod_tensorflow as _tensorflow

_NOT_OF_KERAS = (
    *("DistributedGradientTape", "Max", "Min", "Product"),
    *("allgather_object", "grouped_allreduce", "join", "tf"),
)
_SAME = [name for name in _tensorflow.__all__ if name not in _NOT_OF_KERAS]
globals().update({name: getattr(_tensorflow, name) for name in _SAME})
__all__ = ["callbacks", "load_model"]
__all__ += _SAME


def allreduce(value: Any, name: Any = None, average: Any = None, **named: Any) -> Any:
    return _tensorflow.allreduce(value, average, **named)


def load_model(
    filepath: Any,
    custom_optimizers: Any = None,
    custom_objects: Any = None,
    compression: Any = Compression.none,
    legacy_opts: bool = False,
) -> Any:
    own = {each.__name__: each for each in custom_optimizers or ()}
    model = keras.models.load_model(filepath, custom_objects={**own, **(custom_objects or {})})
    _tensorflow.DistributedOptimizer(model.optimizer, compression=compression)
    return model


if not TYPE_CHECKING:  # else every name would be one of this module's
    __getattr__ = absent("horovod.tensorflow.keras, as --transparent replaces it,")
