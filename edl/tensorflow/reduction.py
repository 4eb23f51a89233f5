"""Gradients: reduced at the end of the step, weighted, exact, all of them or none (promise 5).

In a graph the reduction is one operation that calls back into this process, with all gradients
at once (docs/adr/0008). In there the ring can break and be repaired without the graph noticing:
the local gradients are the operation's inputs, they are still there to be sent again. Nor does
the graph know how many workers there are, so no change of membership traces it anew.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from edl.core.batching import average_correction, send_weight
from edl.core.steprecord import global_samples
from edl.daemon import points
from edl.daemon.activity import training_here
from edl.daemon.worker import Worker
from edl.errors import RingBroken, RingError, UsageError
from edl.framework import process
from edl.framework.interrupt import raise_in
from edl.ring.ring import CollectiveFailed
from edl.tensorflow.collectives import WIRE_DTYPE, average
from edl.tensorflow.feed import PipelineFeed


class GradientReduction:
    """The gradients of one optimizer, step by step."""

    def __init__(self, worker: Worker, feed: PipelineFeed) -> None:
        self._worker = worker
        self._feed = feed
        self.repairs = True  # False where the variables cannot be reached inside of a step
        self._done_step = 0  # the newest step whose gradients are reduced, by Worker.begun
        self._pending: BaseException | None = None  # it showed inside a graph
        self._thread = threading.get_ident()  # the one that trains
        self._refused = False  # it was told that it uses edl wrongly

    @property
    def done(self) -> bool:
        """The gradients of the batch that was handed out last are reduced."""
        return self._done_step == self._worker.begun

    def raise_pending(self) -> None:
        """Raise what ended this worker inside a graph, where nothing can be raised in its kind."""
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    def reduce(self, gradients: Sequence[Any]) -> tuple[list[Any], Any]:
        """Replace gradients by the means over the global batch, eagerly or in a graph.

        ``gradients``: tensors, ``IndexedSlices`` (which become dense), or None, which stays None;
        it must be so on all workers.

        Returns:
            The means, and whether to apply them: a scalar boolean tensor in a graph.
        """
        dense = [tf.convert_to_tensor(g) for g in gradients if g is not None]
        if tf.executing_eagerly():
            means, proceed = self._complete(dense)
        else:
            types = [*(gradient.dtype for gradient in dense), tf.bool]
            *means, proceed = tf.py_function(self._called_back, dense, types, name="edl_reduce")
            for mean, gradient in zip(means, dense, strict=True):
                mean.set_shape(gradient.shape)
        found = iter(means)
        return [None if gradient is None else next(found) for gradient in gradients], proceed

    def _called_back(self, *gradients: Any) -> list[Any]:
        """From a thread of TensorFlow's, while the training thread waits for the graph."""
        try:
            with training_here():
                means, proceed = self._complete(list(gradients))
        except UsageError as error:
            # Told once, and it goes on: it is another thread that trains.
            if self._refused or not raise_in(self._thread, error):
                process.hide(error)
                raise
            self._refused = True
            means, proceed = list(gradients), False
        except BaseException as error:  # noqa: BLE001 - raised by the training thread
            self._pending = error
            self._done_step = self._worker.begun
            means, proceed = list(gradients), False
        return [*means, tf.constant(proceed)]

    def _complete(self, gradients: list[Any]) -> tuple[list[Any], bool]:
        """The means over the global batch, and whether to apply them.

        When a worker dies meanwhile, the survivors complete the step with the gradients that
        they hold. When others had completed it already, their state is in the model: then this
        worker must change nothing.

        Raises:
            UsageError: no batch was handed out for this step, or it was reduced already.
        """
        worker = self._worker
        if self._feed.trial and not worker.begun:
            return gradients, False
        if not worker.step_open:
            raise UsageError(
                "gradients were applied without a batch from edl; take each training batch from "
                "edl.Dataset (edl.next_batch() or edl.elastic_shard_generator in a graph), and "
                "apply gradients once for it"
            )
        if self.done:
            raise UsageError(
                "gradients were applied twice for one batch; add up the losses, then apply the "
                "gradients once"
            )
        means, proceed = gradients, True
        while not worker.rehearsing:
            try:
                means, proceed = self._reduce(gradients)
                break
            except RingBroken as error:
                if not self.repairs:
                    raise RingError(
                        f"a step was interrupted, and this session cannot be repaired inside of "
                        f"it, for it runs one operation at a time; use edl.Session ({error})"
                    ) from error
                if worker.recover(error):
                    means, proceed = gradients, False
                    break
        self._done_step = worker.begun
        points.reached("reduced")
        return means, proceed

    def _reduce(self, gradients: list[Any]) -> tuple[list[Any], bool]:
        worker = self._worker
        records = worker.records()
        total = global_samples(records)
        if worker.ring.alone or total == 0:
            return gradients, total > 0
        sent = [self._weighted(gradient) for gradient in gradients]
        points.reached("gradient")
        try:
            averages = average(sent)
        except CollectiveFailed as error:
            raise RingBroken(worker.generation, str(error)) from error
        correction = average_correction(worker.batch_size, len(records), total)
        if correction != 1.0:
            averages = [mean * tf.cast(correction, mean.dtype) for mean in averages]
        return [
            mean if mean.dtype == gradient.dtype else tf.cast(mean, gradient.dtype)
            for mean, gradient in zip(averages, gradients, strict=True)
        ], True

    def _weighted(self, gradient: Any) -> Any:
        """This worker's part of the sum; the gradient itself when nothing has to be changed."""
        samples, wire = self._worker.samples, WIRE_DTYPE.get(gradient.dtype, gradient.dtype)
        if samples == 0:  # 0 * inf would be nan
            return tf.zeros_like(gradient, dtype=wire)
        weight = send_weight(samples, self._worker.batch_size)
        sent = gradient if gradient.dtype == wire else tf.cast(gradient, wire)
        return sent if weight == 1.0 else sent * tf.cast(weight, wire)
