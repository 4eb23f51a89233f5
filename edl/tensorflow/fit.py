"""Define ``edl.tensorflow.KerasCallback``, by which Keras' own training loop takes part in the job.

``fit`` reads its first epoch after ``on_train_begin``, where a newcomer has warmed up and joined. A
resize changes how many steps an epoch has, and if the data set simply ended, Keras would take the
steps of the first epoch for those of every one; so an epoch ends with Keras' ``stop_training``,
which is reset then. To see what the other callbacks change, KerasCallback runs before them, and
:class:`_LastCallback` after them:

=====================  =================================  ======================================
hook                   first: ``KerasCallback``           last: ``_LastCallback``
=====================  =================================  ======================================
``on_train_begin``     builds the model                   warms up, joins: the job's state
                                                          replaces what the others have set up
``on_epoch_begin``     begins the job's next epoch        in a newcomer that joined inside of it:
                                                          undoes what the others did again
``on_batch_end``       completes the step in the ledger   turns ``stop_training`` into a request
                                                          to the job; after the last batch,
                                                          metrics become the job's
``on_epoch_end``       other numbers become the job's     all agree whether to stop
``on_train_end``       compares the workers' states       ends the fit in the job, and saves
=====================  =================================  ======================================
"""

from __future__ import annotations

import logging
import sys
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.binding.loop import asked_length, average_buffers, batch_in_epoch, end_batch
from edl.errors import UsageError
from edl.events import TrainingStoppedDetails
from edl.job.script import DoneFit, FitIsDone
from edl.step.source import TrainingLength
from edl.tensorflow import training
from edl.tensorflow.collectives import turn_off_xla
from edl.tensorflow.dataset import ElasticDataset
from edl.tensorflow.keras_callbacks import (
    NAME,
    CallbackStates,
    EpochMetrics,
    GatedProgress,
    Writer,
    end_row,
    job_metrics,
    met,
    metrics_row,
    standing_in,
    watch_lists,
    with_progress,
)
from edl.tensorflow.lr_schedules import check_beside_policy, sets_rate
from edl.tensorflow.optimizer import is_elastic
from edl.tensorflow.training import PassedOver, build_model, check_stateless, history_among
from edl.text import counted
from edl.worker.progress import Receive

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Check the arguments and the model of `fit` from its callbacks, before it trains a wrong step.
#
# Keras tells its callbacks neither the data nor the number of steps, so they are read from the
# frame of the call of `fit` on the stack. If there is no such frame, no argument is checked.

_READ = ("x", "validation_data", "steps_per_epoch", "initial_epoch")

STEERED = (
    "{name} steers the training by {monitor!r}, a mean over the workers whose last bits depend on "
    "their number; with --logical give it monitor='val_loss' or another number of the validation, "
    "or leave out --logical"
)


def check_compiled(model: Any, now: training.Training) -> None:
    check_stateless(model, now.worker.is_shared)
    optimizer = model.optimizer
    if not is_elastic(optimizer) and not now.reduction.is_multi:  # which its train_step applies
        inner = getattr(optimizer, "inner_optimizer", None)
        advice = (
            "wrap the whole of it: edl.Optimizer(keras.optimizers.LossScaleOptimizer(...)), which "
            "Keras puts around the optimizer by itself under mixed_float16"
            if is_elastic(inner)
            else f"compile(optimizer=edl.Optimizer({type(optimizer).__name__}(...)))"
        )
        raise UsageError(
            f"the model is compiled with an optimizer that edl does not know: {advice}"
        )
    if getattr(model, "steps_per_execution", 1) != 1:
        raise UsageError("edl counts every step: compile the model with steps_per_execution=1")
    turn_off_xla(model)


