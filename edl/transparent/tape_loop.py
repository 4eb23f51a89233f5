"""Let a training loop with ``hvd.DistributedGradientTape`` take part in the job: :class:`TapeLoop`.

A script for plain Horovod goes through all its loops over the training data from the first on, also
in a process that joins the job later, or that resumes it. Each loop is an epoch of the job. A
newcomer gets one batch in each loop that the job has behind it, whose result is discarded, until it
comes to the job's epoch, and joins. In a resumed job such a loop has no batch.
"""

from __future__ import annotations

import gc
import sys
import types
from collections.abc import Iterator
from typing import Any

import keras

import edl.tensorflow
from edl.binding.loop import batch_in_epoch
from edl.binding.process import current_worker, is_initialized
from edl.errors import UsageError
from edl.step.order import Take
from edl.tensorflow import training
from edl.tensorflow.dataset import ElasticDataset
from edl.tensorflow.training import build_model
from edl.transparent.input_pipeline import InputPipelines, recorded
from edl.transparent.script import LoopWatch, ScriptExchange, ended_behind

TAPE = "DistributedGradientTape"
ONE_OF_EACH = (
    "this script's loop trains by hvd.DistributedGradientTape, and has {models} models and "
    "{optimizers} optimizers of Keras; edl finds out by itself what is trained if there is one of "
    "each; or change the script to edl.tensorflow"
)
AHEAD = (
    "this worker's script is in its loop {mine} over the training data, and the job in loop {job}: "
    "a script must begin with the same loop on all workers, also on one that starts later"
)


class TapeLoop:
    """The loops of this process's script over its training data."""

    def __init__(self, pipelines: InputPipelines, exchanges: ScriptExchange) -> None:
        self._exchanges = exchanges
        self.has_batch = False  # the script is within the body of the loop
        self._pipelines = pipelines
        self._dataset: Any = None  # edl's
        self._epochs: Iterator[int] = iter(())
        self._epoch = -1  # the job's, once this process takes part in it
        self._loops = 0  # over the training data so far
        self._is_behind = False  # it warms up in a loop that the job has behind it
        self._warms_up = self._has_trained = False  # whether it has, since the script began
        self._uses_tape = False
        self._watch = LoopWatch(_has_trained)

    def is_training(self, dataset: Any) -> bool:
        """Return whether a loop over `dataset` trains: the first one, if the script has a tape."""
        found = recorded(dataset)
        if found is None or not found.is_batched or not is_initialized():
            return False
        if self._dataset is not None:
            return self._pipelines.is_trained(dataset)
        if found.pipeline.stages[-1:] == (Take(1),):  # the script has a look at a batch
            return False
        if self._exchanges.has_trained:  # by fit
            return False
        self._uses_tape = self._uses_tape or _uses_tape()
        return self._uses_tape

    @property
    def passes_over(self) -> bool:
        """Whether the script is in, or has just left, a loop that the job has behind it."""
        return self._loops <= self._epoch

    @property
    def is_within(self) -> bool:
        """Whether the script has begun to train by a loop."""
        return self._dataset is not None

    @property
    def step_in_epoch(self) -> int:
        """The number of the step in its epoch, from 0, that the last batch belongs to."""
        if current_worker().warming_up:
            return 1  # the job has made its first step
        return batch_in_epoch(current_worker())

    def batches(self, dataset: Any) -> Iterator[Any]:
        """Yield the batches of one loop of the script over its training data."""
        self._watch.check_next()
        number, self._loops = self._loops, self._loops + 1
        if self._dataset is None:
            self._begin(dataset)
        if self._epoch < 0:
            yield from self._come_in(number)
        elif number > self._epoch:
            self._epoch = next(self._epochs)
        if self._epoch < 0 or number < self._epoch:
            return
        if number > self._epoch:
            raise UsageError(AHEAD.format(mine=number, job=self._epoch))
        current_worker().show_epoch(number)
        self._has_trained = True
        yield from self._watch.batches(self._trained())

    def refuse_left_early(self) -> None:
        """Raise a UsageError if the script is known to have left its last loop early."""
        self._watch.refuse_left_early()

    def check_end(self) -> None:
        """Check that the script may end now: after the job's last step."""
        self._watch.check_end()
        if self._epoch < 0:  # it may be a job resumed at its end
            is_behind = self._is_behind
        else:
            begun = self._loops == self._epoch and current_worker().loader.ledger.done
            is_behind = self._loops < self._epoch or bool(begun)
        if is_behind:
            raise ended_behind(self._loops - 1, self._warms_up and not self._has_trained)

    def _trained(self) -> Iterator[Any]:
        """Yield the batches of this process in the epoch, and note while the script has one."""
        try:
            for batch in self._dataset:
                self.has_batch = True
                yield batch
                self.has_batch = False
        finally:
            self.has_batch = False

    def _begin(self, dataset: Any) -> None:
        """Find out what the script trains, and declare `dataset` as the job's data."""
        models, optimizers = _outermost(keras.Model), _outermost(keras.optimizers.Optimizer)
        if (len(models), len(optimizers)) != (1, 1):
            counts = {"models": len(models), "optimizers": len(optimizers)}
            raise UsageError(ONE_OF_EACH.format(**counts))
        self._dataset = self._pipelines.elastic(dataset, None)
        build_model(models[0], self._dataset)
        edl.tensorflow.Optimizer(optimizers[0], models[0])
        self._exchanges.has_trained = True
        self._epochs = ElasticDataset.endless_epochs()
        current_worker().finishing.check_end = self.check_end

    def _come_in(self, number: int) -> Iterator[Any]:
        """Take part in the job if it is in the loop `number`; else `_epoch` stays -1."""
        worker = current_worker()
        if number == 0:
            epoch = next(self._epochs)
        else:
            training.current().steps.warm_up_again()
        if not worker.warming_up:
            self._epoch = epoch
            return
        self._warms_up = True
        yield from self._trained()
        job = worker.epoch_of_job()
        self._is_behind = job is not None and number < job
        if not self._is_behind:
            self._epoch = next(self._epochs)  # joins


def _has_trained() -> bool:
    """Return whether the gradients of the batch that the script has taken last are computed."""
    if not current_worker().loader.open:
        return True
    logical = training.current().reduction.logical
    return logical is not None and logical.is_kept


def _outermost(kind: Any) -> list[Any]:
    """Return all objects of the class `kind` in this process that are no part of another one."""
    found = [one for one in gc.get_objects() if isinstance(one, kind)]
    inner = {id(getattr(one, "inner_optimizer", None)) for one in found}
    inner |= {id(getattr(one, "_functional", None)) for one in found}  # of a Sequential
    for one in found:
        if isinstance(one, keras.Model):
            inner |= {id(part) for part in one._flatten_layers(include_self=False)}
    return [one for one in found if id(one) not in inner]


def _uses_tape() -> bool:
    """Return whether a function of the script calls Horovod's tape."""
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if _names_tape(frame.f_code) and not _is_library(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back
    functions = (one for one in gc.get_objects() if isinstance(one, types.FunctionType))
    return any(_names_tape(one.__code__) and not _is_library(one.__module__) for one in functions)


def _names_tape(code: types.CodeType) -> bool:
    """Return whether `code`, or a function defined in it, has the name of Horovod's tape."""
    if TAPE in code.co_names:
        return True
    return any(_names_tape(one) for one in code.co_consts if isinstance(one, types.CodeType))


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in ("edl", "horovod", "tensorflow", "keras")
