"""Define ``edl.tensorflow.Dataset``, a function that declares what the job trains on.

It returns a ``tf.data.Dataset`` of the batches of this worker alone, in the order of the steps that
train them. edl leases the samples of an epoch to the workers, so each worker loads others.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NoReturn

import numpy as np
import tensorflow as tf
from keras.src.trainers.data_adapters import array_slicing
from tensorflow.python.data.ops import dataset_ops

from edl.binding.loop import asked_length, batch_in_epoch
from edl.binding.process import unhiding
from edl.errors import UsageError
from edl.step.source import SampleOrder
from edl.tensorflow import training
from edl.tensorflow.collectives import as_it_is, watch_strategies
from edl.tensorflow.feed import AHEAD, PipelineBatchSource
from edl.tensorflow.logical import check_deterministic
from edl.tensorflow.replica import own_operation_seeds
from edl.tensorflow.source import PROBES, Collate, Load, cast_like, check_fits, signature_of

# What may follow: one element in, one out, in the same order.
_KEEPS_ORDER = ("map", "prefetch", "with_options")
_LOOKS_ON = ("as_numpy_iterator", "cardinality", "fingerprint", "options")

LOOP_AFTER_FIT = (
    "this script has called fit, and a newcomer could not tell how far the job is in a loop that "
    "follows: go on with fit (a train_step of the model's own does what a loop does), or run the "
    "loop as a job of its own; at a prompt, edl.init() begins a new job"
)

OUTSIDE = (
    "an edl.Dataset is for training: give callbacks=[edl.KerasCallback()] to model.fit, so that a "
    "newcomer can start in the job's current epoch, or iterate it inside `for epoch in "
    "dataset.epochs(n):`. To evaluate or predict, use arrays or a tf.data.Dataset"
)
INSIDE_FIT = (
    "fit takes the batches of the edl.Dataset, each for one step of the job, and its callbacks and "
    "train_step cannot iterate it: to evaluate or predict, use arrays or a tf.data.Dataset"
)


class _Readers(threading.local):
    """A flag of each thread: whether its TensorFlow may read an `ElasticDataset` at the moment."""

    own = False

    @contextmanager
    def ours(self) -> Iterator[None]:
        before, self.own = self.own, True
        try:
            yield
        finally:
            self.own = before


_readers = _Readers()


class ElasticDataset(dataset_ops.UnaryUnchangedStructureDataset):
    """A ``tf.data.Dataset`` of this worker's batches, in which each batch belongs to one step.

    ``map``, ``prefetch`` and ``with_options`` keep the order of the batches, and return another
    ElasticDataset. ``apply``, ``as_numpy_iterator``, ``cardinality``, ``fingerprint`` and
    ``options`` are allowed, too; all other methods of ``tf.data.Dataset`` raise UsageError.
    """

    def __init__(self, batches: tf.data.Dataset) -> None:
        super().__init__(batches, batches._variant_tensor)
        watch_strategies(ElasticDataset)
        if tf.executing_eagerly() and self.options().deterministic is False:
            raise UsageError(
                "edl.Dataset: options with deterministic=False would mix up the batches"
            )
        training.current().newest_dataset = self

    @property
    def _variant_tensor(self) -> Any:
        """The handle by which TensorFlow iterates this data set, or makes other data sets of it."""
        if tf.inside_function():
            _check_outside()
        # Batches that leave in another way (tf.data.Dataset.zip, copy_to_device, an iterator of
        # TensorFlow's own, loops that AutoGraph has taken apart) would not be those of the steps.
        if not _readers.own:
            raise UsageError(_OTHER_READER.format(reader=_reader()))
        return super()._variant_tensor

    def __tf_tracing_type__(self, _: Any) -> NoReturn:
        raise UsageError(_OTHER_READER.format(reader="a tf.function, as its argument"))

    def apply(self, transformation_func: Callable[[Any], Any]) -> ElasticDataset:
        """Return ``transformation_func(self)``, which must be an ElasticDataset."""
        made = transformation_func(self)
        if not isinstance(made, ElasticDataset):
            raise UsageError(_OTHER_READER.format(reader=f"apply() with {_called(made)}"))
        return made

    @property
    def batch_index(self) -> int:
        """The index in its epoch, from 0, of the batch that the script or ``fit`` was given last.

        It counts the job's batches, the same on all workers. Before the first batch of an epoch it
        is 0 in a loop over ``epochs()``; in ``fit`` it still is the last of the epoch before.
        """
        now = training.current()
        return now.batch if now.fitting else batch_in_epoch(now.worker)

    def fingerprint(self) -> Any:
        """Return ``tf.data``'s number for the pipeline, as any data set does."""
        with _readers.ours():
            return super().fingerprint()

    def options(self) -> Any:
        """Return the ``tf.data.Options`` of the data set."""
        with _readers.ours():
            return super().options()

    def __len__(self) -> int:
        # Before this worker's first step it is the number for as many workers as the job began
        # with: a schedule over `epochs * len(dataset)` steps is the same on newcomers.
        loader = training.current().worker.loader
        if not loader.progress.source.known_total:
            raise TypeError("an edl.Dataset of a stream has no length: it shows at its end")
        return loader.iterations_of_epoch

    def cardinality(self) -> Any:
        """Return ``len(dataset)`` as a scalar int64 tensor; unknown to Keras, and for a stream."""
        caller = str(sys._getframe(1).f_globals.get("__name__"))
        stream = not training.current().worker.loader.progress.source.known_total
        # If `fit` knew a number, it would end each epoch after that many batches.
        if stream or caller.startswith("keras."):
            return tf.constant(tf.data.UNKNOWN_CARDINALITY, tf.int64)
        return tf.constant(len(self), tf.int64)

    def epochs(self, count: int | None = None, *, max_steps: int | None = None) -> Iterator[int]:
        """Return an iterator over the numbers of the epochs to train, from the job's current one.

        On a newcomer it first yields the number of an epoch that has one batch, to warm up: the
        newcomer trains that batch alone, and the result is discarded. When the script asks for the
        next number, the newcomer joins the ring, and gets the job's current epoch.

        Args:
            count: the number of epochs of the job, so ``count - 1`` is the last number; None: as
                many as ``max_steps`` updates take.
            max_steps: the training ends when the job has made this many updates (``edl.step()``),
                even inside an epoch; None: it ends after ``count`` epochs.

        Raises:
            UsageError: both arguments are None, ``max_steps`` is not a whole number of at least 1,
                there is no ``edl.Optimizer`` yet, its model has no variables yet, or the script has
                called ``fit`` before.
        """
        asked_length("dataset.epochs()", count, max_steps)
        now = training.current()
        if now.fit_calls.done:
            raise UsageError(LOOP_AFTER_FIT)
        if now.replica is None:
            raise UsageError("create an edl.Optimizer before `for epoch in dataset.epochs(n)`")
        now.replica.variables()
        if now.worker.logical:
            now.buffers()
        return self._epochs(now, count, max_steps)

    @classmethod
    def endless_epochs(cls) -> Iterator[int]:
        """Return an iterator over the job's epochs for scripts that do not say how long they train.

        When such a script has ended, the job has finished.
        """
        return cls._epochs(training.current(), None, None)

    def steps(self, count: int) -> Iterator[Any]:
        """Return an iterator over this worker's batches, until the job has made ``count`` updates.

        It goes through as many epochs as needed, and ends on all workers alike when
        :func:`edl.step`, which counts the updates of the whole job (those before a resume, too), is
        ``count``. A newcomer first gets one batch to warm up.

        Raises:
            UsageError: ``count`` is not a whole number of at least 1, there is no ``edl.Optimizer``
                yet, its model has no variables yet, or the script has called ``fit`` before.
        """
        asked_length("dataset.steps()", None, count)
        epochs = self.epochs(max_steps=count)
        return (batch for _ in epochs for batch in self)

    @staticmethod
    def _epochs(now: training.Training, count: int | None, max_steps: int | None) -> Iterator[int]:
        for epoch in now.steps.epochs(count, max_steps):
            yield epoch
            now.finish_step()  # of the batch after which the script has left its loop

    def __iter__(self) -> Iterator[Any]:
        now = training.current()
        _check_outside()
        if now.fitting:
            if not now.feed.fit_iterates:  # it would wait for ever, as only fit begins steps
                raise UsageError(INSIDE_FIT)
            now.feed.fit_iterates = False
            raw = self._raw()
            now.feed.watch(raw)
            return raw
        now.steps.check_may_iterate(OUTSIDE)
        return self._batches(now)

    def _raw(self) -> Iterator[Any]:
        # Each batch waits until a step has made edl form it.
        with _readers.ours():
            raw: Iterator[Any] = super().__iter__()
        return raw

    def _batches(self, now: training.Training) -> Iterator[Any]:
        with now.steps.looping(), now.feed.receiving(self._raw()) as receive:
            while now.begin_step():
                with unhiding():
                    batch = receive()
                yield batch


