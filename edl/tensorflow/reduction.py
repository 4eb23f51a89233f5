"""Reduce the gradients of a step to their means over the global batch: all of them or none.

In a graph each gradient is an operation of its own, on its way while backward computes the next.
The graph calls back into this process twice (docs/adr/0008): :meth:`GradientReduction._begin` when
the first gradient is there, and :meth:`~GradientReduction._end` when all are reduced, or some have
failed. After the second call a loop in the graph can send the local gradients again, in a ring that
was repaired meanwhile. The number of workers is not in the graph, so no change of membership traces
it anew. With several optimizers the gradients of one are reduced and applied before those of the
next are reduced, in the next step of the same batch. :mod:`edl.step.engine` decides whether a step
is applied, sent again or skipped.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from edl.binding.loop import RandomNumbers
from edl.binding.process import classify_error, raise_in
from edl.binding.reduction import NOTHING, Branch, Looked, NoiseMeter, StepReduction
from edl.binding.replica import few
from edl.errors import RingBroken, UsageError
from edl.job.stall import FOR_GRADIENTS
from edl.ring.ring import CollectiveFailed
from edl.step.engine import StepState
from edl.step.weighting import Averaging, Weights
from edl.tensorflow import collectives
from edl.tensorflow.collectives import allreduce_average, check_no_xla, having
from edl.tensorflow.feed import PipelineBatchSource
from edl.tensorflow.logical import LogicalReduction
from edl.tensorflow.variables import plain
from edl.worker import activity
from edl.worker.worker import Worker

# ------------------------------------------------------------
# Measure the squared norms of TensorFlow's gradients, for the gradient noise scale.
#
# A graph hands its gradients to Python in the steps in which a measurement is due, and in no
# others. For an optimizer of Adam's kind, a gradient g is measured as g / (sqrt(v) + epsilon),
# where v is Adam's mean of squared gradients after bias correction, and epsilon its constant. Of a
# gradient with 4,096 numbers or more one eighth is read, another one each time, and counts eight
# times.

MIN_STEPS = 5  # before that Adam's v is of too few gradients
Array = npt.NDArray[Any]


class KerasNoise(NoiseMeter):
    optimizer: Any = None  # of Keras; None if the script has another kind

    def show_reduced(
        self, own: Sequence[Any], mean: Sequence[Any], variables: Sequence[Any]
    ) -> None:
        denominators = self._denominators(variables)
        self.show(lambda: self._seen(own, denominators), lambda: self._seen(mean, denominators))

    def _seen(self, gradients: Sequence[Any], denominators: Sequence[Array | None]) -> Looked:
        seen = []
        for gradient, denominator in zip(gradients, denominators, strict=True):
            numbers, times = self._part(gradient)
            seen.append((numbers if denominator is None else numbers / denominator, times))
        return seen

    def _part(self, tensor: Any) -> tuple[Array, int]:
        """Return the numbers to measure in this step, flat, and how often they count."""
        numbers = _array(tensor).reshape(-1)
        part, times = self._looked_at(len(numbers))
        return numbers[part], times

    def _denominators(self, variables: Sequence[Any]) -> Sequence[Array | None]:
        """Return sqrt(v) + epsilon for the measured numbers of each gradient; None: 1."""
        optimizer = getattr(self.optimizer, "inner_optimizer", self.optimizer)
        velocities = getattr(optimizer, "_velocities", None)
        if not velocities or getattr(optimizer, "beta_2", None) is None:
            return [None] * len(variables)
        steps = int(_array(optimizer.iterations))
        if steps < MIN_STEPS:
            return [None] * len(variables)
        correction = 1.0 - float(optimizer.beta_2) ** steps
        places = {id(one): place for place, one in enumerate(optimizer._trainable_variables)}
        found: list[Array | None] = []
        for place in (places.get(id(variable)) for variable in variables):
            if place is None:
                found.append(None)
                continue
            squares = self._part(velocities[place])[0] / correction
            found.append(np.asarray(np.sqrt(squares) + float(optimizer.epsilon)))
        return found

    def _unit(self) -> float:
        # Of a LossScaleOptimizer, which has scaled the gradients.
        scale = getattr(self.optimizer, "dynamic_scale", None)
        return 1.0 if scale is None else float(_array(scale)) ** 2

    def _square(self, gradients: Looked) -> float:
        return float(sum(times * float(np.vdot(each, each)) for each, times in gradients))


def _array(tensor: Any) -> Array:
    array = np.asarray(tensor.numpy() if hasattr(tensor, "numpy") else tensor)
    return array.astype(np.float32) if array.dtype.itemsize < 4 else array


Answer = TypeVar("Answer")
APPLIED = "_edl_update"  # of a graph: the update of the optimizer that was reduced last
END, AGAIN = REDUCED = ("edl_end", "edl_reduce")  # call backs, as the operations are named

SEVERAL = (
    "layers with synchronized=True work with one edl.Optimizer that makes one update for each "
    "batch; with several, leave synchronized=True out, so that the statistics are each worker's own"
)


class GradientReduction:
    def __init__(self, worker: Worker, feed: PipelineBatchSource) -> None:
        self._worker, self._feed = worker, feed
        self._reduction = StepReduction(worker)
        self._pending: BaseException | None = None  # it showed inside a graph
        self._expected = 0  # gradients in the graph
        self.noise = KerasNoise(worker)
        self._bare: list[str] = []  # variables without a gradient
        self._without_gradient: list[bool] = []  # of each variable, whether it has none
        self._variables: list[Any] = []
        self.with_gradient: set[int] = set()  # ids of variables that have had a gradient
        self._traced = self._early = False  # what sends from Python is built; a tape asks
        activity.waits_unseen(self._unseen)
        self.logical: LogicalReduction | None = None  # if the job has logical workers
        self._thread = threading.get_ident()  # the one that trains
        self._one_at_a_time = threading.Lock()

    def keep_apart(
        self,
        buffers: Callable[[], Mapping[str, Any]],
        numbers: RandomNumbers,
        check: Callable[[], None],
    ) -> None:
        self.logical = LogicalReduction(self._worker, self._reduction, buffers, numbers, check)

    def cannot_repair(self, reason: str) -> None:
        """Let this worker end with a RingError that gives `reason` if a ring breaks in a step."""
        self._reduction.part.cannot_repair = reason

    @property
    def done(self) -> bool:
        """Whether the gradients of the batch that was handed out last are reduced or not needed."""
        return self._reduction.done

    @property
    def is_multi(self) -> bool:
        return len(self._worker.loader.engine.parts) > 1

    def end_step(self) -> None:
        self.raise_pending()
        if self._worker.loader.open and self._reduction.step.is_decided:
            if self.logical is not None:
                self.logical.end_step()
            if self.is_multi:
                self._worker.loader.end()
            else:
                self._reduction.end_step()

    def raise_pending(self) -> None:
        """Raise the error that occurred inside a graph, where it would become TensorFlow's."""
        pending, self._pending = self._pending, None
        if pending is not None:
            raise pending

    def reduce(
        self, gradients: Sequence[Any], variables: Sequence[Any], early: bool = False
    ) -> tuple[list[Any], Any]:
        """Return the means of gradients over the global batch, and whether to apply them.

        In a graph all are tensors. A variable has a gradient on all workers, or None on all.
        `early`: a tape asks, and the optimizer, which applies them, asks `applies_early`.
        """
        local = [
            collectives.empty(variable) if gradient is None else tf.convert_to_tensor(gradient)
            for gradient, variable in zip(gradients, variables, strict=True)
        ]
        bare = [gradient is None for gradient in gradients]
        self._bare = [str(v.name) for v, none in zip(variables, bare, strict=True) if none]
        self._without_gradient, self._variables = bare, list(variables)
        self.with_gradient |= {id(plain(v)) for v in having(variables, bare)}
        self._early = early
        if not tf.executing_eagerly():
            check_no_xla()
        if tf.executing_eagerly():
            means, proceed = self._complete(local)
        elif collectives.AVAILABLE and self.logical is None:
            computed = [each for each, none in zip(local, bare, strict=True) if not none]
            means, proceed = self._in_graph(local, computed[-1:])
        else:
            *means, proceed = self._from_python_in_graph(local)
        return [None if none else mean for mean, none in zip(means, bare, strict=True)], proceed

    def applies_early(self) -> bool:
        """Return whether to apply the gradients that a tape has reduced; call it once in a step."""
        if self._feed.is_trial:
            return False
        if self.logical is not None:
            self.logical.check_rates(self.noise.optimizer)
            if self.logical.is_kept and not self.done:  # more logical workers follow
                return False
        if not self.done:
            raise UsageError(
                "gradients were applied that no edl.DistributedGradientTape has computed for this "
                "batch; take each batch from edl.Dataset, compute its gradients and apply them"
            )
        if self._reduction.step.state is StepState.APPLIED:
            raise UsageError("apply the gradients of all variables in one apply_gradients()")
        return self._reduction.apply()

    def applies_early_in_graph(self) -> Any:

        def early() -> Any:
            return np.bool_(self.from_graph(self.applies_early, False))

        proceed = tf.numpy_function(early, [], tf.bool)
        proceed.set_shape(())
        return proceed

    # --- inside of the forward and backward passes

    def exchange(self) -> Callable[[bytes], list[bytes]] | None:
        """Return what exchanges messages in the open step, and repairs a ring; None: alone."""
        if self._feed.is_trial or not self._reduction.exchanges:
            return None
        if self.is_multi:
            raise UsageError(SEVERAL)
        return partial(self._reduction.exchange, hold=collectives.hold)

    # --- in a graph

    def _in_graph(self, local: list[Any], first: list[Any]) -> tuple[list[Any], Any]:
        """Add operations to the graph that reduce `local`, after what `first` waits for.

        That is the gradient that backward computes first, as a rule that of the last variable.
        """
        self._expected = len(local)
        if (before := getattr(tf.compat.v1.get_default_graph(), APPLIED, None)) is not None:
            first = [*first, before]
        early = self._early

        def end() -> Any:
            return self._end(early)

        with tf.control_dependencies(first):
            begun = tf.numpy_function(self._begin, [], tf.bool, name="edl_begin")
        with tf.control_dependencies([begun]):
            averages = [
                collectives.average(collectives.on_wire(each), number, self._reduction.number)
                for number, each in enumerate(local)
            ]
        with tf.control_dependencies(averages):
            branch = tf.numpy_function(end, [], tf.int64, name=END)
        branch.set_shape(())
        branch, *means = tf.cond(
            tf.equal(branch, int(Branch.AGAIN)),
            lambda: self._again(local, end),
            lambda: (branch, *collectives.typed(averages, local)),
        )
        shown = self._show_in_graph(branch, local, means)
        with tf.control_dependencies([shown]):
            applies = tf.equal(branch, int(Branch.APPLY))
            return means, tf.logical_or(applies, tf.equal(branch, int(Branch.SHOW)))

    def _show_in_graph(self, branch: Any, local: list[Any], means: list[Any]) -> Any:
        bare = self._without_gradient
        variables = having(self._variables, bare)

        def show(*tensors: Any) -> Any:
            own, mean = (
                having(tensors[: len(local)], bare),
                having(tensors[len(local) :], bare),
            )
            self.from_graph(lambda: self.noise.show_reduced(own, mean, variables), None)
            return np.int64(0)

        def shown() -> Any:
            done = tf.numpy_function(show, [*local, *means], tf.int64, name="edl_noise")
            done.set_shape(())
            return done

        measures = tf.equal(branch, int(Branch.SHOW))
        return tf.cond(measures, shown, lambda: tf.constant(0, tf.int64))

    def _again(self, local: list[Any], end: Callable[[], Any]) -> tuple[Any, ...]:
        def attempt(_branch: Any, *_means: Any) -> tuple[Any, ...]:
            scalars = [tf.float64, tf.float64]
            weight, correction = tf.numpy_function(self._begin_again, [], scalars, name=AGAIN)
            weight.set_shape(())
            correction.set_shape(())
            averages = []
            for number, gradient in enumerate(local):
                sent = collectives.weighted(collectives.on_wire(gradient), weight)
                averages.append(collectives.average(sent, number, self._reduction.number))
            with tf.control_dependencies(averages):
                branch = tf.numpy_function(end, [], tf.int64, name=END)
            branch.set_shape(())
            means = [each * tf.cast(correction, each.dtype) for each in averages]
            return (branch, *collectives.typed(means, local))

        found: tuple[Any, ...] = tf.while_loop(
            lambda branch, *_: tf.equal(branch, int(Branch.AGAIN)),
            attempt,
            (tf.constant(int(Branch.AGAIN), tf.int64), *local),
            shape_invariants=(tf.TensorShape(()), *(gradient.shape for gradient in local)),
        )
        return tuple(found)

    def _begin(self) -> Any:
        """Begin the step's reduction; called by the graph when its first gradient is computed.

        True: all workers have full batches, so the gradients are sent as they are. False: they are
        returned unsent, and `_end` decides whether they are sent later, weighted.
        """

        def begin() -> bool:
            if self._feed.is_trial or self._is_broken_off:
                return False
            self._check()
            sends = self._reduction.begin()
            self._send(sends)
            return sends

        collectives.start_sending(False)
        return np.bool_(self.from_graph(begin, False))

    def _begin_again(self) -> tuple[Any, Any]:
        def begin() -> Weights:
            weights = self._reduction.agree()
            self._send(weights.sends)
            return weights

        collectives.start_sending(False)
        weights = self.from_graph(begin, NOTHING)
        return np.float64(weights.sent), np.float64(weights.received)

    def _send(self, sends: bool) -> None:
        collectives.start_sending(sends)
        if sends:
            self._reduction.sending()

    def _end(self, early: bool) -> Any:
        """Return a `Branch`: what the graph does after its gradients are reduced or have failed."""

        def end() -> Branch:
            if self._is_broken_off:
                return Branch.SKIP
            branch = self._reduction.end(self._received)
            shows = branch is Branch.APPLY and not self._feed.is_trial and self.noise.wants
            if branch is not Branch.AGAIN and not early and not self._feed.is_trial:
                self._begin_update()
            return Branch.SHOW if shows else branch

        return np.int64(self.from_graph(end, Branch.SKIP))

    def _begin_update(self) -> None:
        # Of several optimizers, each update counts, and the next gradients are of another step.
        if self.is_multi and self._reduction.step.is_decided:
            self._reduction.apply()

    def from_graph(self, act: Callable[[], Answer], otherwise: Answer) -> Answer:
        """Call `act` for a graph, in a thread of TensorFlow's, while the training thread waits.

        If it raises an error, that thread raises it, and the graph goes on with `otherwise`.
        """
        try:
            with self._one_at_a_time, activity.training_here():
                return act()
        except UsageError as error:
            # Reported once, and it goes on: it is another thread that trains.
            refused = self._reduction.step.state is StepState.REFUSED
            if refused or not raise_in(self._thread, error):
                raise
            self._reduction.refuse()
            return otherwise
        except BaseException as error:  # noqa: BLE001 - raised by the training thread
            self._pending = error
            self._reduction.fail()
            if not self._worker.ring.is_open:  # the graph goes on, and its operations need one
                self._worker.ring.build_alone()
            return otherwise

    def _unseen(self) -> str | None:
        # No thread of Python's waits.
        waits = self._reduction.is_sending and collectives.sent() >= self._expected
        return FOR_GRADIENTS if waits else None

    # --- from Python

    def _complete(self, gradients: list[Any]) -> tuple[list[Any], bool]:
        if self._feed.is_trial:
            return gradients, False
        self._check()
        if self.logical is not None:
            if not self._early:
                self.logical.check_rates(self.noise.optimizer)
            return self.logical.complete(gradients, self._without_gradient, self._variables)
        means = self._reduction.complete(lambda weights: self._averages(gradients, weights))
        if means is None:
            self._trace(gradients)
            means = gradients
        applies = self._reduction.step.state is StepState.REDUCED
        if applies and self.noise.wants:
            rows = gradients, means, self._variables
            shown = [having(row, self._without_gradient) for row in rows]
            self.noise.show_reduced(*shown)
        if not self._early:
            self._begin_update()
        return means, applies

    def _averages(self, gradients: list[Any], weights: Weights) -> list[Any]:
        sent = [collectives.on_wire(gradient) for gradient in gradients]
        if weights.averaging is Averaging.WEIGHTED:
            weight = tf.constant(weights.sent, tf.float64)
            sent = [collectives.weighted(each, weight) for each in sent]
        if collectives.AVAILABLE:
            self._send(True)
            averages = collectives.averages(sent, self._reduction.number)
            self._received()
        else:
            self._reduction.sending()
            try:
                averages = allreduce_average(sent)
            except CollectiveFailed as error:
                raise RingBroken(self._worker.generation, str(error)) from error
        if weights.averaging is Averaging.WEIGHTED:
            averages = [mean * tf.cast(weights.received, mean.dtype) for mean in averages]
        return collectives.typed(averages, gradients)

    def _trace(self, gradients: list[Any]) -> None:
        """Build the graph by which Python averages, once, while nobody waits for this worker."""
        if collectives.AVAILABLE and not self._traced:
            self._send(False)
            sent = [collectives.on_wire(gradient) for gradient in gradients]
            collectives.averages(sent, self._reduction.number)
        self._traced = True

    def _from_python_in_graph(self, local: list[Any]) -> list[Any]:
        """Add one operation to the graph that reduces `local`; return the means, whether to apply.

        It is for logical workers, and for a Horovod without edl's patch.
        """

        def complete(*gradients: Any) -> list[Any]:
            def act() -> tuple[list[Any], bool]:
                if self._is_broken_off:
                    return list(gradients), False
                if self.logical is not None:  # a graph that updates, too, asks nothing later
                    self.logical.check_rates(self.noise.optimizer)
                return self._complete(list(gradients))

            means, proceed = self.from_graph(act, (list(gradients), False))
            return [*means, tf.constant(proceed)]

        types = [*(gradient.dtype for gradient in local), tf.bool]
        with tf.control_dependencies([] if self.logical is None else self.logical.order()):
            *means, proceed = tf.py_function(complete, local, types, name=AGAIN)
        for mean, gradient in zip(means, local, strict=True):
            mean.set_shape(gradient.shape)
        proceed.set_shape(())
        return [*means, proceed]

    # --- in both

    @property
    def _is_broken_off(self) -> bool:
        return self._reduction.step.state in (StepState.REFUSED, StepState.ENDED)

    def _check(self) -> None:
        if self.is_multi:  # each reduction is a step of its own
            parts = self._worker.loader.engine.parts
            if any(each.step.state is StepState.REDUCED for each in parts):
                raise UsageError(
                    "with several optimizers, apply the gradients that an "
                    "edl.DistributedGradientTape has computed before the next one computes others"
                )
            if self._worker.loader.engine.is_between_parts:
                self._worker.loader.next_part()
        if not self._worker.loader.open:
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

    def _received(self) -> None:
        failure = collectives.failure()
        if failure is None:
            return
        if isinstance(found := classify_error(failure), UsageError):
            here = f"here none for {few(self._bare)}" if self._bare else "here each has one"
            raise UsageError(f"{found}; the same variables must have a gradient on all: {here}")
        raise RingBroken(self._worker.generation, failure)
