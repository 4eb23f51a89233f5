"""Refuse Keras' batch normalisation over all workers, which would be local without a word.

``keras.layers.BatchNormalization(synchronized=True)`` asks ``tf.distribute`` for other replicas.
Under edl there are none, so it would take the statistics of one worker for those of all.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
from keras.src.backend.tensorflow import nn

from edl.errors import UsageError
from edl.framework import process

LOCAL_ONLY = (
    "edl.tensorflow has no batch normalisation over the samples of all workers; leave out "
    "synchronized=True, so that each worker normalises with the statistics of its own samples, or "
    "use keras.layers.LayerNormalization or GroupNormalization, which depend on no other sample "
    "(docs/tensorflow.md, Pitfalls)"
)


@functools.cache
def refuse_synchronized() -> None:
    """From now on a synchronized layer raises UsageError where it would need other workers.

    It does in training only, and never in a job that can have but one worker.
    """
    plain, of_layer = nn._compute_moments_sync, keras.layers.BatchNormalization._moments

    @functools.wraps(plain)
    def moments(*arguments: Any, **named: Any) -> Any:
        _refuse()
        return plain(*arguments, **named)

    @functools.wraps(of_layer)
    def moments_of_layer(self: Any, inputs: Any, mask: Any) -> Any:
        if self.synchronized and mask is not None:  # Keras leaves `synchronized` out then
            _refuse()
        return of_layer(self, inputs, mask)

    nn._compute_moments_sync = moments
    keras.layers.BatchNormalization._moments = moments_of_layer


def _refuse() -> None:
    if process.is_initialized() and process.current_worker().is_shared:
        error = UsageError(f"keras.layers.BatchNormalization(synchronized=True): {LOCAL_ONLY}")
        error._keras_call_info_injected = True  # type: ignore[attr-defined]  # Keras adds nothing
        raise error
