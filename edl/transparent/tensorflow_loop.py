"""Record how the script makes its ``tf.data`` pipelines, and train them: :class:`InputPipelines`.

edl deals numbered samples to processes that come and go, and the elements of a ``tf.data.Dataset``
have no numbers. So a data set that begins with ``from_tensor_slices``, and goes on with the methods
named below, remembers that. When it is trained, edl reads the samples from the arrays, in the order
of :class:`edl.step.source.PipelineOrder`. The data set itself stays, for evaluation.
"""

from __future__ import annotations

import functools
import gc
import hashlib
import inspect
import logging
import pickle
import sys
import types
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import cloudpickle
import keras
import numpy as np
import tensorflow as tf

from edl.binding import process
from edl.binding.loop import batch_in_epoch
from edl.binding.process import current_worker, is_initialized
from edl.errors import UsageError
from edl.step.source import (
    Batch,
    Pipeline,
    PipelineOrder,
    Repeat,
    Shard,
    Shuffle,
    Skip,
    Stage,
    Take,
)
from edl.tensorflow import training
from edl.tensorflow.dataset import Dataset, ElasticDataset
from edl.tensorflow.fit import KerasCallback
from edl.tensorflow.keras_callbacks import has_writer, mark_as_sent
from edl.tensorflow.optimizer import Optimizer, is_elastic
from edl.tensorflow.replica import last_seed
from edl.tensorflow.training import build_model
from edl.transparent.script import LoopWatch, ScriptExchange, ended_behind, ranks

logger = logging.getLogger(__name__)


UNKNOWN = (
    "the script trains on a tf.data.Dataset with {what} in it, whose samples have no numbers, so "
    "edl cannot divide them among processes that come and go; with --transparent a data set begins "
    "with tf.data.Dataset.from_tensor_slices(arrays), and shard(hvd.size(), hvd.rank()), shuffle, "
    "repeat, map, batch, take, skip, cache and prefetch may follow; or change the script to "
    "edl.tensorflow (docs/get-started/from-horovod.md)"
)
TWICE = (
    "this script trains on two data sets, or on one with two lengths of an epoch, and edl follows "
    "one: put the data into one, or change the script to edl.tensorflow"
)
DIFFER = (
    "the processes of this script train on different data, which edl must divide among them by "
    "itself; with --transparent give all ranks the whole arrays, and divide them by "
    "dataset.shard(hvd.size(), hvd.rank())"
)
LOOKED_AT = 64  # rows of an array, in a comparison of the data of two processes
FIRST = "from_tensor_slices"
_MARK = "_edl_recorded"
_SAME = ("cache", "prefetch", "with_options")  # samples and their order stay as they are


