"""Warn once about a Keras loss that is not a mean over the samples of a batch.

A loss has a ``reduction``, and receives the mask that layers before it have made. Both are known
when the loss is called. In a graph that is when it is traced, so steps get no slower.
"""

from __future__ import annotations

import functools
import logging
from typing import Any

import keras
from keras.src import backend

from edl.binding import process
from edl.step.weighting import SEE
from edl.tensorflow import training

logger = logging.getLogger(__name__)

WEIGHTED = "and edl weights the gradient of each worker with its samples, as for a mean over them"


@functools.cache
def watch_losses() -> None:
    plain = keras.losses.Loss.__call__
    told: list[str] = []

    @functools.wraps(plain)
    def __call__(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not told and _trains():
            is_masked = backend.get_keras_mask(y_pred) is not None
            why = why_loss_is_no_mean(
                self, is_masked, sample_weight is not None, training.current().fitting
            )
            if why is not None:
                told.append(why)
                logger.warning("%s", why)
        return plain(self, y_true, y_pred, sample_weight)

    keras.losses.Loss.__call__ = __call__


def why_loss_is_no_mean(loss: Any, is_masked: bool, is_weighted: bool, in_fit: bool) -> str | None:
    """Return why `loss` is no mean over the samples of a batch; None if it may be one."""
    if loss.reduction in ("sum", "none", None):
        if not in_fit:  # a script's own loop may divide the sum
            return None
        return (
            f"the loss {loss.name} has reduction={loss.reduction!r}, so it adds up the samples of "
            f'a batch, {WEIGHTED}: leave the reduction out ("sum_over_batch_size"); {SEE}'
        )
    if loss.reduction == "mean_with_sample_weight" and (is_masked or is_weighted):
        return (
            f'the loss {loss.name} has reduction="mean_with_sample_weight": it divides by the sum '
            f"of a batch's weights, {WEIGHTED}; samples of a batch with small weights count more. "
            f'Leave the reduction out ("sum_over_batch_size"); {SEE}'
        )
    if is_masked:
        return (
            f"the loss {loss.name} gets a mask (of Masking, or Embedding(mask_zero=True)), and is "
            f"a mean over the entries that are not masked, {WEIGHTED}: entries of a batch with few "
            "of them count more. End the mask before the loss, and give the data set sample "
            f"weights, 0 for what is padding; {SEE}"
        )
    if getattr(loss, "ignore_class", None) is not None:
        return (
            f"the loss {loss.name} has ignore_class={loss.ignore_class}, and is a mean over the "
            f"labels that are not ignored, {WEIGHTED}: labels of a batch with few of them count "
            "more. Leave ignore_class out, and give the data set sample weights, 0 for what is to "
            f"be ignored, whose label is any class; {SEE}"
        )
    return None


def _trains() -> bool:
    if not process.is_initialized():
        return False
    worker = process.current_worker()
    if not worker.is_shared or worker.warming_up or worker.rank != 0:
        return False
    return bool(worker.loader.open)