_OTHER_READER = (
    "an edl.Dataset is read by {reader}, which would take batches ahead of their steps or pair "
    "them with data of other samples, so only map, prefetch and with_options may follow it; put "
    "all that belongs to a sample into the source, edl.Dataset((x, y, weights)), and leave out "
    "transfers to a device, which TensorFlow does by itself"
)


def _reader() -> str:
    """Return words for the code of TensorFlow that tries to read an edl.Dataset."""
    frame = sys._getframe(2)
    while frame is not None and "/tensorflow/" in frame.f_code.co_filename.replace("\\", "/"):
        other = frame.f_locals.get("self")
        if isinstance(other, tf.data.Dataset) and not isinstance(other, ElasticDataset):
            return _called(other)
        if "/distribute/" in frame.f_code.co_filename:
            return "a tf.distribute strategy"
        frame = frame.f_back  # type: ignore[assignment]
    return "something else than its own methods"


def _called(made: Any) -> str:
    name = type(made).__name__.strip("_").removesuffix("V2").removesuffix("V1")
    return f"a {name}"


def _check_outside() -> None:
    if tf.executing_eagerly():
        return
    if tf.inside_function():
        raise UsageError(
            "an edl data set cannot be iterated inside a tf.function: take its batches "
            "outside, and call the function with each"
        )
    raise UsageError(
        "the script builds graphs (eager execution is disabled), and an edl.Dataset is iterated "
        "eagerly: use tf.data.Dataset.from_generator(edl.elastic_shard_generator(...)) there"
    )