def check_arguments(model: Any) -> int:
    frame, given = sys._getframe(), None
    while given is None:
        if (caller := frame.f_back) is None:
            return 0
        frame, names = caller, caller.f_locals
        if frame.f_code.co_name == "fit" and names.get("self") is model and "x" in names:
            given = {name: names.get(name) for name in _READ}
    data, validation = given["x"], given["validation_data"]
    if not isinstance(data, ElasticDataset):
        is_dataset = isinstance(data, tf.data.Dataset)
        kind = "another tf.data.Dataset" if is_dataset else f"a {type(data).__name__}"
        raise UsageError(
            f"model.fit was given {kind} to train on; give it the edl.Dataset, or "
            "what its map and prefetch return: anything else would be trained by every worker alike"
        )
    if any(
        isinstance(each, ElasticDataset)
        for each in (validation if isinstance(validation, list | tuple) else [validation])
    ):
        raise UsageError(
            "validation_data is the edl.Dataset that is trained on; give arrays or a "
            "tf.data.Dataset, which every worker evaluates as a whole"
        )
    if given["steps_per_epoch"] is not None:
        raise UsageError(
            "leave out steps_per_epoch: an epoch of an edl.Dataset is each of its samples once, "
            "whatever the number of workers. To train a number of steps, give "
            "edl.KerasCallback(max_steps=n) and as many epochs as that may take"
        )
    return int(given["initial_epoch"] or 0)


STOPPED = (
    "no more of this fit is trained, since it was stopped before the job was resumed ({why}); to "
    "train on, resume the job with a larger epochs"
)

STEPS_ARE_MADE = (
    "edl.KerasCallback(max_steps=n) counts the updates of the job over all fits, and it has made "
    "{made}: this fit would train nothing; give it a larger number, or epochs only"
)


class _EpochIsOver:
    """The class of `EPOCH_IS_OVER`, to which edl sets `stop_training` to end an epoch only."""

    # It counts as true, so Keras leaves its loop over the batches. A callback of the script that
    # wants to end the training sets True.
    def __bool__(self) -> bool:
        return True


EPOCH_IS_OVER = _EpochIsOver()


