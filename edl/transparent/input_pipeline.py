"""Record how the script makes its ``tf.data`` pipelines, and train them: :class:`InputPipelines`.

edl deals numbered samples to processes that come and go, and the elements of a ``tf.data.Dataset``
have no numbers. So the functions that make one are changed: a data set that begins with
``from_tensor_slices``, and goes on with ``shard``, ``shuffle``, ``repeat``, ``batch``, ``take``,
``skip``, ``map``, ``cache`` and ``prefetch``, remembers that. When it is trained, edl reads the
samples from the arrays at its beginning, in the order that
:class:`edl.step.order.PipelineOrder` computes for all ranks. The data set itself
stays as TensorFlow has made it, for evaluation.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import tensorflow as tf

import edl.tensorflow
from edl.binding import process
from edl.errors import UsageError
from edl.step.order import Batch, Pipeline, PipelineOrder, Repeat, Shard, Shuffle, Skip, Stage, Take
from edl.tensorflow.random_numbers import last_seed
from edl.transparent.ranks import ranks
from edl.transparent.script import ScriptExchange

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
        """Whether the elements are batches."""
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
        """Return edl's data set of the batches that `dataset` gives to all ranks."""
        found = recorded(dataset)
        if found is None:
            raise UsageError(UNKNOWN.format(what=_unknown_part(dataset)))
        if self._trained is not None and not _alike(self._trained, (found, steps)):
            raise UsageError(TWICE)
        if self._elastic is None:
            seed = self._agreed_seed(found.digest())
            self._trained, self._elastic = (found, steps), _elastic(found, steps, seed)
        return self._elastic

    def _agreed_seed(self, digest: str) -> int:
        """Return the seed of TensorFlow on rank 0, which becomes that of this process, too."""
        answers = self._exchanges.known(f"{digest} {last_seed()}".encode())
        found = [answer.decode().split() for answer in answers]
        if any(other != digest for other, _ in found):
            raise UsageError(DIFFER)
        seed = int(found[0][1])
        if seed != last_seed():  # each rank may draw numbers of its own: edl does so
            tf.random.set_seed(seed)
        return seed

    def is_trained(self, dataset: Any) -> bool:
        """Return whether `dataset` is the one that `elastic` was given."""
        found = recorded(dataset)
        if found is None or self._trained is None:
            return False
        return _alike(self._trained, (found, self._trained[1]))


def _alike(one: tuple[Recorded, int | None], other: tuple[Recorded, int | None]) -> bool:
    """Return whether two data sets, each with its steps of an epoch, give the same batches."""
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
    dataset: Any = edl.tensorflow.Dataset(arrays, found.pipeline.batch.size, order=order)
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


def _take(count: Any, name: Any = None) -> Stage | None:
    return Take(_number(count)) if _number(count) >= 0 else None


def _skip(count: Any, name: Any = None) -> Stage | None:
    return Skip(_number(count)) if _number(count) >= 0 else None


def _shard(num_shards: Any, index: Any, name: Any = None) -> Stage | None:
    whole = process.is_initialized() and _number(num_shards) == ranks()
    return Shard(ranks()) if whole else None


_STAGES: dict[str, Callable[..., Stage | None]] = {
    "shuffle": _shuffle,
    "repeat": _repeat,
    "batch": _batch,
    "take": _take,
    "skip": _skip,
    "shard": _shard,
}


def _take_of_all(whole: Any, count: Any, name: Any = None) -> Any:
    return PLAIN["take"](whole, _number(count) * ranks())


def _skip_of_all(whole: Any, count: Any, name: Any = None) -> Any:
    return PLAIN["skip"](whole, _number(count) * ranks())


_COUNTING: dict[str, Callable[..., Any]] = {"take": _take_of_all, "skip": _skip_of_all}
RECORDED = (*_STAGES, *_SAME, "map")


def _noted(before: Recorded, name: str, arguments: Any, named: Any) -> Recorded | None:
    """Return what is known of a data set that a method has made; None: nothing."""
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
    """Return a method in place of `tf.data.Dataset`'s method `name` that notes the call."""
    plain = PLAIN[name]
    of_all = _COUNTING.get(name, plain)

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
    """Take the place of `tf.data.Dataset.from_tensor_slices`."""
    made = PLAIN[FIRST](*arguments, **named)
    if tf.executing_eagerly():
        samples = int(made.cardinality().numpy())
        setattr(made, _MARK, Recorded(made, Pipeline(samples)))
    return made


@functools.cache
def record_pipelines() -> None:
    """Let the functions of `tf.data` note what the script makes by them, from now on."""
    kind: Any = tf.data.Dataset
    PLAIN[FIRST] = getattr(kind, FIRST)
    for name in RECORDED:
        PLAIN[name] = getattr(kind, name)
        setattr(kind, name, _recording(name))
    setattr(kind, FIRST, staticmethod(functools.wraps(PLAIN[FIRST])(_from_tensor_slices)))
