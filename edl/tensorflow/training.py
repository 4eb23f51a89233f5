"""Hold the state of this process's training that the modules of ``edl.tensorflow`` share."""

from __future__ import annotations

import functools
import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras.src import backend

from edl.binding import process
from edl.binding import process as ending
from edl.binding.loop import (
    BatchSteps,
    DataCheck,
    RandomNumbers,
    asked_batching,
    attach_source,
    attach_stream,
    is_numbered,
    refuse_logical,
    stream_of,
)
from edl.binding.replica import few
from edl.data.dataset import Dataset
from edl.data.stream import StatefulStream
from edl.errors import UsageError
from edl.job.script import DoneFit, json_value
from edl.job.stall import AFTER_FIT
from edl.step.engine import Batch
from edl.step.source import SampleOrder, StreamSource
from edl.step.weighting import SEE
from edl.tensorflow.feed import PipelineBatchSource
from edl.tensorflow.keras_callbacks import CallbackStates, EpochMetrics
from edl.tensorflow.logical import ONE_MODEL, LogicalSeeder, seeded
from edl.tensorflow.lr_schedules import (
    check_alone,
    last_rates,
    present_rates,
    warn_of_a_changed_batch,
    with_inner,
)
from edl.tensorflow.reduction import GradientReduction
from edl.tensorflow.replica import NO_VARIABLES, Seeder, TensorFlowReplica, is_seed
from edl.tensorflow.source import Collate, Load, load_read, reader_of
from edl.tensorflow.variables import CREATED, check_known, plain, variables_by_name, variables_of
from edl.worker import activity
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Keep track of the calls of `model.fit` in a script: freeze, `fit`, unfreeze, `fit`.
#
# Keras numbers the epochs of each `fit` as its arguments say, and the job counts its epochs over
# all fits. A fit that the job has done already is passed over: Keras runs no epoch of it, and its
# `History` is the job's.

ONE_MODEL_AND_DATA = (
    "a job trains one model on one edl.Dataset, and each further fit goes on with these two; run "
    "each fold and each trial, with data or a model of its own, as a job of its own: `edl run ... "
    "train.py --fold 2`; at a prompt, edl.init() begins a new job"
)


class FitCalls:
    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self.done: tuple[DoneFit, ...] = ()  # also those that this worker skipped
        self.shift = 0  # the job's number of an epoch minus Keras' number, in the present fit

    @property
    def _before(self) -> int:
        return self.done[-1].until if self.done else 0

    def begin(self, first: int) -> None:
        self.shift = self._before - first
        self._worker.fits.begin(self.done)

    @property
    def is_fresh(self) -> bool:
        """Whether the job has begun no epoch of the present fit, which is not the first."""
        return self._worker.loader.epoch < self._before

    @property
    def next_epoch(self) -> int:
        """Keras' number of the epoch that the job is in, or of the first one in this fit."""
        return max(self._worker.loader.epoch, self._before) - self.shift

    def begin_epoch(self, epoch: int) -> None:
        """Move the job to its next epoch if the present one is trained, or is of an earlier fit."""
        loader = self._worker.loader
        if loader.ledger.finished:
            loader.next_epoch()
        elif self.is_fresh:  # the fit before was ended on purpose, inside an epoch
            loader.leave()
            loader.progress.next_epoch()
        if epoch + self.shift != loader.epoch:
            raise UsageError(
                f"fit counts this epoch as {epoch} and the job as {loader.epoch - self.shift}; let "
                "no callback change the epochs of a fit"
            )

    def end(self, history: Any, stopped: str = "") -> None:
        """Record the present fit as done, and save a checkpoint; all workers call it.

        `stopped` says why callbacks have stopped it, so that a resumed job trains no more of it.
        """
        until = max(self._before, self._worker.loader.ledger.epochs_begun)
        epochs = [] if history is None else [int(epoch) for epoch in history.epoch]
        numbers = {
            name: [json_value(_without_arrays(one)) for one in values]
            for name, values in ({} if history is None else history.history).items()
        }
        self.done = (*self.done, DoneFit(until, epochs, numbers))
        self._worker.fits.end(self.done, stopped, self._worker.rank, self._worker.generation)

    def pass_over(self, done: Sequence[DoneFit], history: Any) -> None:
        """Record the present fit as done without training, since the job has done it already."""
        fit = done[len(self.done)]
        if history is not None:
            history.epoch = list(fit.epochs)
            history.history = {name: list(values) for name, values in fit.history.items()}
        self.done = (*self.done, fit)
        self._worker.fits.pass_over(self.done)

    def check_model(self, model: Any, before: Any) -> None:
        if not self.done or before is None or model is before:
            return
        known = {id(plain(one)) for one in variables_of(before) or []}
        if known.isdisjoint(id(plain(one)) for one in variables_of(model) or []):
            raise UsageError(ONE_MODEL_AND_DATA)