class KerasCallback(keras.callbacks.Callback):
    """The callback that lets ``model.fit`` train as one worker of the job.

    Give it among the callbacks, as in ``model.fit(dataset, epochs=10,
    callbacks=[edl.KerasCallback(), ...])``. A further ``fit`` of the model continues the same job:
    its epochs follow those of the fit before.

    ``dataset`` is an ``edl.Dataset``, and the model is compiled with an ``edl.Optimizer``. All
    workers are given the same callbacks in the same order, among which this one may stand anywhere.
    At the end of an epoch, the callbacks see metrics over the samples that all workers have trained
    in the epoch. Other numbers in the logs are averaged over the workers, weighted with the samples
    that each has trained.

    ``fit`` raises UsageError if the model was compiled with another optimizer, or if ``fit`` was
    given something else than an ``edl.Dataset``, or callbacks that differ between workers or cannot
    work in a job.

    Args:
        max_steps: training ends when the job has made this many updates (``edl.step()``, over all
            fits), even inside an epoch, on all workers alike; give ``fit`` at least as many epochs
            as these updates take. None: it ends after the epochs of ``fit``.

    Raises:
        UsageError: ``edl.init()`` was not called, or ``max_steps`` is not a whole number of at
            least 1.
    """

    def __init__(self, max_steps: int | None = None) -> None:
        super().__init__()
        if max_steps is not None:
            asked_length("edl.KerasCallback()", None, max_steps)
        self._training = training.current()
        self._max_steps = max_steps
        self._samples = 0  # trained here in this epoch
        self._whole: dict[str, Any] = {}  # numbers of the epoch that are the job's already
        self._last: _LastCallback | None = None
        self._params: dict[str, Any] = {}  # of all callbacks
        watch_lists(KerasCallback, KerasCallback._arranged)

    @property
    def last(self) -> _LastCallback:
        """The callback of edl's that runs last in the newest ``fit``; UsageError: there is none."""
        if self._last is None:
            raise UsageError("give edl.KerasCallback() to model.fit itself, among its callbacks")
        return self._last

    def _arranged(self, others: list[Any], model: Any) -> list[Any]:
        """Return all callbacks of `fit` in the order in which they run, as a new list."""
        # Those that write files or to the terminal do so on rank 0 only.
        now, worker = self._training, self._training.worker
        check_compiled(model, now)
        now.fit_with(model)
        if worker.warming_up and now.newest_dataset is not None:
            done, history = worker.fits.of_job().done, history_among(others)
            if len(done) > len(now.fit_calls.done):  # the job has done this fit: skip it
                passed = PassedOver(now.fit_calls, done, history, lambda: _build_all(now, model))
                return [passed, *([] if history is None else [history])]
        policy = worker.follows()
        if now.tuner is not None:
            now.tuner.check_callbacks(others)
        elif policy is not None and policy.learning_rate is not None:
            check_beside_policy([each for each in others if sets_rate(each)])
        if worker.logical:
            # Numbers of the validation are the same on any number of workers: each uses all data.
            kinds = keras.callbacks.EarlyStopping, keras.callbacks.ReduceLROnPlateau
            for each in others:
                if isinstance(each, kinds) and not str(each.monitor).startswith("val_"):
                    name = type(each).__name__
                    raise UsageError(STEERED.format(name=name, monitor=each.monitor))
        others = with_progress(others)
        standing = [standing_in(callback, worker) for callback in others]
        writers = [writer for writer in standing if writer is not None]
        self._last = _LastCallback(now, writers, self, history_among(others))
        self._last.states.follow(
            others,
            [
                (writer is None or writer.remembers) and callback is not now.tuner
                for writer, callback in zip(standing, others, strict=True)
            ],
            model,
        )
        shown = [writer or callback for writer, callback in zip(standing, others, strict=True)]
        return [self, *shown, self._last]

    def on_train_begin(self, logs: Any = None) -> None:
        """Check the arguments of ``fit``, begin a fit of the job, and create the model's variables.

        Raises:
            UsageError: there is no edl.Dataset, or ``fit`` was not given it to train on, or was
                given it to validate on, or was given ``steps_per_epoch`` or a list of callbacks
                that does not know the fit; or edl cannot create the variables.
        """
        if self.model is None or "epochs" not in (self.params or {}):
            raise UsageError(
                "fit was given a keras.callbacks.CallbackList, which does not know the model and "
                "the epochs of this fit; give it the callbacks themselves: model.fit(..., "
                "callbacks=[edl.KerasCallback(), ...])"
            )
        now = self._training
        if now.newest_dataset is None:
            raise UsageError("model.fit needs an edl.Dataset to train on")
        now.fit_calls.begin(check_arguments(self.model))
        now.steps.limit(self._max_steps)
        now.metrics = EpochMetrics(self.model)
        now.fitting = True
        if not now.reduction.is_multi:  # the models of these are known
            build_model(self.model, now.newest_dataset)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Begin the job's next epoch; UsageError: ``fit`` counts another one."""
        self._training.fit_calls.begin_epoch(epoch)
        self._training.steps.begin_epoch()
        self._samples, self._whole = 0, {}
        self.metrics.restore()
        self.last.before_epoch(epoch)

    @property
    def metrics(self) -> EpochMetrics:
        """The metrics of the model that ``fit`` trains, made anew in :meth:`on_train_begin`."""
        metrics = self._training.metrics
        assert metrics is not None
        return metrics

    @property
    def batch(self) -> int:
        """The job's index in its epoch, from 0, of the batch that was begun last."""
        return self._training.batch

    def begin_batch(self) -> int:
        """Begin a step of the job with the next batch, and return the batch's index in its epoch.

        Raises:
            UsageError: the epoch is over, or the batch before was not trained.
            SystemExit: with code 0: this worker leaves the job with a switch before the step.
        """
        now = self._training
        if not now.begin_step():
            raise UsageError("the epoch is over, and Keras goes on with it")
        progress = now.worker.loader.progress
        self._samples += now.worker.loader.batch_weight
        self.metrics.begin_batch(now.worker.loader.batch_weight)
        now.batch = batch_in_epoch(now.worker)
        if progress.source.known_total:  # a ring of another size may stand now
            self._params["steps"] = progress.iterations_now
        return now.batch

    def with_steps(self, params: dict[str, Any]) -> dict[str, Any]:
        """Return Keras' parameters of ``fit`` with the job's steps an epoch, None of a stream."""
        loader = self._training.worker.loader
        progress = loader.progress  # without data, on_train_begin says so
        total = progress.source.known_total if progress.attached else 0
        self._params = {**params, "steps": loader.iterations_of_epoch if total else None}
        return self._params

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Complete the step of the batch; UsageError: it is not from the edl.Dataset."""
        now = self._training
        if now.worker.loader.open and not (now.is_reduced or self.is_within_step):
            raise UsageError(
                "model.fit trained a batch that is not edl's; give it the edl.Dataset itself "
                "(or what its map and prefetch return)"
            )
        now.finish_step()
        self.metrics.end_batch()
        if not self.is_within_step:
            now.worker.loader.end_batch()

    @property
    def is_within_step(self) -> bool:
        """Whether a step is open whose next batch is that of another logical worker."""
        logical = self._training.reduction.logical
        return logical is not None and logical.is_kept and not self._training.is_reduced

    def end_batches(self, logs: Any) -> None:
        """Combine the metrics of all workers, which all call it after the epoch's last batch.

        Args:
            logs: the numbers that ``train_step`` has returned for this worker's last batch, by
                name; None: it has returned none. :meth:`on_epoch_end` replaces them.

        Raises:
            UsageError: the workers have different metrics.
        """
        worker = self._training.worker
        end_batch(worker)  # who has missed the last step gets what is kept here, not later
        average_buffers(worker)  # before the validation
        self._whole = self.metrics.of_job(logs or {}, worker, self._samples)

    def on_test_begin(self, logs: Any = None) -> None:
        """Let the metrics compute results from this worker's batches again, for the validation."""
        self.metrics.restore()  # fit has taken the numbers of the epoch

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Replace this worker's numbers in ``logs`` by the job's, and end this worker's epoch.

        A number that is no metric, such as ``val_loss``, becomes its mean over the workers,
        weighted with the samples that each has trained in the epoch. Arrays stay as they are.

        Raises:
            UsageError: the workers have numbers of different names.
        """
        now = self._training
        self.metrics.restore()
        now.feed.end()
        end_batch(now.worker)
        if self.model.stop_training is EPOCH_IS_OVER:
            self.model.stop_training = False
        others = {k: v for k, v in (logs or {}).items() if k not in self._whole}
        numbers = {k: float(v) for k, v in others.items() if np.ndim(v) == 0}
        rows = now.worker.exchange(metrics_row(now.worker.id, self._samples, numbers))
        if logs:
            logs.update({**self._whole, **job_metrics(rows, list(numbers))})

    def on_train_end(self, logs: Any = None) -> None:
        """Compare the states of all workers, but for a newcomer that has skipped the fit.

        Raises:
            StateDiffers: the workers' states differ, also after a resync, and the job ends.
            NewcomerDiffers: this worker is a newcomer whose state differs; the others go on.
        """
        now, loader = self._training, self._training.worker.loader
        now.fitting, self.model._initial_epoch = False, None
        if self.last.passed:
            return
        if not (self.last.stopped or now.steps.made_all_steps):
            loader.note_untrained()
        now.worker.fits.compare_states()


class _LastCallback(keras.callbacks.Callback):
    def __init__(
        self, now: training.Training, writers: list[Writer], first: KerasCallback, history: Any
    ) -> None:
        super().__init__()
        self.passed: tuple[DoneFit, ...] = ()  # the job's fits, if this newcomer skips one of them
        self.history = history
        self.stopped = ""  # why all workers have stopped this fit before its end
        self._training = now
        self._first = first
        self._writers = writers
        self._entered: dict[str, Any] | None = None  # the job's state, in the midst of an epoch
        if now.callback_states is None:
            now.callback_states = CallbackStates(now.worker)
        self.states = now.callback_states
        assert now.replica is not None
        now.replica.track({NAME: self.states})

    def set_params(self, params: Any) -> None:
        super().set_params(params)
        self.states.verbose = params.get("verbose", 0)
        self.states.on_verbose = self._show

    def _show(self, verbose: Any) -> None:
        for writer in self._writers:
            if isinstance(writer, GatedProgress):
                writer.set_params({**self.params, "verbose": verbose})

    def on_train_begin(self, logs: Any = None) -> None:
        """Warm up a newcomer, join the job, and set the epoch with which `fit` begins."""
        now, epochs = self._training, self.params["epochs"]
        asked = TrainingLength.asked(epochs + now.fit_calls.shift, now.steps.max_steps)
        now.worker.loader.progress.length = asked
        begin = epochs  # where fit looks for the epoch to begin with; so many: it runs none
        if not now.reduction.is_multi:
            assert now.replica is not None
            now.replica.variables()  # builds the optimizer, alike on newcomers, before a first step
        try:
            if now.worker.warming_up:
                self._warm_up()
            if now.worker.is_shared and not now.reduction.is_multi:
                # Newcomers compare names and shapes of their variables before they join.
                assert now.replica is not None
                now.worker.describe_model(now.replica.shapes)
            now.steps.enter()
            self.stopped = now.worker.loader.progress.fit_stopped
            if self.stopped:
                logger.warning("%s", STOPPED.format(why=self.stopped))
            elif not now.steps.made_all_steps:
                begin = now.fit_calls.next_epoch
            elif now.fit_calls.is_fresh:  # else the job was resumed after its end
                raise UsageError(STEPS_ARE_MADE.format(made=now.worker.step))
        except FitIsDone as error:
            self.passed = error.done
        self.model._initial_epoch = begin

    def before_epoch(self, epoch: int) -> None:
        """Keep a copy of the job's state if this worker has joined in the midst of `epoch`."""
        # The states of callbacks have begun the epoch, and Keras has them begin it again, which may
        # change them and the model. So `on_epoch_begin`, after all of them, restores the copy.
        assert self._training.replica is not None
        if self.states.begun == epoch:
            self._entered = self._training.replica.state()
            # What a callback had not made yet when the state came, it may make now.
            self._entered["tracked"][NAME] = self.states.received

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        entered, self._entered = self._entered, None
        if entered is not None:
            assert self._training.replica is not None
            self._training.replica.load(entered, Receive.ALL)
            self.states.received = {}
        self.states.begun = epoch
        self._training.feed.fit_iterates = True

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Set `stop_training` after the step in which the job ends the epoch or the training."""
        worker = self._training.worker
        self._take_back()
        if worker.loader.progress.stop:
            self._stop(worker.loader.progress.stop)
        elif self._training.steps.made_all_steps:
            progress = worker.loader.progress  # all workers are here, and know it
            progress.stop = f"the job was to make {counted(worker.step, 'update')}"
            self._stop(progress.stop)
        elif worker.loader.ledger.finished:
            self.model.stop_training = EPOCH_IS_OVER
        if self.model.stop_training:
            self._first.end_batches(logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Agree with all workers whether to stop, and whether rank 0 has written its files."""
        worker = self._training.worker
        if not worker.loader.progress.stop:
            self._take_back()
        wrote = worker.rank == 0
        now = met(worker.exchange(end_row(worker.id, worker.loader.wants_to_stop, wrote)))
        for writer in self._writers:  # the present rank 0 writes what a dead one has not
            writer.met(now.written)
        if now.stop and not worker.loader.progress.stop:
            self._stop(now.stop)

    def on_train_end(self, logs: Any = None) -> None:
        """Record this fit as done, with what callbacks have changed at its end, such as weights."""
        if self.passed:
            self._training.fit_calls.pass_over(self.passed, self.history)
        else:  # a limit of updates may be raised when the job is resumed
            made_all = self._training.steps.made_all_steps
            self._training.fit_calls.end(self.history, "" if made_all else self.stopped)

    def _take_back(self) -> None:
        """Turn a `stop_training` that a callback has set into a request to all workers."""
        # It goes with the next step record or at the end of the epoch: all stop after one step.
        if self.model.stop_training and self.model.stop_training is not EPOCH_IS_OVER:
            worker = self._training.worker
            if not worker.loader.wants_to_stop:
                logger.info("w%d wants to stop training: model.stop_training is set", worker.id)
            worker.loader.wants_to_stop = True
            self.model.stop_training = False

    def _stop(self, reason: str) -> None:
        self.model.stop_training, self.stopped = True, reason
        worker = self._training.worker
        message = training.STOP.format(step=worker.step, reason=reason)
        logger.info("%s", message)
        worker.log_event(TrainingStoppedDetails(), message)

    def _warm_up(self) -> None:
        """Train a newcomer's first batch alone before it joins the ring; this builds the graph."""
        now = self._training
        now.steps.warm_up()
        now.feed.fit_iterates = True
        arriving = iter(now.newest_dataset)
        try:
            if now.begin_step():
                self.model.train_function(arriving)
                now.finish_step()
        finally:
            now.feed.end()


def _build_all(now: training.Training, model: Any) -> None:
    """Create the variables of model and optimizer where a skipped fit has no first step for it."""
    if not now.reduction.is_multi:
        build_model(model, now.newest_dataset)
        assert now.replica is not None
        now.replica.variables()
