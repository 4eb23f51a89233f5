"""Define ``edl.LRTuner``, which tunes the learning rate in training, the same on all workers.

The rate stays a variable of the Keras optimizer, which is set right before each update, in the
graph too, when every worker knows how many samples that update has. The loss is evaluated on the
batch of the next update, so in ``fit`` the callback takes that batch from the data set, and passes
it to Keras' step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from edl.binding import process
from edl.binding.process import current_worker
from edl.contrib.lr_tuner import (
    Tuner,
    mean_loss,
    refuse,
    refuse_beside,
    refuse_several,
    refuse_unscaled,
    tuning_of,
)
from edl.schedules import EXPLORE
from edl.tensorflow import training
from edl.tensorflow.logical import drawing_kinds, kinds_of
from edl.tensorflow.lr_schedules import asked, scale_momentum, sets_rate, with_inner
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.variables import plain
from edl.worker.loader_steps import Update

NAME = "edl.LRTuner"  # among the tracked objects
# Their rate is no factor of the update.
UNSCALED = {"Adafactor", "Ftrl", "MultiOptimizer", "ScheduleFreeAdamW"}
# A change by more than so much of the rate is one of a momentum that holds it, too. A momentum of
# 0.9 lags behind the line to 0 by 10 updates. To correct it in each took 1.7 ms, where gradients
# took 8.0 (0.9 million weights, 32 samples, one core).
JUMP = 0.01


# ------------------------------------------------------------
# Evaluate the loss at other learning rates than the one with which an update was made.
#
# An update with another learning rate would have moved the variables along the same line, from
# where they were before the update through where they are after it, in proportion to that rate. So
# their values before and after are enough, whatever the optimizer is, as long as its update is a
# multiple of its learning rate. A value that is kept is no copy yet: TensorFlow makes one when the
# variable is written to.
#
# An evaluation leaves no trace: what is trained, and whatever else its graph may change
# (BatchNorm's averages, the state of Keras' random generators, metrics), is bit for bit what it
# was. All evaluations of an update begin with the same values of these, so dropout removes the same
# units at each point.


NOT_DENSE = (tf.RaggedTensor, tf.SparseTensor)


@dataclass(frozen=True)
class Evaluation:
    """The loss of one batch as a function without arguments, at other values of the weights."""

    graph: Any  # the concrete function of the loss
    batch: Any  # tensors in the structure that `graph` takes

    def __call__(self) -> float:
        loss = self.graph(self.batch)
        return mean_loss(loss.numpy() if hasattr(loss, "numpy") else loss)


class TracedLoss:
    """A loss function as a graph, traced once for batches of one structure and any size."""

    def __init__(self, loss_of: Callable[[Any], Any]) -> None:
        def loss(batch: Any) -> Any:
            return loss_of(batch)

        # As Keras traces a step. A `tf.function` inside of it has AutoGraph all the same.
        self._traced = tf.function(loss, autograph=False, reduce_retracing=True)
        self._known: set[int] = set()  # ids of graphs that are kept

    def trace(self, spec: Any) -> Any:
        graph = self._traced.get_concrete_function(spec)
        if id(graph) not in self._known:
            _refuse_operations(graph)
            self._known.add(id(graph))
        return graph

    def of(self, batch: Any) -> Evaluation:
        batch = tf.nest.map_structure(_tensor, batch)
        return Evaluation(self.trace(tf.nest.map_structure(_spec, batch)), batch)


class Probe:
    """The trained variables before and after one update, to compute losses between them."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = optimizer
        self._made = 0  # updates before this one
        self._before: list[Any] = []
        self._after: list[Any] = []
        self._move: Any = None

    @property
    def holds(self) -> bool:
        return bool(self._after)

    def begin(self) -> None:
        with context.eager_mode():
            self._made = self._updates()
            self._before, self._after = _values(self._parameters()), []

    def end(self) -> None:
        """Keep the variables' values after the update, which a LossScaleOptimizer may skip."""
        if self._before and self._updates() != self._made:
            self._after = _values(self._parameters())

    def forget(self) -> None:
        self._before, self._after = [], []

    def prepare(self, evaluation: Evaluation) -> None:
        """Evaluate the loss once, so that all graphs that `losses` needs are built."""
        now = _values(self._parameters())
        self._along(now, now, (0.0,), evaluation)

    def losses(self, at: Sequence[float], evaluation: Evaluation) -> list[float]:
        """Return the losses for each e in `at`, at a rate of (1 + e) times that of the update."""
        assert self.holds
        return self._along(self._before, self._after, at, evaluation)

    def _along(
        self, before: list[Any], after: list[Any], at: Sequence[float], evaluation: Evaluation
    ) -> list[float]:
        """Return the losses at points on a line: -1 is at `before`, 0 at `after`."""
        parameters = self._parameters()
        trained = {id(variable) for variable in parameters}
        others = [v for v in evaluation.graph.variables if id(v) not in trained]
        now, kept, found = _values(parameters), _values(others), []
        if self._move is None:

            @tf.function(autograph=False)  # type: ignore[untyped-decorator]
            def move(begin: list[Any], end: list[Any], part: Any) -> None:
                for variable, one, other in zip(parameters, begin, end, strict=True):
                    variable.assign(one + tf.cast(part, one.dtype) * (other - one))

            self._move = move
        try:
            for e in at:
                part = 1.0 + e
                # From the nearer end, where the sum is exact.
                ends = (before, after, part) if part < 0.5 else (after, before, 1.0 - part)
                self._move(*ends[:2], tf.constant(ends[2], tf.float64))
                found.append(evaluation())
                _put(others, kept)
        finally:
            _put(parameters, now)
            _put(others, kept)
        return found

    def _parameters(self) -> list[Any]:
        return [plain(variable) for variable in self._optimizer._trainable_variables]

    def _updates(self) -> int:
        return int(plain(self._optimizer.iterations).numpy())


