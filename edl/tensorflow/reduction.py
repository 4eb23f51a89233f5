"""Gradients: reduced once a step, weighted, exact, all of them or none (promise 5).

In a graph each gradient is an operation of its own, on its way while backward computes the next
(:mod:`edl.tensorflow.gradient_ops`), between two calls back into this process (docs/adr/0008):
:meth:`GradientReduction._begin` when the first one is there, :meth:`~GradientReduction._end` when
all are reduced, or some have failed. In the second the ring can be repaired without the graph
noticing: the local gradients are still there to be sent again. Nor does the graph know how many
workers there are, so no change of membership traces it anew.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from edl.core.batching import Reduction, average_correction, reduction, send_weight
from edl.core.steprecord import StepRecord, global_samples
from edl.daemon import activity, points
from edl.daemon.worker import Worker
from edl.errors import RingBroken, RingError, UsageError
from edl.framework.interrupt import raise_in
from edl.framework.refusal import told_apart
from edl.ring.ring import CollectiveFailed
from edl.tensorflow import gradient_ops
from edl.tensorflow.collectives import WAITING, WIRE_DTYPE, average
from edl.tensorflow.feed import PipelineFeed

Told = TypeVar("Told")

END, AGAIN = REDUCED = ("edl_end", "edl_reduce")  # call backs, as the operations are named


class Verdict(IntEnum):
    """What becomes of a step, once its graph has done all that it can."""

    SKIP = 0  # nothing is applied
    APPLY = 1  # the means that the graph's operations have made
    AGAIN = 2  # first reduce the local gradients once more, from Python


# If nothing breaks, what becomes of a step, and whether the graph sends its gradients.
PROSPECTS = {
    Reduction.NONE: (Verdict.SKIP, False),
    Reduction.LOCAL: (Verdict.APPLY, False),
    Reduction.PLAIN: (Verdict.APPLY, True),
    Reduction.WEIGHTED: (Verdict.AGAIN, False),
}


def _needed(worker: Worker, records: Sequence[StepRecord]) -> Reduction:
    return reduction([record.samples for record in records], worker.batch_size)


class GradientReduction:
    """The gradients of one optimizer, step by step."""

    def __init__(self, worker: Worker, feed: PipelineFeed) -> None:
        self._worker = worker
        self._feed = feed
        self.repairs = True  # False where the variables cannot be reached inside of a step
        self._done_step = 0  # the newest step whose gradients are reduced, by Worker.begun
        self._pending: BaseException | None = None  # it showed inside a graph
        self._verdict = Verdict.SKIP  # of the step whose graph runs
        self._broken: RingBroken | None = None  # what the graph's operations met
        self._sending = False  # they are being reduced
        self._expected = 0  # gradients in the graph
        activity.waits_unseen(self._unseen)
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
        elif gradient_ops.AVAILABLE:
            means, proceed = self._in_graph(dense)
        else:
            *means, proceed = self._again_in_graph(dense)
        found = iter(means)
        return [None if gradient is None else next(found) for gradient in gradients], proceed

    # --- in a graph

    def _in_graph(self, local: list[Any]) -> tuple[list[Any], Any]:
        self._expected = len(local)
        with tf.control_dependencies(local[-1:]):  # as a rule the first that backward computes
            begun = tf.numpy_function(self._begin, [], tf.bool, name="edl_begin")
        with tf.control_dependencies([begun]):
            averages = [gradient_ops.average(each, number) for number, each in enumerate(local)]
        with tf.control_dependencies(averages):
            verdict = tf.numpy_function(self._end, [], tf.int64, name=END)
        verdict.set_shape(())
        *means, proceed = tf.cond(
            tf.equal(verdict, int(Verdict.AGAIN)),
            lambda: self._again_in_graph(local),
            lambda: [*averages, tf.equal(verdict, int(Verdict.APPLY))],
        )
        return means, proceed

    def _again_in_graph(self, local: list[Any]) -> list[Any]:
        types = [*(gradient.dtype for gradient in local), tf.bool]
        *means, proceed = tf.py_function(self._again, local, types, name=AGAIN)
        for mean, gradient in zip(means, local, strict=True):
            mean.set_shape(gradient.shape)
        proceed.set_shape(())
        return [*means, proceed]

    def _begin(self) -> Any:
        """The first gradient is there."""

        def begin() -> bool:
            self._verdict, self._sending, self._broken = Verdict.SKIP, False, None
            self._verdict, self._sending = self._prospect()
            return self._sending

        sends = self._from_graph(begin, False)
        gradient_ops.send(sends)
        if sends:
            points.reached("gradient")
        return np.bool_(sends)

    def _prospect(self) -> tuple[Verdict, bool]:
        """What will become of the step if nothing breaks, and whether gradients are sent."""
        worker = self._worker
        if self._is_trial():
            return Verdict.SKIP, False
        self._check()
        if worker.rehearsing:
            return Verdict.APPLY, False
        try:
            records = worker.records()
        except RingBroken as error:
            self._broken = error
            return Verdict.AGAIN, False
        return PROSPECTS[_needed(worker, records)]

    def _end(self) -> Any:
        """All gradients of the graph are reduced, handed on, or have failed."""

        def end() -> Verdict:
            sending, self._sending = self._sending, False
            if sending and (failure := gradient_ops.failure()) is not None:
                found = told_apart(failure)
                if isinstance(found, UsageError):
                    raise found
                self._broken = RingBroken(self._worker.generation, failure)
                return Verdict.AGAIN
            if self._verdict is Verdict.AGAIN or self._refused or self._is_trial():
                return self._verdict
            self._finish()
            return self._verdict

        verdict = self._from_graph(end, Verdict.SKIP) if self._pending is None else Verdict.SKIP
        return np.int64(verdict)

    def _again(self, *gradients: Any) -> list[Any]:
        def complete() -> tuple[list[Any], bool]:
            return self._complete(list(gradients), self._broken)

        means, proceed = self._from_graph(complete, (list(gradients), False))
        return [*means, tf.constant(proceed)]

    def _from_graph(self, act: Callable[[], Told], otherwise: Told) -> Told:
        """In a thread of TensorFlow's, while the training thread waits for the graph."""
        try:
            with activity.training_here():
                return act()
        except UsageError as error:
            # Told once, and it goes on: it is another thread that trains.
            if self._refused or not raise_in(self._thread, error):
                raise
            self._refused = True
            return otherwise
        except BaseException as error:  # noqa: BLE001 - raised by the training thread
            self._pending = error
            self._done_step = self._worker.begun
            return otherwise

    def _unseen(self) -> str | None:
        """For :mod:`edl.daemon.activity`: no thread of Python's waits for the graph's gradients."""
        waits = self._sending and gradient_ops.sent() >= self._expected
        return WAITING if waits else None

    # --- from Python

    def _is_trial(self) -> bool:
        """A session that does not know the job runs its graph for the first time."""
        return self._feed.trial and not self._worker.begun

    def _check(self) -> None:
        """Raise UsageError unless there is a batch whose gradients are yet to be reduced."""
        if not self._worker.step_open:
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

    def _finish(self) -> None:
        self._done_step = self._worker.begun
        points.reached("reduced")

    def _complete(
        self, gradients: list[Any], error: RingBroken | None = None
    ) -> tuple[list[Any], bool]:
        """The means over the global batch, and whether to apply them.

        When a worker dies meanwhile, the survivors complete the step with the gradients that
        they hold. When others had completed it already, their state is in the model: then this
        worker must change nothing.

        Args:
            error: the ring broke before.

        Raises:
            UsageError: no batch was handed out for this step, or it was reduced already.
        """
        worker = self._worker
        if self._is_trial():
            return gradients, False
        self._check()
        means, proceed = gradients, True
        while not worker.rehearsing:
            try:
                if error is not None:
                    raise error
                means, proceed = self._reduce(gradients)
                break
            except RingBroken as broken:
                error = None
                if not self.repairs:
                    raise RingError(
                        f"a step was interrupted, and this session cannot be repaired inside of "
                        f"it, for it runs one operation at a time; use edl.Session ({broken})"
                    ) from broken
                if worker.recover(broken):
                    means, proceed = gradients, False
                    break
        self._finish()
        return means, proceed

    def _reduce(self, gradients: list[Any]) -> tuple[list[Any], bool]:
        worker = self._worker
        records = worker.records()
        needed = _needed(worker, records)
        if needed in (Reduction.NONE, Reduction.LOCAL):
            return gradients, needed is Reduction.LOCAL
        sent = [self._weighted(gradient) for gradient in gradients]
        points.reached("gradient")
        try:
            averages = average(sent)
        except CollectiveFailed as error:
            raise RingBroken(worker.generation, str(error)) from error
        correction = average_correction(worker.batch_size, len(records), global_samples(records))
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