def _keeping(name: str) -> Any:
    plain = getattr(dataset_ops.UnaryUnchangedStructureDataset, name)

    def method(self: ElasticDataset, *arguments: Any, **named: Any) -> ElasticDataset:
        if named.get("deterministic", arguments[2] if len(arguments) > 2 else None) is False:
            raise UsageError(f"edl.Dataset: {name}(deterministic=False) would mix up the batches")
        worker = training.current().worker
        with _readers.ours(), own_operation_seeds(worker):
            made = plain(self, *arguments, **named)
            if worker.logical:
                check_deterministic(made)
            return ElasticDataset(made)

    return method


def _spoiling(name: str) -> Any:

    def method(*_: Any, **__: Any) -> NoReturn:
        _check_outside()  # AutoGraph makes a scan or a reduce of a loop
        raise UsageError(
            f"edl.Dataset: {name}() would break the link between batches and leases, by which "
            f"each sample is trained once; only {', '.join(_KEEPS_ORDER)} may follow "
            "(shuffle, seed and batch_size are arguments of edl.Dataset)"
        )

    return method


for _name in _KEEPS_ORDER:
    setattr(ElasticDataset, _name, _keeping(_name))
# All else, so that nothing slips through that this or a later TensorFlow has beside it.
for _name, _ in inspect.getmembers_static(tf.data.Dataset, inspect.isfunction):
    if not _name.startswith("_") and _name not in (*_KEEPS_ORDER, *_LOOKS_ON, "apply"):
        setattr(ElasticDataset, _name, _spoiling(_name))


