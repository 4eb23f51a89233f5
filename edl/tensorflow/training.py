"""This process's training: what the parts of ``edl.tensorflow`` know of each other."""

from __future__ import annotations

import atexit
from collections.abc import Iterator
from typing import Any

import tensorflow as tf

from edl.daemon.worker import Worker
from edl.errors import UsageError
from edl.framework import process
from edl.framework.source import attach_source
from edl.framework.steps import Steps
from edl.tensorflow.feed import AHEAD, PipelineFeed
from edl.tensorflow.keras_callbacks.memory import CallbackStates
from edl.tensorflow.reduction import GradientReduction
from edl.tensorflow.replica import TensorFlowReplica
from edl.tensorflow.source import Load, reader_of
from edl.tensorflow.variables import CREATED, plain, variables_of

UNFINISHED = (
    "a batch was taken and no gradients were applied for it; every worker must train each batch "
    "with exactly one apply_gradients() of its edl.Optimizer"
)


class Training:
    """One optimizer, one source, and the step that is under way."""

    def __init__(self, worker: Worker) -> None:
        self.worker = worker
        self.feed = PipelineFeed(worker)
        atexit.register(self.feed.close)
        self.reduction = GradientReduction(worker, self.feed)
        self.steps = Steps(worker, self.feed, UNFINISHED)
        self.reduced_early: set[int] = set()  # ids of variables: by tape, not by the optimizer
        self.updates: list[Any] = []  # of graphs: what applies gradients
        self.optimizer: Any = None
        self.model: Any = None
        self.replica: TensorFlowReplica | None = None
        self.load: Load | None = None
        self.graph: tf.Graph | None = None  # of the session that knows the job
        self.epochs = 0  # of elastic_shard_generator
        self.newest_dataset: Any = None  # the last one derived from edl.Dataset
        self.fitting = False  # Keras' fit takes the batches
        self.callback_states: CallbackStates | None = None  # of that fit

    # --- what is trained, and on what

    def attach_source(self, source: Any, batch_size: int, shuffle: bool, seed: int) -> Load:
        """Declare what is trained on; returns what loads a batch.

        Raises:
            DataError, UsageError: see :func:`edl.tensorflow.source.reader_of`.
        """
        if batch_size < 1:
            raise UsageError(f"batch_size is {batch_size}; it must be at least 1")
        total, load = reader_of(source)
        attach_source(self.worker, source, total, batch_size, shuffle, seed, AHEAD)
        self.load = load
        return load

    def attach_optimizer(self, optimizer: Any, model: Any) -> None:
        """Share ``optimizer``'s and ``model``'s variables with the job; see ``edl.Optimizer``."""
        if model is not None and variables_of(model) is None:
            raise UsageError(
                f"edl.Optimizer(optimizer, model): a {type(model).__name__} has no variables; "
                "give a Keras model, a tf.Module or a list of variables"
            )
        replica = TensorFlowReplica(
            type(optimizer).__name__,
            self._model_variables,
            self._optimizer_variables,
            self._optimizer_state,
        )
        process.attach_replica(replica)
        self.optimizer, self.model, self.replica = optimizer, model, replica

    def _optimizer_variables(self) -> list[Any]:
        if isinstance(self.optimizer, tf.compat.v1.train.Optimizer):
            return []  # they are among the graph's variables
        model = self._model_variables()
        if not self.optimizer.built:
            with tf.init_scope():
                self.optimizer.build([v for v in model if v.trainable])
        return list(self.optimizer.variables)

    def _optimizer_state(self) -> list[Any]:
        if isinstance(self.optimizer, tf.compat.v1.train.Optimizer):
            return list(self.optimizer.variables())
        return self._optimizer_variables()

    def _model_variables(self) -> list[Any]:
        if isinstance(self.optimizer, tf.compat.v1.train.Optimizer):
            graph = self.graph or tf.compat.v1.get_default_graph()
            return list(graph.get_collection(tf.compat.v1.GraphKeys.GLOBAL_VARIABLES))
        if self.model is not None:
            return list(variables_of(self.model) or [])
        others = {id(plain(variable)) for variable in self.optimizer.variables}
        return [variable for variable in CREATED.alive() if id(variable) not in others]

    def batches(self) -> Iterator[Any]:
        """What ``tf.data`` reads, in a thread of its own: this worker's batches, loaded."""
        assert self.load is not None
        return self.feed.read(self.load)

    # --- a step

    def finish_step(self) -> None:
        """The update of the open step is applied, if its gradients were: the ledger moves."""
        self.reduction.end_step()

    def begin_step(self) -> bool:
        """Hand out the next batch; False when the epoch is over."""
        self.finish_step()
        return self.steps.begin()


_training: Training | None = None


def current() -> Training:
    """This process's training.

    Raises:
        UsageError: ``edl.init()`` was not called.
    """
    global _training
    if _training is None:
        _training = Training(process.current_worker())
    return _training