class PassedOver(keras.callbacks.Callback):
    """A callback, in place of the script's, with which a worker skips a fit the job has done."""

    def __init__(
        self, calls: FitCalls, done: Sequence[DoneFit], history: Any, build: Callable[[], None]
    ) -> None:
        super().__init__()
        self._calls, self._done, self._history, self._build = calls, done, history, build

    def on_train_begin(self, logs: Any = None) -> None:
        self._build()  # the variables, as the first step would
        self.model._initial_epoch = self.params["epochs"]  # where fit looks for its first epoch

    def on_train_end(self, logs: Any = None) -> None:
        self.model._initial_epoch = None
        self._calls.pass_over(self._done, self._history)


def history_among(callbacks: Sequence[Any]) -> Any:
    found = (one for one in callbacks if isinstance(one, keras.callbacks.History))
    return next(found, None)


def _without_arrays(value: Any) -> Any:
    """Return lists and numbers of Python, if numpy makes an array of what a callback has logged."""
    try:
        # numpy makes no array of TensorFlow's tensor of bfloat16
        return np.asarray(value.numpy() if hasattr(value, "numpy") else value).tolist()
    except ValueError:
        return value


# ------------------------------------------------------------
# Create the variables of a Keras model before its first batch, and refuse stateful layers.

NO_CALL = (
    "{name} has no call(), and these layers of it are not built: {layers}; call each once on a "
    "batch before the training, so that its variables are there"
)

FAILED = (
    "edl could not create the variables of {name} before its first batch, since a call on the "
    "features of a batch failed; call the model once on a batch before the training"
)

STATEFUL = (
    "{name} has stateful=True: its state goes on from batch to batch, and in a job batches that "
    "follow each other go to different workers; leave stateful=True out and give it each sequence "
    "as a sample, or train without `edl run`"
)


def check_stateless(model: Any, shared: bool) -> None:
    for layer in model._flatten_layers() if shared and isinstance(model, keras.Model) else ():
        if isinstance(layer, keras.layers.RNN) and layer.stateful:
            raise UsageError(STATEFUL.format(name=f"the layer {layer.name}"))


def build_model(model: Any, dataset: Any) -> None:
    # A subclassed model may have layers without variables after model.build(), as Keras warns.
    name = type(model).__name__
    if type(model).call is keras.Model.call:  # its train_step calls its layers
        if unbuilt := [layer.name for layer in model.layers if _lacks_variables(layer)]:
            raise UsageError(NO_CALL.format(name=name, layers=few(unbuilt)))
        return
    if not _lacks_variables(model):
        return
    spec = dataset.element_spec
    features = spec[0] if isinstance(spec, tuple) else spec
    named = {"training": False} if model._call_has_training_arg else {}

    def call(inputs: Any) -> None:
        model(inputs, **named)

    try:
        # As fit traces it, so that a dimension that varies, as after padding, stays unknown.
        tf.function(call, autograph=False).get_concrete_function(features)
    except Exception:  # noqa: BLE001 - a call() of the user's that works only eagerly, say
        try:
            call(tf.nest.map_structure(_zeros, features))
        except Exception as error:
            raise UsageError(FAILED.format(name=name)) from error


def _zeros(spec: Any) -> Any:
    return tf.zeros([1 if n is None else n for n in spec.shape], spec.dtype)


def _lacks_variables(layer: Any) -> bool:
    """Return whether a call of a layer or model may create variables."""
    if not layer.built and not getattr(layer.build, "_is_default", False):
        return True
    inside = not layer.built or isinstance(layer, keras.Model)
    parts = layer._flatten_layers(include_self=False, recursive=False) if inside else ()
    return any(map(_lacks_variables, parts))


