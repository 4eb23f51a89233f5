"""Gradients: reduced once a step, weighted, exact, all of them or none (promise 5).

In a graph each gradient is an operation of its own, on its way while backward computes the next
(:mod:`edl.tensorflow.gradient_ops`), between two calls back into this process (docs/adr/0008):
:meth:`GradientReduction._begin` when the first one is there, :meth:`~GradientReduction._end` when
all are reduced, or some have failed. In the second the ring can be repaired without the graph
noticing: the local gradients are still there to be sent again, by a loop in the graph. Nor does the
graph know how many workers there are, so no change of membership traces it anew.

Whatever a worker has gone through, it sends the same for the same step: as many tensors under the
same names. One that has to repeat a step meets others that begin it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, TypeVar

import numpy as np
import tensorflow as tf

from edl import failpoints
from edl.core.step.step_record import StepRecord, global_samples
from edl.core.step.weighting import Reduction, average_correction, reduction, send_weight
from edl.daemon import activity
from edl.daemon.worker import Worker
from edl.errors import RingBroken, RingError, UsageError
from edl.framework.horovod_errors import classify_error
from edl.framework.interrupt import raise_in
from edl.framework.state import few
from edl.ring.ring import CollectiveFailed
from edl.tensorflow import gradient_ops
from edl.tensorflow.collectives import WAITING, average
from edl.tensorflow.feed import PipelineFeed

Told = TypeVar("Told")

END, AGAIN = REDUCED = ("edl_end", "edl_reduce")  # call backs, as the operations are named


class Verdict(IntEnum):
    """What becomes of a step, once its graph has done all that it can."""

    SKIP = 0  # nothing is applied
    APPLY = 1  # the means that the graph's operations have made
    AGAIN = 2  # first send the local gradients once more


@dataclass(frozen=True)
class _Way:
    """How a step is reduced if nothing breaks. All but ``weight`` is the same on all workers."""

    verdict: Verdict
    sends: bool = False
    plain: bool = True  # both factors are 1 everywhere
    weight: float = 1.0  # of what is sent
    correction: float = 1.0  # of what comes back


SKIPPED = _Way(Verdict.SKIP)


class GradientReduction:
    """The gradients of one optimizer, step by step."""

    def __init__(self, worker: Worker, feed: PipelineFeed) -> None:
        self._worker = worker
        self._feed = feed
        self.repairs = True  # False where the variables cannot be reached inside of a step
        self.applies = False  # the gradients of the step that was reduced last count
        self._done_step = 0  # the newest step whose gradients are reduced, by Worker.begun
        self._applied_step = 0  # the newest one that they were applied in after that
        self._pending: BaseException | None = None  # it showed inside a graph
        self._verdict = Verdict.SKIP  # of the step whose graph runs
        self._broken: RingBroken | None = None  # what is to be repaired before anything is sent
        self._sending = False  # the graph's gradients are being reduced
        self._expected = 0  # gradients in the graph
        self._bare: list[str] = []  # variables without a gradient
        self._traced = False  # what sends from Python is built
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

    def reduce(self, gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], Any]:
        """Replace gradients by the means over the global batch, eagerly or in a graph.

        Args:
            gradients: tensors, ``IndexedSlices`` (which become dense), or None, which stays None.
                A variable has a gradient on all workers, or on none.
            variables: whose they are.

        Returns:
            The means, and whether to apply them: a scalar boolean tensor in a graph.
        """
        local = [
            _nothing(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        bare = [gradient is None for gradient in gradients]
        self._bare = [str(v.name) for v, none in zip(variables, bare, strict=True) if none]
        if tf.executing_eagerly():
            means, proceed = self._complete(local)
        elif gradient_ops.AVAILABLE:
            computed = [each for each, none in zip(local, bare, strict=True) if not none]
            means, proceed = self._in_graph(local, computed[-1:])
        else:
            *means, proceed = self._from_python_in_graph(local)
        return [None if none else mean for mean, none in zip(means, bare, strict=True)], proceed

    def applies_early(self) -> bool:
        """Whether to apply the gradients that were reduced before in this step; to ask once.

        Raises:
            UsageError: none were, or they are applied already.
        """
        if self._is_trial():
            return False
        if not self.done:
            raise UsageError(
                "gradients were applied that no edl.DistributedGradientTape has computed for this "
                "batch; take each batch from edl.Dataset, compute its gradients and apply them"
            )
        if self._applied_step == self._worker.begun:
            raise UsageError("apply the gradients of all variables in one apply_gradients()")
        self._applied_step = self._worker.begun
        return self.applies

    def applies_early_in_graph(self) -> Any:
        """The same as a scalar boolean tensor, when the graph runs."""

        def early() -> Any:
            return np.bool_(self._from_graph(self.applies_early, False))

        proceed = tf.numpy_function(early, [], tf.bool)
        proceed.set_shape(())
        return proceed

    # --- in a graph

    def _in_graph(self, local: list[Any], first: list[Any]) -> tuple[list[Any], Any]:
        """``first``: what backward computes first, as a rule that of the last variable."""
        self._expected = len(local)
        with tf.control_dependencies(first):
            begun = tf.numpy_function(self._begin, [], tf.bool, name="edl_begin")
        with tf.control_dependencies([begun]):
            averages = [
                gradient_ops.average(gradient_ops.on_wire(each), number)
                for number, each in enumerate(local)
            ]
        with tf.control_dependencies(averages):
            verdict = tf.numpy_function(self._end, [], tf.int64, name=END)
        verdict.set_shape(())
        verdict, *means = tf.cond(
            tf.equal(verdict, int(Verdict.AGAIN)),
            lambda: self._again(local),
            lambda: (verdict, *_typed(averages, local)),
        )
        return means, tf.equal(verdict, int(Verdict.APPLY))

    def _again(self, local: list[Any]) -> tuple[Any, ...]:
        """Send the local gradients once more, until a ring holds."""

        def attempt(_verdict: Any, *_means: Any) -> tuple[Any, ...]:
            scalars = [tf.float64, tf.float64]
            weight, correction = tf.numpy_function(self._begin_again, [], scalars, name=AGAIN)
            weight.set_shape(())
            correction.set_shape(())
            averages = []
            for number, gradient in enumerate(local):
                sent = gradient_ops.weighted(gradient_ops.on_wire(gradient), weight)
                averages.append(gradient_ops.average(sent, number))
            with tf.control_dependencies(averages):
                verdict = tf.numpy_function(self._end, [], tf.int64, name=END)
            verdict.set_shape(())
            means = [each * tf.cast(correction, each.dtype) for each in averages]
            return (verdict, *_typed(means, local))

        found: tuple[Any, ...] = tf.while_loop(
            lambda verdict, *_: tf.equal(verdict, int(Verdict.AGAIN)),
            attempt,
            (tf.constant(int(Verdict.AGAIN), tf.int64), *local),
            shape_invariants=(tf.TensorShape(()), *(gradient.shape for gradient in local)),
        )
        return tuple(found)

    def _begin(self) -> Any:
        """The first gradient is there."""

        def begin() -> bool:
            self._verdict, self._sending, self._broken = Verdict.SKIP, False, None
            self._verdict, self._sending = self._prospect()
            return self._sending

        sends = self._from_graph(begin, False)
        self._announce(sends)
        return np.bool_(sends)

    def _begin_again(self) -> tuple[Any, Any]:
        """What to multiply the gradients by before they are sent, and the averages."""

        def begin() -> _Way:
            self._verdict, self._sending = Verdict.SKIP, False
            way = self._agreed()
            self._verdict, self._sending = way.verdict, way.sends
            return way

        way = self._from_graph(begin, SKIPPED)
        self._announce(way.sends)
        return np.float64(way.weight), np.float64(way.correction)

    @staticmethod
    def _announce(sends: bool) -> None:
        gradient_ops.send(sends)
        if sends:
            failpoints.reached("gradient")

    def _prospect(self) -> tuple[Verdict, bool]:
        """What will become of the step if nothing breaks, and whether gradients are sent."""
        worker = self._worker
        if self._is_trial():
            return Verdict.SKIP, False
        self._check()
        if worker.warming_up:
            return Verdict.APPLY, False
        try:
            way = self._way(worker.records())
        except RingBroken as error:
            self._broken = error
            return Verdict.AGAIN, False
        return (way.verdict, way.sends) if way.plain else (Verdict.AGAIN, False)

    def _end(self) -> Any:
        """All gradients of the graph are reduced, handed on, or have failed."""

        def end() -> Verdict:
            sending, self._sending = self._sending, False
            if sending:
                try:
                    self._received()
                except RingBroken as error:
                    self._broken = error
                    return Verdict.AGAIN
            if self._verdict is Verdict.AGAIN or self._refused or self._is_trial():
                return self._verdict
            self._finish(self._verdict is Verdict.APPLY)
            return self._verdict

        verdict = self._from_graph(end, Verdict.SKIP) if self._pending is None else Verdict.SKIP
        return np.int64(verdict)

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
            self._done_step, self.applies = self._worker.begun, False
            if not self._worker.ring.is_open:  # the graph goes on, and its operations need one
                self._worker.ring.build_alone()
            return otherwise

    def _unseen(self) -> str | None:
        """For :mod:`edl.daemon.activity`: no thread of Python's waits for the graph's gradients."""
        waits = self._sending and gradient_ops.sent() >= self._expected
        return WAITING if waits else None

    # --- from Python

    def _complete(self, gradients: list[Any]) -> tuple[list[Any], bool]:
        """The means over the global batch, and whether to apply them.

        Raises:
            UsageError: no batch was handed out for this step, or it was reduced already.
        """
        if self._is_trial():
            return gradients, False
        self._check()
        self._broken = None
        while True:
            way = self._agreed()
            try:
                means = self._averages(gradients, way) if way.sends else gradients
                break
            except RingBroken as error:
                self._broken = error
        if not way.sends:
            self._trace(gradients)
        applies = way.verdict is Verdict.APPLY
        self._finish(applies)
        return means, applies

    def _averages(self, gradients: list[Any], way: _Way) -> list[Any]:
        sent = [gradient_ops.on_wire(gradient) for gradient in gradients]
        if not way.plain:
            weight = tf.constant(way.weight, tf.float64)
            sent = [gradient_ops.weighted(each, weight) for each in sent]
        if gradient_ops.AVAILABLE:
            self._announce(True)
            averages = gradient_ops.averages(sent)
            self._received()
        else:
            failpoints.reached("gradient")
            try:
                averages = average(sent)
            except CollectiveFailed as error:
                raise RingBroken(self._worker.generation, str(error)) from error
            failpoints.reached("averaged")
        if not way.plain:
            averages = [mean * tf.cast(way.correction, mean.dtype) for mean in averages]
        return _typed(averages, gradients)

    def _trace(self, gradients: list[Any]) -> None:
        """Build once what sends, while nobody waits for it: in a warm-up, say."""
        if gradient_ops.AVAILABLE and not self._traced:
            self._announce(False)
            gradient_ops.averages([gradient_ops.on_wire(gradient) for gradient in gradients])
        self._traced = True

    def _from_python_in_graph(self, local: list[Any]) -> list[Any]:
        """Without operations that outlive the ring: reduce from Python when all are there."""

        def complete(*gradients: Any) -> list[Any]:
            def act() -> tuple[list[Any], bool]:
                return self._complete(list(gradients))

            means, proceed = self._from_graph(act, (list(gradients), False))
            return [*means, tf.constant(proceed)]

        types = [*(gradient.dtype for gradient in local), tf.bool]
        *means, proceed = tf.py_function(complete, local, types, name=AGAIN)
        for mean, gradient in zip(means, local, strict=True):
            mean.set_shape(gradient.shape)
        proceed.set_shape(())
        return [*means, proceed]

    # --- in both

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
                "gradients were computed and applied twice for one batch; add up the losses, then "
                "compute and apply the gradients once"
            )

    def _agreed(self) -> _Way:
        """How the step is reduced in a ring that stands: a broken one is repaired first.

        When a worker dies, the survivors complete the step with the gradients that they hold.
        When others had completed it already, their state is in the model: then this worker must
        change nothing.
        """
        worker = self._worker
        if worker.warming_up:
            return _Way(Verdict.APPLY)
        while True:
            error, self._broken = self._broken, None
            try:
                if error is not None:
                    raise error
                return self._way(worker.records())
            except RingBroken as broken:
                if not self.repairs:
                    raise RingError(
                        f"a step was interrupted, and this session cannot be repaired inside of "
                        f"it, for it runs one operation at a time; use edl.Session ({broken})"
                    ) from broken
                if worker.recover(broken):
                    return SKIPPED

    def _way(self, records: Sequence[StepRecord]) -> _Way:
        worker = self._worker
        needed = reduction([record.samples for record in records], worker.batch_size)
        if needed in (Reduction.NONE, Reduction.LOCAL):
            return _Way(Verdict.APPLY if needed is Reduction.LOCAL else Verdict.SKIP)
        return _Way(
            Verdict.APPLY,
            sends=True,
            plain=needed is Reduction.PLAIN,
            weight=send_weight(worker.samples, worker.batch_size),
            correction=average_correction(worker.batch_size, len(records), global_samples(records)),
        )

    def _received(self) -> None:
        """All gradients have come back.

        Raises:
            RingBroken: some have failed.
            UsageError: Horovod refuses them, on all workers alike.
        """
        failure = gradient_ops.failure()
        if failure is None:
            failpoints.reached("averaged")
            return
        if isinstance(found := classify_error(failure), UsageError):
            here = f"here none for {few(self._bare)}" if self._bare else "here each has one"
            raise UsageError(f"{found}; the same variables must have a gradient on all: {here}")
        raise RingBroken(self._worker.generation, failure)

    def _finish(self, applies: bool) -> None:
        self._done_step, self.applies = self._worker.begun, applies
        failpoints.reached("reduced")


def _nothing(variable: Any) -> Any:
    """What is sent for a variable without a gradient, so that all send the same.

    Of another shape than its gradient: where another worker has one, Horovod refuses both.
    """
    rank = tf.TensorShape(variable.shape).rank or 0
    return tf.zeros((1,) * (rank + 1), tf.as_dtype(variable.dtype))


def _typed(means: Sequence[Any], gradients: Sequence[Any]) -> list[Any]:
    """The means in the types of the gradients."""
    return [
        mean if mean.dtype == gradient.dtype else tf.cast(mean, gradient.dtype)
        for mean, gradient in zip(means, gradients, strict=True)
    ]
