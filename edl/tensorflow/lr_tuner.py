"""Define ``edl.LRTuner``, which tunes the learning rate in training, the same on all workers.

:mod:`edl.binding.lr_tuner` describes what is measured when, and how all workers agree on it. The
learning rate stays a variable of the Keras optimizer, which is set right before each update, in the
graph too, when every worker knows how many samples that update has. If an update is to be measured,
the variables' values before and after it are kept. The loss is evaluated on the batch of the next
update, so in ``fit`` the callback takes that batch from the data set, and passes it to Keras' step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.binding import process
from edl.binding.lr_tuner import (
    Tuner,
    refuse,
    refuse_beside,
    refuse_several,
    refuse_unscaled,
    tuning_of,
)
from edl.binding.process import current_worker
from edl.schedules import EXPLORE
from edl.tensorflow import training
from edl.tensorflow.lr_schedules import asked, refuse_beside_policy, scale_momentum, with_inner
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.probe import Probe, TracedLoss, example_of
from edl.tensorflow.replica import TensorFlowReplica
from edl.worker.loader_steps import Update

NAME = "edl.LRTuner"  # among the tracked objects
# Their rate is no factor of the update.
UNSCALED = {"Adafactor", "Ftrl", "MultiOptimizer", "ScheduleFreeAdamW"}
# Of Keras and Horovod, and of edl's own for scripts of Horovod's.
SETS_RATE = {"LearningRateScheduler", "LearningRateScheduleCallback", "ReduceLROnPlateau"}
# A change by more than so much of the rate is one of a momentum that holds it, too. A momentum of
# 0.9 lags behind the line to 0 by 10 updates. To correct it in each took 1.7 ms, where gradients
# took 8.0 (0.9 million weights, 32 samples, one core).
JUMP = 0.01


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
        """Return the state of the tuning (rates, losses, decisions) as JSON values.

        It is equal on all workers.
        """
        return self._tuner.snapshot()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue from what :meth:`state_dict` has returned on another worker or for a checkpoint.

        A measurement that was under way here is dropped.
        """
        self._tuner.restore(state_dict)

    def before_update(self) -> Sequence[Any]:
        """Set the learning rate right before an update; in a graph, add operations that do so.

        ``edl.Optimizer`` calls it. If the rate changes by more than 1 %, a momentum that contains
        it is scaled by the same factor. If the update is to be measured, the variables' values are
        kept.

        Returns:
            Tensors that the update has to wait for (``tf.control_dependencies``); their values have
            no use.

        Raises:
            UsageError: the optimizer has been given a schedule.
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

    def on_train_begin(self, logs: Any = None) -> None:
        """Trace the loss, and replace Keras' train function by :meth:`_train` for this fit.

        The loss is not traced yet if batches are ragged or sparse.

        Raises:
            UsageError: the optimizer has been given a schedule; or there is no ``loss_of``, and the
                model has a ``train_step`` of its own.
        """
        now, model = training.current(), self.model
        _refuse_schedule(self._inner)
        if self._loss is None:
            self._loss = TracedLoss(_compiled(model))
        assert now.replica is not None
        now.replica.variables()  # builds the optimizer
        spec = now.newest_dataset.element_spec
        if all(isinstance(each, tf.TensorSpec) for each in tf.nest.flatten(spec)):
            self._loss.trace(spec)
            self._prepare(example_of(spec))
        self._plain, model.train_function = model.train_function, self._train

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Measure and tune after the update of the batch, by :meth:`step` with the kept batch.

        ``batch``, Keras' number, is not used.
        """
        trained, self._batch = self._batch, None
        self.step(trained)

    def on_train_end(self, logs: Any = None) -> None:
        """Restore the model's own train function, which the tuner has replaced for this ``fit``."""
        self.model.train_function = self._plain

    def _train(self, arriving: Any) -> Any:
        """Run Keras' train function on the next batch of the data set's iterator `arriving`."""
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
        """Set the optimizer's learning rate to that of an update that this worker has not made."""
        rate = np.float32(self._tuner.rate(update))
        if self._variable.numpy() != rate:
            self._variable.assign(rate)


def check_callbacks(tuner: LRTuner | None, callbacks: Iterable[Any]) -> None:
    """Refuse callbacks without the tuner, or with one that sets the learning rate, too."""
    others = list(callbacks)
    if tuner is None:
        policy = training.current().worker.follows()
        if policy is not None and policy.learning_rate is not None:
            refuse_beside_policy([each for each in others if _sets_rate(each)])
        return
    if all(each is not tuner for each in others):
        refuse("give it to model.fit, among its callbacks")
    for each in others:
        if _sets_rate(each):
            refuse_beside(type(each).__name__)


def _sets_rate(callback: Any) -> bool:
    return bool(SETS_RATE & {kind.__name__ for kind in type(callback).__mro__})


def _check(optimizer: Any, now: training.Training) -> None:
    kind = type(optimizer).__name__
    if not is_elastic(optimizer):
        refuse("give it the optimizer of the job: optimizer = edl.Optimizer(optimizer, model)")
    if not isinstance(optimizer, keras.optimizers.Optimizer):
        refuse(f"it tunes optimizers of tf.keras.optimizers; this is a {kind} of a graph")
    if now.reduction.several:
        refuse_several()
    _check_job(now)
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


def _check_job(now: training.Training) -> None:
    if now.worker.logical:
        refuse("it measures whole batches, and --logical hands out pieces; leave that out")
    if now.worker.loader.begun:
        refuse("create it before the first batch")
    if now.tuner is not None:
        refuse_beside("another one")


def _refuse_schedule(optimizer: Any) -> None:
    rate = optimizer._learning_rate
    if not isinstance(rate, keras.Variable):
        refuse_beside(getattr(rate, "__name__", type(rate).__name__))


def _innermost(optimizer: Any) -> Any:
    return [*with_inner(optimizer)][-1]


def _compiled(model: Any) -> Callable[[Any], Any]:
    """Return a function that returns the loss of a batch as `fit` computes it for `model`."""
    if type(model).train_step is not keras.Model.train_step:
        refuse(f"{type(model).__name__} has a train_step of its own; give it loss_of")

    def loss_of(batch: Any) -> Any:
        x, y, weights = keras.utils.unpack_x_y_sample_weight(batch)
        said = {"training": True} if model._call_has_training_arg else {}
        return model._compute_loss(
            x=x, y=y, y_pred=model(x, **said), sample_weight=weights, training=True
        )

    return loss_of