def Dataset(
    source: Any,
    batch_size: int = 1,
    shuffle: bool = False,
    seed: int | None = None,
    *,
    max_global_batch: int | None = None,
    global_batch: int | tuple[int, int] | None = None,
    collate_fn: Collate | None = None,
    order: SampleOrder | None = None,
) -> ElasticDataset:
    """Return a ``tf.data.Dataset`` of this worker's batches, declaring what the job trains on.

    Use it in a loop::

        for epoch in dataset.epochs(10):
            for x, y in dataset:
                train_step(x, y)

    or in ``model.fit(dataset, epochs=10, callbacks=[edl.KerasCallback()])``.

    Every sample of an epoch is trained exactly once, whichever workers join or leave meanwhile. All
    workers leave an epoch after the same step. If this worker has no samples left and others do, it
    gets a padding batch: as a rule the first samples of the epoch, with gradients of weight zero.
    The last batches of an epoch may be smaller. A script calls this function once.

    Args:
        source: columns (an array, a list of labels, a data frame, a tensor; a tuple or dict of
            them), anything with ``__len__`` and ``__getitem__(i)``, which returns one sample,
            ``edl.data.stream(shards, open)``, or an iterable set with ``state_dict`` and
            ``load_state_dict``; the same on all workers.
        batch_size: samples of one worker in a step; the global batch is this number times the
            number of workers.
        shuffle: whether to shuffle the samples (of a stream: its shards) anew in each epoch; the
            order is a function of (seed, epoch) alone. False: the order of the source.
        seed: the seed of the shuffled order; the same on all workers. None: 0.
        max_global_batch: the largest global batch, in samples; with more workers the batch of each
            worker becomes smaller. None: there is no limit.
        global_batch: in place of batch_size: the samples of all workers together, the same in each
            step whichever workers come and go (a worker's share is then loaded when its step
            begins, not before); or a tuple of the smallest and the largest number, between which
            the job chooses by its goodput (throughput times statistical efficiency). None:
            ``batch_size`` holds.
        collate_fn: ``collate_fn(samples)`` gets a list of samples, and returns the arrays of a
            batch, as an array, a tuple or a dict; for example it pads samples to the longest of a
            batch. A dimension that differs among the first, the last and some samples between is
            None in ``element_spec``. None: samples are stacked.
        order: which sample is at each position of an epoch, in place of ``shuffle`` and ``seed``;
            the same on all workers. None: they decide.

    Raises:
        DataError: the source is empty, or its columns differ in length.
        UsageError: ``edl.init()`` was not called; edl cannot number the samples of the source, to
            tell which are trained (those of a ``tf.data.Dataset``, say); there is a data set
            already; the script has called ``fit``; or the batch sizes are out of range, or are set
            by the job's policy, too.
    """
    now = training.current()
    # Of fit, whose default that is: the data set has an order of its own.
    warnings.filterwarnings("ignore", "`shuffle=True` was passed, but will be ignored", UserWarning)
    _watch_validation_split()
    now.order = order
    given = source, batch_size, shuffle, seed, max_global_batch, global_batch
    load = now.attach_source(*given, collate=collate_fn)
    first = now.worker.loader.sampler.warm_up()
    if collate_fn is None:
        signature, fitting = signature_of(load(first)), cast_like
    else:
        probes: list[Any] = []  # of one sample each, whose shapes tell which dimensions vary
        if not now.is_stream:
            last = now.worker.loader.progress.source.known_total - 1
            at = np.unique(np.linspace(0, last, PROBES).astype(np.int64))
            probes = [load(replace(first, indices=np.array([index]))) for index in at]
        signature, fitting = signature_of(load(first), probes, now.is_stream), check_fits
    plain = load
    now.load = load = lambda batch: fitting(plain(batch), signature)
    # The end of an iterator waits for its autotuning thread, which often does not notice and sleeps
    # until its next round (OptimizeLoop in TensorFlow's model.cc), in up to 10 s. AUTOTUNE in a map
    # that follows still uses every core.
    options = tf.data.Options()
    options.autotune.enabled = False
    batches = _batches_of(now.feed, load, signature)
    return ElasticDataset(batches.prefetch(AHEAD).with_options(options))


@functools.cache
def _watch_validation_split() -> None:
    # Keras splits arrays only, and would fail with a traceback of its own.
    plain = array_slicing.train_validation_split

    def train_validation_split(arrays: Any, validation_split: float) -> Any:
        if any(isinstance(each, ElasticDataset) for each in tf.nest.flatten(arrays)):
            raise UsageError(
                "fit cannot split an edl.Dataset: give the part for validation in validation_data, "
                "and the other one to edl.Dataset, in place of validation_split"
            )
        return plain(arrays, validation_split)

    array_slicing.train_validation_split = train_validation_split


def _batches_of(feed: PipelineBatchSource, load: Load, signature: Any) -> tf.data.Dataset:
    # Not by `tf.data.Dataset.from_generator`: under Python 3.11 its first use makes TensorFlow pin
    # glibc's threshold for mmap at 128 KiB, and from then on every larger tensor of the process is
    # new memory that must be faulted in (measured: a step of 59 ms of CPU time took 113).
    specs = tf.nest.flatten(signature)
    nothing = [
        np.zeros([0 if n is None else n for n in s.shape], s.dtype.as_numpy_dtype) for s in specs
    ]

    def following(reader: int) -> list[Any]:
        if (samples := feed.take(int(reader), load)) is None:
            return [np.bool_(False), *nothing]
        return [np.bool_(True), *tf.nest.flatten(samples)]

    @as_it_is
    def loaded(reader: Any) -> tuple[Any, Any]:
        types = [tf.bool, *(spec.dtype for spec in specs)]
        more, *parts = tf.numpy_function(following, [reader], types)
        more.set_shape(())
        for part, spec in zip(parts, specs, strict=True):
            part.set_shape(spec.shape)
        return more, tf.nest.pack_sequence_as(signature, parts)

    @as_it_is
    def reader(_: Any) -> tf.data.Dataset:  # which ends the readers before it
        number = tf.numpy_function(lambda: np.int64(feed.open()), [], tf.int64)
        return tf.data.Dataset.from_tensors(number).repeat()

    both = tf.data.Dataset.range(1).flat_map(reader).map(loaded)
    return both.take_while(as_it_is(lambda more, _: more)).map(as_it_is(lambda _, batch: batch))