def _values(variables: Sequence[Any]) -> list[Any]:
    return [variable.read_value() for variable in variables]


def _put(variables: Sequence[Any], values: Sequence[Any]) -> None:
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _tensor(value: Any) -> Any:
    return value if isinstance(value, NOT_DENSE) else tf.convert_to_tensor(value)


def _spec(tensor: Any) -> Any:
    """Return the `tf.TensorSpec` of `tensor` with None for the first dimension, the samples."""
    if isinstance(tensor, NOT_DENSE):
        return tf.type_spec_from_value(tensor)
    shape = tensor.shape
    return tf.TensorSpec([None, *shape[1:]] if shape.rank else shape, tensor.dtype)


def _refuse_operations(graph: Any) -> None:
    """Refuse the `graph` of a loss if it has operations that cannot be repeated."""
    # A worker that has not made the update evaluates no loss, so others would wait for it in a
    # collective. The variable of a tf.random.Generator is not among the graph's.
    definition = graph.graph.as_graph_def()
    for kind in kinds_of(definition):
        if kind.startswith("Horovod"):
            refuse(f"the loss has {kind} in it, which waits for workers that do not evaluate it")
    for kind in drawing_kinds(definition):
        refuse(
            f"the loss draws random numbers by {kind}, which cannot draw the same ones at each "
            "learning rate; use keras.random, or a layer of Keras"
        )


# ------------------------------------------------------------