@dataclass(frozen=True)
class TrainedModel:
    optimizer: Any
    model: Any  # as the script gave it; None: it named none
    reduction: GradientReduction

    def variables(self) -> list[Any]:
        return list(variables_of(self.model) or [])

    def updated(self) -> list[Any]:
        return list(getattr(self.optimizer, "_trainable_variables", ()))

    def changed(self) -> list[Any]:
        # Those that have had a gradient, once any has. The others are the script's to change: an
        # average of the weights in the model, which a `train_step` assigns.
        found, reduced = self.updated(), self.reduction.with_gradient
        inner = with_inner(self.optimizer)
        if not reduced or any(getattr(one, "ema_overwrite_frequency", None) for one in inner):
            return found
        return [variable for variable in found if id(plain(variable)) in reduced]

    def known(self) -> list[Any]:
        return [*self.variables(), *self.updated()]

    def build(self, otherwise: Callable[[], list[Any]]) -> None:
        if self.optimizer.built:
            return
        variables = otherwise() if self.model is None else self.variables()
        if not variables:
            name = getattr(self.model, "name", None)
            raise UsageError(NO_VARIABLES.format(name="" if name is None else f" {name}"))
        if trainable := [variable for variable in variables if variable.trainable]:
            with tf.init_scope():
                self.optimizer.build(trainable)


TF_DATA = (
    "the samples of a tf.data.Dataset have no numbers, so nobody could tell which of them each "
    "worker has trained; give edl.Dataset arrays, a class with __len__ and __getitem__(i) that "
    "returns one sample, or files by edl.data, and follow it with map and prefetch; a small one "
    "may be list(dataset.unbatch().as_numpy_iterator())"
)

STOP = "all workers stop training after step {step}: {reason}"
_TENSORS = (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)

UNFINISHED = (
    "a batch was taken and no gradients were applied for it; every worker must train each batch "
    "with exactly one apply_gradients() of its edl.Optimizer"
)