@dataclass(frozen=True)
class Recorded:
    """The stages by which a script has made a `tf.data.Dataset`, and the functions in them."""

    source: Any  # the data set of `from_tensor_slices` at its beginning
    pipeline: Pipeline
    of_samples: tuple[Callable[..., Any], ...] = ()  # what `map` was given before `batch`
    of_batches: tuple[Callable[..., Any], ...] = ()  # and after it
    whole: Any = None  # the same data set without `shard`; None: it has none

    @property
    def is_batched(self) -> bool:
        return any(isinstance(stage, Batch) for stage in self.pipeline.stages)

    def digest(self) -> str:
        """Return a digest of the shapes of the arrays, and of some of their rows."""
        found = hashlib.blake2b(repr(self.pipeline).encode())
        for tensor in self.source._tensors:
            step = max(1, self.pipeline.total // LOOKED_AT)
            rows = np.ascontiguousarray(tensor[::step].numpy())
            found.update(f"{rows.dtype} {tensor.shape}".encode())
            found.update(repr(rows.tolist()).encode() if rows.dtype.hasobject else rows.tobytes())
        return found.hexdigest()


def recorded(dataset: Any) -> Recorded | None:
    found: Recorded | None = getattr(dataset, _MARK, None)
    return found


def without_shard(dataset: Any) -> Any:
    """Return `dataset` with the samples of all ranks, if the script has divided it among them."""
    found = recorded(dataset)
    return dataset if found is None or found.whole is None else found.whole


def undivided(dataset: Any, steps: int | None) -> tuple[Any, int | None]:
    """Replace one rank's part of an evaluation, and its number of batches, by that of all ranks."""
    whole = without_shard(dataset)
    if whole is dataset or steps is None:
        return whole, steps
    batches = int(whole.cardinality())  # negative: infinite or unknown
    steps *= ranks()
    return whole, min(steps, batches) if batches >= 0 else steps


class InputPipelines:
    """The data sets of this process's script, of which one is trained."""

    def __init__(self, exchanges: ScriptExchange) -> None:
        self._exchanges = exchanges
        self._trained: tuple[Recorded, int | None] | None = None
        self._elastic: Any = None

    def elastic(self, dataset: Any, steps: int | None) -> Any:
        found = recorded(dataset)
        if found is None:
            raise UsageError(UNKNOWN.format(what=_unknown_part(dataset)))
        if self._trained is not None and not _alike(self._trained, (found, steps)):
            raise UsageError(TWICE)
        if self._elastic is None:
            digest = found.digest()
            answers = self._exchanges.known(f"{digest} {last_seed()}".encode())
            all_ranks = [answer.decode().split() for answer in answers]
            if any(other != digest for other, _ in all_ranks):
                raise UsageError(DIFFER)
            seed = int(all_ranks[0][1])  # of rank 0
            if seed != last_seed():  # each rank may draw numbers of its own: edl does so
                tf.random.set_seed(seed)
            self._trained, self._elastic = (found, steps), _elastic(found, steps, seed)
        return self._elastic

    def is_trained(self, dataset: Any) -> bool:
        found = recorded(dataset)
        if found is None or self._trained is None:
            return False
        return _alike(self._trained, (found, self._trained[1]))


def _alike(one: tuple[Recorded, int | None], other: tuple[Recorded, int | None]) -> bool:
    (first, _), (second, _) = one, other
    same = (one[1], first.pipeline) == (other[1], second.pipeline)
    return same and (first.source is second.source or first.whole is second.whole is not None)


def _elastic(found: Recorded, steps: int | None, seed: int) -> Any:
    # `seed`: of orders for which the script gives none.
    order = PipelineOrder(found.pipeline, ranks(), steps, seed)
    specs = tf.nest.flatten(found.source.element_spec)
    if not all(isinstance(spec, tf.TensorSpec) for spec in specs):
        raise UsageError(UNKNOWN.format(what="sparse or ragged tensors"))
    arrays = tf.nest.pack_sequence_as(found.source.element_spec, found.source._tensors)
    dataset: Any = Dataset(arrays, found.pipeline.batch.size, order=order)
    for function in found.of_samples:
        dataset = dataset.map(_for_each_sample(function))
    for function in found.of_batches:
        dataset = dataset.map(function)
    return dataset


def _for_each_sample(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of a batch that makes a batch of what `function` makes of each sample."""

    def of_batch(*parts: Any) -> Any:
        batch = parts[0] if len(parts) == 1 else parts
        samples = PLAIN[FIRST](batch)
        mapped = PLAIN["map"](samples, function)
        size = tf.shape(tf.nest.flatten(batch)[0], tf.int64)[0]
        return PLAIN["batch"](mapped, size).get_single_element()

    marked: Callable[..., Any] = tf.autograph.experimental.do_not_convert(of_batch)
    return marked


def _unknown_part(dataset: Any) -> str:
    if not isinstance(dataset, tf.data.Dataset):
        return f"a {type(dataset).__name__}"
    for each in dataset._inputs():
        if recorded(each) is None:
            return _unknown_part(each)
    name = type(dataset).__name__.strip("_").removesuffix("V2").removesuffix("V1")
    return f"a {name}"


# --- recording

PLAIN: dict[str, Any] = {}  # TensorFlow's own functions, by name


def _number(value: Any) -> int:
    return int(value.numpy() if isinstance(value, tf.Tensor) else value)


def _shuffle(
    buffer_size: Any, seed: Any = None, reshuffle_each_iteration: Any = None, name: Any = None
) -> Stage:
    own = None if seed is None else _number(seed)
    return Shuffle(_number(buffer_size), own, reshuffle_each_iteration is not False)


def _repeat(count: Any = None, name: Any = None) -> Stage:
    times = -1 if count is None else _number(count)
    return Repeat(None if times < 0 else times)


def _batch(batch_size: Any, drop_remainder: Any = False, *_: Any, **__: Any) -> Stage:
    return Batch(_number(batch_size), bool(drop_remainder))


def _counted(kind: type[Take | Skip], count: Any, name: Any = None) -> Stage | None:
    return kind(_number(count)) if _number(count) >= 0 else None


def _shard(num_shards: Any, index: Any, name: Any = None) -> Stage | None:
    whole = process.is_initialized() and _number(num_shards) == ranks()
    return Shard(ranks()) if whole else None


_STAGES: dict[str, Callable[..., Stage | None]] = {
    "shuffle": _shuffle,
    "repeat": _repeat,
    "batch": _batch,
    "take": functools.partial(_counted, Take),
    "skip": functools.partial(_counted, Skip),
    "shard": _shard,
}


RECORDED = (*_STAGES, *_SAME, "map")


def _noted(before: Recorded, name: str, arguments: Any, named: Any) -> Recorded | None:
    if name in _SAME:
        return before
    if name == "map":
        function = arguments[0] if arguments else named["map_func"]
        if before.is_batched:
            return replace(before, of_batches=(*before.of_batches, function))
        return replace(before, of_samples=(*before.of_samples, function))
    stage = _STAGES[name](*arguments, **named)
    if stage is None or (isinstance(stage, Batch) and before.is_batched):
        return None
    return replace(before, pipeline=before.pipeline.followed_by(stage))


def _recording(name: str) -> Callable[..., Any]:
    plain = PLAIN[name]

    def of_all(whole: Any, *arguments: Any, **named: Any) -> Any:
        if name not in ("take", "skip"):
            return plain(whole, *arguments, **named)
        count = arguments[0] if arguments else named["count"]
        return plain(whole, _number(count) * ranks())

    @functools.wraps(plain)
    def method(self: Any, *arguments: Any, **named: Any) -> Any:
        before = recorded(self) if tf.executing_eagerly() else None
        if before is None:
            return plain(self, *arguments, **named)
        noted = _noted(before, name, arguments, named)
        whole = None if before.whole is None else of_all(before.whole, *arguments, **named)
        if name == "shard" and noted is not None:
            whole = self if before.whole is None else before.whole
            made = plain(self, *_within(*arguments, **named))
        else:
            made = plain(self, *arguments, **named)
        if noted is not None:
            setattr(made, _MARK, replace(noted, whole=whole))
        return made

    return method


def _within(num_shards: Any, index: Any, name: Any = None) -> tuple[Any, Any]:
    return num_shards, min(_number(index), _number(num_shards) - 1)


def _from_tensor_slices(*arguments: Any, **named: Any) -> Any:
    made = PLAIN[FIRST](*arguments, **named)
    if tf.executing_eagerly():
        samples = int(made.cardinality().numpy())
        setattr(made, _MARK, Recorded(made, Pipeline(samples)))
    return made


@functools.cache
def record_pipelines() -> None:
    kind: Any = tf.data.Dataset
    PLAIN[FIRST] = getattr(kind, FIRST)
    for name in RECORDED:
        PLAIN[name] = getattr(kind, name)
        setattr(kind, name, _recording(name))
    setattr(kind, FIRST, staticmethod(functools.wraps(PLAIN[FIRST])(_from_tensor_slices)))


# ------------------------------------------------------------
# Let `model.fit` of an unchanged Horovod script take part in the job: `replace_fit`.
#
# The data set that it is given is replaced by edl's (`input_pipeline`), and `edl.KerasCallback` is
# added. In the script the process of rank 0 often has further callbacks and another `verbose`; the
# others get these here, so that the next rank 0 goes on with the files of the one before. Only rank
# 0 writes (`writers`), and only rank 0 calls a callback of the script's own that other processes
# get here.


MAX_CALLBACK_BYTES = 2**13  # bytes of a callback that is sent to the other processes
ARRAYS = (
    "model.fit was given arrays, and a process that comes later could not tell which of their "
    "samples are whose; with --transparent give it a data set: "
    "tf.data.Dataset.from_tensor_slices((x, y)).shard(hvd.size(), hvd.rank()).shuffle(len(x))"
    ".batch(n), made of the whole arrays on all ranks"
)
NO_NUMBERS = (
    "model.fit was given {what}, whose samples have no numbers, so edl cannot divide them among "
    "processes that come and go; with --transparent give it a tf.data.Dataset that begins with "
    "from_tensor_slices(arrays); or change the script to edl.tensorflow, whose edl.Dataset also "
    "reads single samples by their numbers (docs/get-started/from-horovod.md)"
)
OWN_CALLBACKS = (
    "this process gives model.fit the callback {name}, and rank 0 does not; callbacks may be of "
    "all ranks, or of rank 0"
)
NOT_SENT = (
    "the callback {name} is on rank 0 only, and cannot be sent to the other processes ({why}); "
    "make it on all ranks: {then}"
)
ONE_WRITES = "edl lets one of them write"
ALL_ARE_CALLED = "edl calls it on each of them, so let it ask hvd.rank() == 0 before it writes"


class KerasScript:
    """The fits of this process's script."""

    def __init__(self) -> None:
        self.exchanges = ScriptExchange()
        self.pipelines = InputPipelines(self.exchanges)
        # of the last fit: the callbacks and what was sent of each; what this process gave to it
        self._found: list[Any] = []
        self._sent: list[tuple[str, bytes | None, str]] = []
        self._given: Any = None
        self._message = self._answer = b""  # of this process, and of rank 0
        self._had_all = True  # the callbacks of rank 0 were this process's own

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        if given.get("y") is not None or not isinstance(given.get("x"), tf.data.Dataset):
            x = given.get("x")
            if isinstance(x, (list, tuple, dict, tf.data.Dataset)) or hasattr(x, "__array__"):
                raise UsageError(ARRAYS)
            kind = type(x).__name__
            article = "an" if kind[0] in "AEIOU" else "a"
            raise UsageError(NO_NUMBERS.format(what=f"{article} {kind}"))
        data = self.pipelines.elastic(given["x"], given.pop("steps_per_epoch", None))
        validation, steps = undivided(given.get("validation_data"), given.get("validation_steps"))
        callbacks, verbose = self._agreed(given.get("callbacks"), given.get("verbose", "auto"))
        own = {"x": data, "callbacks": callbacks, "verbose": verbose}
        return {**given, **own, "validation_data": validation, "validation_steps": steps}

    def _agreed(self, callbacks: Any, verbose: Any) -> tuple[list[Any], Any]:
        own = _flat(callbacks)
        given = verbose, [type(one).__name__ for one in own]
        # As in the last fit, the script gives not all of rank 0: this may be a new rank 0, which it
        # takes for another rank. Then the callbacks of the last fit stay.
        goes_on = not self._had_all and given == self._given
        sent = [self._packed_again(one) or _packed(one) for one in own]
        message = pickle.dumps((verbose, sent))
        # Only what has changed is sent: all messages of a job have little room.
        is_known = goes_on or message in (self._message, self._answer)
        answer = self.exchanges.known(b"" if is_known else message)[0]
        self._message = message
        self.exchanges.has_trained = True
        self._answer = answer or self._answer
        verbose, self._sent = pickle.loads(self._answer)
        self._given = given
        self._had_all = given == (verbose, [name for name, _, _ in self._sent])
        self._found = [_taken(own, name, data, why) for name, data, why in self._sent]
        if own:
            raise UsageError(OWN_CALLBACKS.format(name=type(own[0]).__name__))
        return [*self._found, KerasCallback()], verbose

    def _packed_again(self, callback: Any) -> tuple[str, bytes | None, str] | None:
        # The callback of the last fit cannot be sent again: `fit` has put the model into it.
        pairs = zip(self._found, self._sent, strict=True)
        return next((sent for found, sent in pairs if found is callback), None)


script = KerasScript()


def _flat(callbacks: Any) -> list[Any]:
    if isinstance(callbacks, keras.callbacks.CallbackList):
        callbacks = callbacks.callbacks
    if isinstance(callbacks, Sequence):
        return [*callbacks]
    return [] if callbacks is None else [callbacks]


def _packed(callback: Any) -> tuple[str, bytes | None, str]:
    """Return the class of `callback`, its pickle, and the error of a process that lacks one."""
    name = type(callback).__name__
    try:
        data = cloudpickle.dumps(callback)
        why = f"{len(data)} bytes"
    except Exception as error:  # noqa: BLE001 - the script's own classes raise what they like
        data, why = None, str(error)
    if data is not None and len(data) <= MAX_CALLBACK_BYTES:
        return name, data, ""
    then = ONE_WRITES if has_writer(callback) else ALL_ARE_CALLED
    return name, None, NOT_SENT.format(name=name, why=why, then=then)


def _taken(own: list[Any], name: str, data: bytes | None, why: str) -> Any:
    """Take this process's callback of the class `name` out of `own`, or the one of rank 0."""
    for index, callback in enumerate(own):
        if type(callback).__name__ == name:
            return own.pop(index)
    if data is None:
        raise UsageError(why)
    return mark_as_sent(pickle.loads(data))  # rank 0 alone calls it


def replace_fit() -> None:
    kind: Any = keras.Model
    kind.fit, kind.evaluate = _training(kind.fit), _evaluating(kind.evaluate)


def _training(plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def train(self: Any, *arguments: Any, **named: Any) -> Any:
        asked = signature.bind(self, *arguments, **named).arguments
        if not process.is_initialized() or not is_elastic(getattr(self, "optimizer", None)):
            return plain(self, *arguments, **named)
        given = {name: value for name, value in asked.items() if name != "self"}
        return plain(self, **script.arguments(given))

    return train


def _evaluating(plain: Callable[..., Any]) -> Callable[..., Any]:
    signature = inspect.signature(plain)

    @functools.wraps(plain)
    def evaluate(self: Any, *arguments: Any, **named: Any) -> Any:
        asked = signature.bind(self, *arguments, **named)
        given = asked.arguments
        given["x"], given["steps"] = undivided(given.get("x"), given.get("steps"))
        return plain(*asked.args, **asked.kwargs)

    return evaluate


# ------------------------------------------------------------
# Let a training loop with `hvd.DistributedGradientTape` take part in the job: `TapeLoop`.
#
# A script for plain Horovod goes through all its loops over the training data from the first on,
# also in a process that joins the job later, or that resumes it. Each loop is an epoch of the job.
# A newcomer gets one batch in each loop that the job has behind it, whose result is discarded,
# until it comes to the job's epoch, and joins. In a resumed job such a loop has no batch.


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
        return self._dataset is not None

    @property
    def step_in_epoch(self) -> int:
        if current_worker().warming_up:
            return 1  # the job has made its first step
        return batch_in_epoch(current_worker())

    def batches(self, dataset: Any) -> Iterator[Any]:
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

    def check_not_left_early(self) -> None:
        self._watch.check_not_left_early()

    def check_end(self) -> None:
        self._watch.check_end()
        if self._epoch < 0:  # it may be a job resumed at its end
            is_behind = self._is_behind
        else:
            begun = self._loops == self._epoch and current_worker().loader.ledger.done
            is_behind = self._loops < self._epoch or bool(begun)
        if is_behind:
            raise ended_behind(self._loops - 1, self._warms_up and not self._has_trained)

    def _trained(self) -> Iterator[Any]:
        try:
            for batch in self._dataset:
                self.has_batch = True
                yield batch
                self.has_batch = False
        finally:
            self.has_batch = False

    def _begin(self, dataset: Any) -> None:
        models, optimizers = _outermost(keras.Model), _outermost(keras.optimizers.Optimizer)
        if (len(models), len(optimizers)) != (1, 1):
            counts = {"models": len(models), "optimizers": len(optimizers)}
            raise UsageError(ONE_OF_EACH.format(**counts))
        self._dataset = self._pipelines.elastic(dataset, None)
        build_model(models[0], self._dataset)
        Optimizer(optimizers[0], models[0])
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
    found = [one for one in gc.get_objects() if isinstance(one, kind)]
    inner = {id(getattr(one, "inner_optimizer", None)) for one in found}
    inner |= {id(getattr(one, "_functional", None)) for one in found}  # of a Sequential
    for one in found:
        if isinstance(one, keras.Model):
            inner |= {id(part) for part in one._flatten_layers(include_self=False)}
    return [one for one in found if id(one) not in inner]


def _uses_tape() -> bool:
    frame: types.FrameType | None = sys._getframe()
    while frame is not None:
        if _names_tape(frame.f_code) and not _is_library(frame.f_globals.get("__name__")):
            return True
        frame = frame.f_back
    functions = (one for one in gc.get_objects() if isinstance(one, types.FunctionType))
    return any(_names_tape(one.__code__) and not _is_library(one.__module__) for one in functions)


def _names_tape(code: types.CodeType) -> bool:
    if TAPE in code.co_names:
        return True
    return any(_names_tape(one) for one in code.co_consts if isinstance(one, types.CodeType))


def _is_library(module: Any) -> bool:
    return str(module).partition(".")[0] in ("edl", "horovod", "tensorflow", "keras")
