"""Hold the state of this process's training that the modules of ``edl.tensorflow`` share."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl.binding import process
from edl.binding import process as ending
from edl.binding.data_check import DataCheck
from edl.binding.loop import (
    BatchSteps,
    RandomNumbers,
    asked_batching,
    attach_source,
    attach_stream,
    is_numbered,
    refuse_logical,
    stream_of,
)
from edl.binding.lr_tuner import refuse_several
from edl.core.job.stall import AFTER_FIT
from edl.data.dataset import Dataset
from edl.data.stateful_stream import StatefulStream
from edl.errors import UsageError
from edl.step.engine import Batch
from edl.step.source import SampleOrder, StreamSource
from edl.tensorflow.feed import PipelineBatchSource
from edl.tensorflow.fits import ONE_MODEL_AND_DATA, Fits
from edl.tensorflow.keras_callbacks.memory import CallbackStates
from edl.tensorflow.keras_callbacks.metrics import EpochMetrics
from edl.tensorflow.logical import ONE_MODEL
from edl.tensorflow.logical_random import LogicalSeeder, seeded
from edl.tensorflow.lr_schedule import (
    check_alone,
    last_rates,
    present_rates,
    warn_of_a_changed_batch,
)
from edl.tensorflow.model_build import refuse_stateful
from edl.tensorflow.random_numbers import Seeder, is_seed
from edl.tensorflow.reduction import GradientReduction
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.source import Collate, Load, load_read, reader_of
from edl.tensorflow.trained import TrainedModel, shared_variables
from edl.tensorflow.variables import check_known, plain, variables_by_name, variables_of
from edl.worker import activity
from edl.worker.worker import Worker

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
    """The data source, the optimizers and the open step of this process."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.fits = Fits(worker)
        self.feed = PipelineBatchSource(worker)
        ending.call_first(self.feed.close)
        worker.on_resize(self._resized)
        worker.on_leave(self._hand_over)
        self.worker.loader.progress.on_choice = self._batch_changed
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
                None if self.reduction.several else numbers.end_step()
            )
        self.steps = BatchSteps(worker, self.feed, lambda: UNFINISHED, numbers=numbers)
        worker.finishing.end_batch = self.finish_step
        worker.loader.before_exchange = self._finish_open_step  # edl.mean, edl.gather and the like
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
        what: str = "edl.Dataset",
        collate: Collate | None = None,
    ) -> Load:
        """Declare what the job trains on, for the function `what`; return what loads a batch."""
        if self.fits.done:
            raise UsageError(ONE_MODEL_AND_DATA)
        batches = asked_batching(self.worker, what, batch_size, max_global_batch, global_batch)
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
                self.load = load = one_at_a_time(self.load)
                self.worker.loader.compare_data(
                    DataCheck(lambda: length, lambda index, seed: self._sample(load, index, seed))
                )
        if self.worker.logical:
            self.load = seeded(self.load, self.worker, self._numbers)
        return self.load

    def _sample(self, load: Load, index: int, seed: int) -> Any:
        with self._numbers.loading(seed, index):  # so not by a load that seeds them, too
            return load(Batch(0, np.array([index])))

    def attach_optimizer(self, optimizer: Any, model: Any) -> GradientReduction:
        """Add the variables of `optimizer` and `model` to the state that all workers share."""
        if model is not None and variables_of(model) is None:
            raise UsageError(
                f"edl.Optimizer(optimizer, model): a {type(model).__name__} has no variables; "
                "give a Keras model, a tf.Module or a list of variables"
            )
        refuse_stateful(model, self.worker.is_shared)
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
            self._rates,
            self._learning_rates,
            self._keras_models,
        )
        process.attach_replica(replica)
        self.replica = replica
        self._trained.append(TrainedModel(optimizer, model, self.reduction))
        return self.reduction

    @property
    def replaces_optimizer(self) -> bool:
        """Whether the next optimizer takes the place of the present one: between two fits."""
        return bool(self.fits.done) and not self.fitting and len(self._trained) == 1

    def fit_with(self, model: Any) -> None:
        """Record that `fit` begins to train `model` with its optimizer, maybe another one now."""
        self.fits.check_model(model, self.fitted)
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
        """Warn if a changed number of workers in the ring changes the global batch."""
        progress = self.worker.loader.progress
        if progress.attached:
            batching = progress.source.batching
            self._batch_changed(batching.of_all(before), batching.of_all(now))

    def _batch_changed(self, before: int, now: int) -> None:
        if self.worker.rank == 0 and before != now:
            warn_of_a_changed_batch([each.optimizer for each in self._trained], before, now)

    def _check_several(self, optimizer: Any, model: Any) -> None:
        """Raise an error if a script that has an optimizer cannot use `optimizer`, too."""
        self.worker.check_trains()
        refuse_logical(self.worker, "a script with several edl.Optimizers trains")
        if self.tuner is not None:
            refuse_several()
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
        """Return the gradient reduction of the optimizer that trains `variables`."""
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

    def _learning_rates(self) -> dict[str, Any]:
        return present_rates([each.optimizer for each in self._trained])

    def _rates(self) -> list[float]:
        return [rate for each in self._trained for rate in last_rates(each.optimizer)]

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
        return shared_variables(self._trained, self.fitted)

    @property
    def is_stream(self) -> bool:
        """Whether the source is a stream, whose samples have no numbers."""
        return isinstance(self.worker.loader.progress.source, StreamSource)

    def batches(self) -> Iterator[Any]:
        """Return an iterator over this worker's batches, for a thread of ``tf.data``."""
        assert self.load is not None
        return self.feed.read(self.load)

    # --- a step

    def finish_step(self) -> None:
        """Complete the open step in the ledger, if its gradients are reduced."""
        for each in self._trained:
            each.reduction.raise_pending()
        for each in self._trained:
            each.reduction.end_step()

    def _finish_open_step(self) -> None:
        if self.worker.loader.open:
            self.finish_step()

    @property
    def is_reduced(self) -> bool:
        """Whether the gradients of the batch handed out last, of any optimizer, are reduced."""
        return any(each.reduction.done for each in self._trained)

    @property
    def has_made_update(self) -> bool:
        """Whether an update was applied that the job has not counted yet; the next batch does."""
        loader = self.worker.loader
        if not loader.open or self.worker.warming_up or self.reduction.several:
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


def one_at_a_time(load: Load) -> Load:
    """Return `load` so that no two threads are in it: a data set may share a file among them."""
    lock = threading.Lock()

    def read(batch: Batch) -> Any:
        with lock:
            return load(batch)

    return read


_training: Training | None = None


def current() -> Training:
    """Return the training of this process, which a further `edl.init()` begins anew."""
    global _training
    worker = process.current_worker()
    if _training is None or _training.worker is not worker:  # at a prompt, of a job before
        _training = Training(worker)
    return _training