class Training:
    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.fit_calls = FitCalls(worker)
        self.feed = PipelineBatchSource(worker)
        ending.call_first(self.feed.close)
        worker.on_resize(self._resized)
        worker.on_leave(self._hand_over)
        worker.loader.progress.on_choice = self._batch_changed
        self.reduction = GradientReduction(worker, self.feed)  # of the first optimizer
        self._trained: list[TrainedModel] = []
        # What optimizers were given for that are created after a fit.
        self._named_models: weakref.WeakKeyDictionary[Any, Any] = weakref.WeakKeyDictionary()
        apart = LogicalSeeder(self._named_variables)
        own = Seeder(self._named_variables, lambda: worker.warming_up)
        self._numbers = numbers = RandomNumbers(worker, apart if worker.logical else own)
        if worker.logical:
            self.reduction.keep_apart(self.buffers, numbers, apart.check)
        else:  # with several optimizers nobody knows which update of a batch is the last
            worker.loader.on_reduced = lambda: (
                None if self.reduction.is_multi else numbers.end_step()
            )
        self.steps = BatchSteps(worker, self.feed, lambda: UNFINISHED, numbers=numbers)
        worker.finishing.end_batch = self.finish_step
        worker.loader.before_exchange = lambda: (  # of edl.mean, edl.gather and the like
            self.finish_step() if worker.loader.open else None
        )
        self.reduced_early: set[int] = set()  # ids of variables: by tape, not by the optimizer
        self.reduces_eagerly = False  # a tape has, outside of any tf.function
        self.updates: list[Any] = []  # of graphs: what applies gradients
        self.fitted: Any = None  # the model whose fit runs
        self.replica: TensorFlowReplica | None = None  # once there is an optimizer
        self.load: Load | None = None  # once there is a source
        self.order: SampleOrder | None = None  # of the samples of an epoch
        self.graph: tf.Graph | None = None  # of the session that knows the job
        self.epochs = 0  # of elastic_shard_generator
        self.newest_dataset: Any = None  # the last one derived from edl.Dataset
        self.batch = 0  # in fit: the index in its epoch of the batch that was handed out last
        self.fitting = False  # Keras' fit takes the batches
        self.callback_states: CallbackStates | None = None  # of that fit
        self.metrics: EpochMetrics | None = None  # of the model that is fitted
        self.tuner: Any = None  # the edl.LRTuner of the only optimizer
        activity.works_at(lambda: "" if self.fitted is None or self.fitting else AFTER_FIT)

    def _named_variables(self) -> list[tuple[str, Any]]:
        return [] if self.replica is None else [*self.replica.variables()["model"].items()]

    # --- what is trained, and on what

    def attach_source(
        self,
        source: Any,
        batch_size: int,
        shuffle: bool,
        seed: int | None,
        max_global_batch: int | None = None,
        global_batch: Any = None,
        caller: str = "edl.Dataset",
        collate: Collate | None = None,
    ) -> Load:
        if self.fit_calls.done:
            raise UsageError(ONE_MODEL_AND_DATA)
        batches = asked_batching(self.worker, caller, batch_size, max_global_batch, global_batch)
        if batches.micro_batch and not batches.logical:
            raise UsageError(
                "batches in pieces (micro_batch) are PyTorch's; give the Keras optimizer "
                "gradient_accumulation_steps"
            )
        if batches.global_batch:  # who shares it is known when its step begins, and not before
            self.feed.ahead = 0
        order = batches, shuffle, seed, self.feed.ahead
        if isinstance(source, tf.data.Dataset):
            raise UsageError(TF_DATA)
        if not (is_numbered(source) or isinstance(source, _TENSORS)):
            stream = stream_of(source)
            attach_stream(self.worker, stream, *order)
            if isinstance(stream, StatefulStream):
                process.track(TensorFlowReplica.check, {"edl.Dataset": stream})
            self.load = load_read(stream, collate)
        else:
            length, self.load = reader_of(source, collate)
            total = length if self.order is None else self.order.total
            attach_source(self.worker, source, total, *order, self.order)
            if not isinstance(source, Dataset):  # files of edl's cannot change
                lock, plain_load = threading.Lock(), self.load

                def load(batch: Batch) -> Any:  # a data set may share a file among threads
                    with lock:
                        return plain_load(batch)

                self.load = load

                def sample(index: int, seed: int) -> Any:
                    with self._numbers.loading(seed, index):  # so not by a load that seeds, too
                        return load(Batch(0, np.array([index])))

                self.worker.loader.compare_data(DataCheck(lambda: length, sample))
        if self.worker.logical:
            self.load = seeded(self.load, self.worker, self._numbers)
        return self.load

    def attach_optimizer(self, optimizer: Any, model: Any) -> GradientReduction:
        if model is not None and variables_of(model) is None:
            raise UsageError(
                f"edl.Optimizer(optimizer, model): a {type(model).__name__} has no variables; "
                "give a Keras model, a tf.Module or a list of variables"
            )
        check_stateless(model, self.worker.is_shared)
        if self.replaces_optimizer:  # when `fit_with` is called with its model
            self.tuner = None  # of the optimizer before
            self._named_models[optimizer] = model
            return self.reduction
        if self._trained:
            self._check_several(optimizer, model)
            self._trained.append(
                TrainedModel(optimizer, model, GradientReduction(self.worker, self.feed))
            )
            assert self.replica is not None
            self.replica.rename([type(each.optimizer).__name__ for each in self._trained])
            return self._trained[-1].reduction
        replica = TensorFlowReplica(
            type(optimizer).__name__,
            self._model_variables,
            self._optimizer_variables,
            self._optimizer_state,
            self._updated_variables,
            lambda: [rate for each in self._trained for rate in last_rates(each.optimizer)],
            lambda: present_rates([each.optimizer for each in self._trained]),
            self._keras_models,
        )
        process.attach_replica(replica)
        self.replica = replica
        self._trained.append(TrainedModel(optimizer, model, self.reduction))
        return self.reduction

    @property
    def replaces_optimizer(self) -> bool:
        """Whether the next optimizer takes the place of the present one: between two fits."""
        return bool(self.fit_calls.done) and not self.fitting and len(self._trained) == 1

    def fit_with(self, model: Any) -> None:
        self.fit_calls.check_model(model, self.fitted)
        self.fitted, optimizer = model, model.optimizer
        if self.replaces_optimizer and optimizer is not self._trained[0].optimizer:
            known = self._named_models.get(optimizer)
            self._trained = [TrainedModel(optimizer, known, self.reduction)]
            self.reduction.noise.optimizer = optimizer
            assert self.replica is not None
            self.replica.rename([type(optimizer).__name__])

    def _hand_over(self, leaving: frozenset[int]) -> None:
        # All workers call it before a switch.
        if self.fitting and self.metrics is not None:
            self.metrics.hand_over(self.worker, leaving)

    def _resized(self, before: int, now: int) -> None:
        progress = self.worker.loader.progress
        if progress.attached:
            batching = progress.source.batching
            self._batch_changed(batching.of_all(before), batching.of_all(now))

    def _batch_changed(self, before: int, now: int) -> None:
        if self.worker.rank == 0 and before != now:
            warn_of_a_changed_batch([each.optimizer for each in self._trained], before, now)

    def _check_several(self, optimizer: Any, model: Any) -> None:
        self.worker.check_trains()
        refuse_logical(self.worker, "a script with several edl.Optimizers trains")
        if self.tuner is not None:
            raise UsageError(
                "edl.LRTuner: this script has several optimizers; it tunes the only one"
            )
        if isinstance(optimizer, tf.compat.v1.train.Optimizer):
            raise UsageError(
                "this script has two edl.Optimizers, which a graph of TensorFlow 1 cannot have; "
                "use tf.keras.optimizers, in a loop with tf.GradientTape"
            )
        if model is None or any(each.model is None for each in self._trained):
            raise UsageError(
                "this script has two edl.Optimizers, and not each says what it trains; name it: "
                "edl.Optimizer(optimizer, model)"
            )
        if self.worker.loader.begun:
            raise UsageError(
                "create each edl.Optimizer before the first batch; at a prompt, edl.init() begins "
                "a new job"
            )
        check_alone([optimizer, *(each.optimizer for each in self._trained)])

    @property
    def has_optimizer(self) -> bool:
        return bool(self._trained)

    def reduction_of(self, variables: Sequence[Any]) -> GradientReduction:
        if len(self._trained) < 2:
            return self.reduction
        own = {id(plain(variable)) for variable in variables}
        found = [each for each in self._trained if own & {id(plain(v)) for v in each.known()}]
        if len(found) != 1:
            raise UsageError(
                "with several optimizers, compute the gradients of each model's variables with an "
                "edl.DistributedGradientTape of its own"
            )
        check_known(variables, found[0].known())
        return found[0].reduction

    def _keras_models(self) -> list[Any]:
        models = [self.fitted, *(each.model for each in self._trained)]
        return list({id(one): one for one in models if isinstance(one, keras.Model)}.values())

    def _graph_optimizer(self) -> Any:
        # A script has at most one of TensorFlow 1.
        optimizer = self._trained[0].optimizer
        return optimizer if isinstance(optimizer, tf.compat.v1.train.Optimizer) else None

    def buffers(self) -> dict[str, Any]:
        """Return the variables of the model that are not trained, by name, without its seeds."""
        models = [self.fitted, *(each.model for each in self._trained)]
        if all(each is None or isinstance(each, (list, tuple)) for each in models):
            raise UsageError(ONE_MODEL)
        self._optimizer_variables()  # which tells it what it trains
        trained = {id(plain(v)) for each in self._trained for v in each.updated()}
        named = variables_by_name(self._model_variables())
        return {n: v for n, v in named.items() if id(v) not in trained and not is_seed(n)}

    def _optimizer_variables(self) -> list[Any]:
        if self._graph_optimizer() is not None:
            return []
        found: list[Any] = []
        for each in self._trained:
            each.build(self._model_variables)
            found += each.optimizer.variables
        return found

    def _optimizer_state(self) -> list[Any]:
        if (optimizer := self._graph_optimizer()) is not None:
            return list(optimizer.variables())
        return self._optimizer_variables()

    def _updated_variables(self) -> list[Any]:
        if (optimizer := self._graph_optimizer()) is None:
            if not self.worker.logical:
                return [v for each in self._trained for v in each.changed()]
            # The means over logical workers change, too.
            trained = [v for each in self._trained for v in each.updated()]
            return [*trained, *self.buffers().values()]
        graph = self.graph or tf.compat.v1.get_default_graph()
        trainable = graph.get_collection(tf.compat.v1.GraphKeys.TRAINABLE_VARIABLES)
        counter = tf.compat.v1.train.get_global_step(graph)
        return [*trainable, *optimizer.variables(), *([] if counter is None else [counter])]

    def _model_variables(self) -> list[Any]:
        if self._graph_optimizer() is not None:
            graph = self.graph or tf.compat.v1.get_default_graph()
            return list(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
        # What workers share beside the optimizers' variables, each once.
        models = [each.variables() for each in self._trained if each.model is not None]
        if self.fitted is not None:
            models.append(list(variables_of(self.fitted) or []))
        if not models:  # all that were created since `edl.init()`
            others = {id(plain(v)) for each in self._trained for v in each.optimizer.variables}
            models = [[variable for variable in CREATED.alive() if id(variable) not in others]]
        found: dict[int, Any] = {}
        for variables in (*models, *(each.updated() for each in self._trained)):
            for variable in variables:
                found.setdefault(id(plain(variable)), variable)
        return list(found.values())

    @property
    def is_stream(self) -> bool:
        return isinstance(self.worker.loader.progress.source, StreamSource)

    def batches(self) -> Iterator[Any]:
        """Return an iterator over this worker's batches, for a thread of ``tf.data``."""
        assert self.load is not None
        return self.feed.read(self.load)

    # --- a step

    def finish_step(self) -> None:
        for each in self._trained:
            each.reduction.raise_pending()
        for each in self._trained:
            each.reduction.end_step()

    @property
    def is_reduced(self) -> bool:
        """Whether the gradients of the batch handed out last, of any optimizer, are reduced."""
        return any(each.reduction.done for each in self._trained)

    @property
    def has_made_update(self) -> bool:
        """Whether an update was applied that the job has not counted yet; the next batch does."""
        loader = self.worker.loader
        if not loader.open or self.worker.warming_up or self.reduction.is_multi:
            return False
        if loader.engine.completed_by_peers or not self.reduction.done:
            return False
        # After an eager tape the update comes when the optimizer applies the means.
        return bool(loader.engine.updates) or not self.reduces_eagerly

    def begin_step(self) -> bool:
        """Complete the previous step, maybe switch rings, and hand out the next batch, if any."""
        self.finish_step()
        begun = self.steps.begin()
        if begun and self.reduction.logical is not None:
            self.reduction.logical.begin_piece()
        return begun


_training: Training | None = None


def current() -> Training:
    """Return the training of this process, which a further `edl.init()` begins anew."""
    global _training
    worker = process.current_worker()
    if _training is None or _training.worker is not worker:  # at a prompt, of a job before
        _training = Training(worker)
    return _training


# ------------------------------------------------------------
# Warn once about a Keras loss that is not a mean over the samples of a batch.
#
# A loss has a `reduction`, and receives the mask that layers before it have made. Both are known
# when the loss is called. In a graph that is when it is traced, so steps get no slower.

WEIGHTED = "and edl weights the gradient of each worker with its samples, as for a mean over them"


@functools.cache
def watch_losses() -> None:
    plain = keras.losses.Loss.__call__
    warned: list[str] = []

    @functools.wraps(plain)
    def __call__(self: Any, y_true: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        if not warned and _trains():
            is_masked = backend.get_keras_mask(y_pred) is not None
            is_weighted = sample_weight is not None
            reason = why_loss_is_no_mean(self, is_masked, is_weighted, current().fitting)
            if reason is not None:
                warned.append(reason)
                logger.warning("%s", reason)
        return plain(self, y_true, y_pred, sample_weight)

    keras.losses.Loss.__call__ = __call__


def why_loss_is_no_mean(loss: Any, is_masked: bool, is_weighted: bool, in_fit: bool) -> str | None:
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
    trains = worker.is_shared and not worker.warming_up and worker.rank == 0
    return trains and bool(worker.loader.open)