class LRTuner(keras.callbacks.Callback):
    """A callback that tunes the learning rate of ``optimizer`` by the loss along its updates.

    With ``fit`` it is one of the callbacks, and the loss is that of the compiled model::

        optimizer = edl.Optimizer(tf.keras.optimizers.Adam(1e-3))
        tuner = edl.LRTuner(optimizer, total=len(images) * epochs)
        model.compile(optimizer, loss=...)
        model.fit(dataset, epochs=epochs, callbacks=[edl.KerasCallback(), tuner])

    In a loop, ``tuner.step((x, y))`` comes after ``apply_gradients``, and ``loss_of`` computes the
    loss.

    The tuner begins at a tenth of the optimizer's own rate. First it explores, with the highest
    rate for which the loss does not grow; then it exploits, with the rate that minimises the loss.
    When the rate changes by more than 1 %, a momentum that contains the rate, as that of ``SGD``,
    is scaled, too. Newcomers and checkpoints get its state.

    Args:
        optimizer: the ``edl.Optimizer`` of the script, its only one, of Keras.
        loss_of: ``loss_of(batch)`` returns the mean loss of a batch, from a forward pass as in
            training; it is traced. None, with ``fit``: the loss of the compiled model.
        total: samples of the whole training: those of an epoch times the epochs.
        explore: how many of these samples, at the beginning, the exploration takes; None: half of
            them.
        share: the largest fraction of the time of all steps that measurements take, above 0, up to
            1.
        max_lr: the highest learning rate that the tuner sets; None: 1,000 times the optimizer's
            own.

    Raises:
        UsageError: the optimizer is not edl's, has a schedule, or a rate that is no factor of its
            updates; it has a tuner already; the training has begun; or the other arguments are out
            of range.
    """

    edl_compared = False  # its script's, as a schedule; the learning rate itself is compared

    def __init__(
        self,
        optimizer: Any,
        loss_of: Callable[[Any], Any] | None = None,
        *,
        total: float,
        explore: float | None = None,
        share: float = 0.03,
        max_lr: float | None = None,
    ) -> None:
        super().__init__()
        now = training.current()
        _check(optimizer, now)
        self._inner = _innermost(optimizer)
        explore = EXPLORE * total if explore is None else explore
        rate = float(self._variable.numpy())
        tuning = tuning_of(rate, total, explore, share, max_lr)
        self._loss = None if loss_of is None else TracedLoss(loss_of)
        self._probe = Probe(optimizer)
        self._tuner = Tuner(tuning, rate, self._probe)
        self._prepared = False
        self._made = False  # this worker has made the last update
        self._batch: Any = None  # of the step that fit trains, where it is needed
        self._plain: Any = None  # Keras' train function
        process.track(TensorFlowReplica.check, {NAME: self})
        now.tuner = self
        self._set(current_worker().loader.update)

    @property
    def reason(self) -> str:
        """A sentence with the tuner's last decision about the learning rate, and why it was so."""
        return self._tuner.reason

    def step(self, batch: Any) -> None:
        """Tune the rate, after measuring the update before that of ``batch`` if it was chosen.

        All workers call it in a loop of the script's own, after the update of ``batch`` and before
        the next batch. With ``fit`` the callback calls it. To measure an update is to evaluate the
        loss of the next batch, which is ``batch``, at other learning rates of that update. If a
        measurement is made, the call waits for all workers, and the new rate holds from the next
        update on. ``batch`` is what ``loss_of`` takes.

        Raises:
            UsageError: the update of the batch is not made, or there is no ``loss_of``.
        """
        now, worker = training.current(), current_worker()
        now.finish_step()
        if worker.loader.open:
            refuse("call its step() after optimizer.apply_gradients()")
        loss = self._loss
        if loss is None:
            refuse("in a loop of your own, give it loss_of: the mean loss of a batch")
        if not self._prepared and batch is not None:
            self._prepare(batch)
        if worker.warming_up:
            return
        if not self._made:
            self._set(worker.loader.update)
        self._made = False
        self._tuner.end_update(worker, lambda at: self._probe.losses(at, loss.of(batch)))

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the tuning as JSON values, which are equal on all workers."""
        return self._tuner.snapshot()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` returned; a measurement under way is dropped."""
        self._tuner.restore(state_dict)

    def before_update(self) -> Sequence[Any]:
        """Set the learning rate right before an update; in a graph, add operations that do so.

        ``edl.Optimizer`` calls it, and lets the update wait for the tensors that it returns.
        """
        _refuse_schedule(self._inner)
        rate = tf.cast(asked(self._begin_update), self._variable.dtype)
        before = tf.convert_to_tensor(self._variable)
        jumps = tf.abs(rate - before) > JUMP * before

        def corrected() -> Any:
            scale_momentum(self._inner, rate / before)
            return tf.constant(True)

        if not tf.executing_eagerly():
            jumps = tf.cond(jumps, corrected, lambda: tf.constant(False))
        elif jumps:
            corrected()
        self._variable.assign(rate)
        return rate, jumps

    # --- with fit

    def check_callbacks(self, callbacks: Iterable[Any]) -> None:
        others = list(callbacks)
        if all(each is not self for each in others):
            refuse("give it to model.fit, among its callbacks")
        for each in others:
            if sets_rate(each):
                refuse_beside(type(each).__name__)

    def on_train_begin(self, logs: Any = None) -> None:
        """Trace the loss, if no batch is ragged or sparse, and replace Keras' train function."""
        now, model = training.current(), self.model
        _refuse_schedule(self._inner)
        if self._loss is None:
            self._loss = TracedLoss(_compiled(model))
        assert now.replica is not None
        now.replica.variables()  # builds the optimizer
        spec = now.newest_dataset.element_spec
        if all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec)):
            self._loss.trace(spec)
            self._prepare(
                tf.nest.map_structure(
                    lambda leaf: tf.zeros([size or 1 for size in leaf.shape], leaf.dtype), spec
                )
            )
        self._plain, model.train_function = model.train_function, self._train

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        trained, self._batch = self._batch, None
        self.step(trained)

    def on_train_end(self, logs: Any = None) -> None:
        self.model.train_function = self._plain

    def _train(self, arriving: Any) -> Any:
        if not self._tuner.measures:
            return self._plain(arriving)
        # Keras' function would take the batch inside of the graph, where Python cannot see it.
        self._batch = next(arriving)
        return self._plain(iter((self._batch,)))

    # --- in both

    @property
    def _variable(self) -> Any:
        return self._inner._learning_rate

    def _prepare(self, batch: Any) -> None:
        """Build the graphs of the loss outside of measured steps, while nobody waits for this."""
        assert self._loss is not None
        self._probe.prepare(self._loss.of(batch))
        self._prepared = True

    def _begin_update(self) -> np.float32:
        """Return the rate of the next update, in the thread that makes it; keep the variables."""
        worker = current_worker()
        update = worker.loader.update
        self._tuner.begin_update(worker, update)
        self._made = not worker.warming_up
        return np.float32(self._tuner.rate(update))

    def _set(self, update: Update) -> None:
        rate = np.float32(self._tuner.rate(update))
        if self._variable.numpy() != rate:
            self._variable.assign(rate)


def _check(optimizer: Any, now: training.Training) -> None:
    kind = type(optimizer).__name__
    if not is_elastic(optimizer):
        refuse("give it the optimizer of the job: optimizer = edl.Optimizer(optimizer, model)")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        refuse(f"it tunes optimizers of tf.keras.optimizers; this is a {kind} of a graph")
    if now.reduction.is_multi:
        refuse_several()
    if now.worker.logical:
        refuse("it measures whole batches, and --logical hands out pieces; leave that out")
    if now.worker.loader.begun:
        refuse("create it before the first batch")
    if now.tuner is not None:
        refuse_beside("another one")
    for one in with_inner(optimizer):
        if type(one).__name__ in UNSCALED:
            refuse_unscaled(type(one).__name__)
        for name in ("gradient_accumulation_steps", "ema_overwrite_frequency"):
            if getattr(one, name, None):
                refuse(
                    f"with {name} of {type(one).__name__} not every step is an update by its "
                    "learning rate; leave one of them out"
                )
    _refuse_schedule(_innermost(optimizer))


def _refuse_schedule(optimizer: Any) -> None:
    rate = optimizer._learning_rate
    if not isinstance(rate, keras.Variable):
        refuse_beside(getattr(rate, "__name__", type(rate).__name__))


def _innermost(optimizer: Any) -> Any:
    return [*with_inner(optimizer)][-1]


def _compiled(model: Any) -> Callable[[Any], Any]:
    if type(model).train_step is not keras.Model.train_step:
        refuse(f"{type(model).__name__} has a train_step of its own; give it loss_of")

    def loss_of(batch: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        said = {"training": True} if model._call_has_training_arg else {}
        return model._compute_loss(
            x=x, y=y, y_pred=model(x, **said), sample_weight=weights, training=True
        )

    return loss_of
