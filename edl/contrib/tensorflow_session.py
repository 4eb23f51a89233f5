"""Define the graph mode of edl: sessions that take part in the job, and the data of their graphs.

A run of a session trains if its fetches depend on the gradients that the ``edl.Optimizer`` reduces.
Before such a run this worker's next batch is handed out. The script brings the batch into the
graph: by ``from_generator`` with :func:`elastic_shard_generator`, or by a feed with
:func:`next_batch`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from edl.binding.loop import refuse_logical
from edl.binding.process import unhiding
from edl.errors import UsageError
from edl.events import TrainingStoppedDetails
from edl.step.source import TrainingLength
from edl.tensorflow import training
from edl.tensorflow.reduction import REDUCED

logger = logging.getLogger(__name__)

# A repair reads variables while a run of the same session is under way, and a reader of tf.data
# may wait for its next batch. With more threads than processors a step costs more: measured on 2,
# beside plain Horovod, 1.10 with 4 threads and 1.02 with 3.
MIN_THREADS = 3
ONE_THREAD = (
    "this session cannot be repaired inside of it, for it runs one operation at a time; use "
    "edl.Session"
)


def elastic_shard_generator(
    source: Any = None,
    batch_size: int = 1,
    epochs: int = 1,
    shuffle: bool = False,
    seed: int | None = None,
    *,
    max_global_batch: int | None = None,
    global_batch: int | tuple[int, int] | None = None,
) -> Callable[[], Iterator[Any]]:
    """Declare what the job trains on, and return a function that yields this worker's batches.

    Give the function to ``tf.data.Dataset.from_generator``. Every sample of an epoch enters the
    model exactly once, whichever workers join or leave meanwhile. Only stages that keep the order
    (``map``, ``prefetch``) may follow. The last batch of an epoch may be smaller, so let the
    ``output_signature`` have None for the number of samples.

    Args:
        source: columns (arrays, lists, data frames, tensors; a tuple or dict of them), or anything
            with ``__len__`` and ``__getitem__(i)``, which returns one sample; or a stream of
            samples, as for :func:`edl.tensorflow.Dataset`. None raises UsageError.
        batch_size: samples of one worker in a step.
        epochs: how many epochs the job trains, at least 1; then ``edl.Session.Done()`` is true.
        shuffle: whether to shuffle the samples (of a stream: its shards) anew in each epoch.
        seed: the seed of the shuffled order; the same on all workers. None: 0.
        max_global_batch: the largest global batch, in samples; None: there is no limit.
        global_batch: in place of ``batch_size``, the samples of all workers together; or a tuple of
            the smallest and the largest number, between which the job chooses. None: ``batch_size``
            holds.

    Returns:
        A function without arguments. Each call returns an iterator over the batches, as arrays in
        the structure of the source. The iterator of an earlier call ends when this one is read.

    Raises:
        DataError: the source is empty, or its columns differ in length.
        UsageError: no source is given, edl cannot number its samples, or there is a source already;
            ``epochs`` or the arguments of the batch are out of range.
    """
    now = training.current()
    if source is None:
        raise UsageError(
            "edl.elastic_shard_generator() lacks the source, what to train on: give it arrays, "
            "elastic_shard_generator((x, y), batch_size=32), or anything with __len__ and "
            "__getitem__; there is no file system of the job's that it could find them in"
        )
    if epochs < 1:
        raise UsageError(f"epochs is {epochs}; it must be at least 1")
    what = "edl.elastic_shard_generator"
    refuse_logical(now.worker, "a graph of TensorFlow 1 trains")
    now.attach_source(source, batch_size, shuffle, seed, max_global_batch, global_batch, what)
    now.epochs = epochs
    now.worker.loader.progress.length = TrainingLength(epochs)
    return now.batches


def next_batch() -> Any:
    """Return the arrays of the next step's batch, to be fed to the graph in ``feed_dict``.

    The samples are of the source that :func:`elastic_shard_generator` has declared. A second call
    before the batch is trained returns the same batch.

    Raises:
        UsageError: no source was declared, the training is over, or no edl.Session and no session
            with an edl.SessionHook was opened.
    """
    now = training.current()
    if now.load is None:
        raise UsageError("declare the data before edl.next_batch(): elastic_shard_generator(...)")
    job = _job()
    now.finish_step()
    if not now.worker.loader.open:
        job.feeds = True
        job.begin()
        now.feed.skip()
    assert now.worker.loader.engine.batches.newest is not None
    return now.load(now.worker.loader.engine.batches.newest)


class _GraphJob:
    """What hands out the batches of a job whose model is a graph in one session."""

    def __init__(self, session: tf.compat.v1.Session, tried: bool = False) -> None:
        self._training = training.current()
        self._training.graph = session.graph
        self._session = session
        self._tried = tried  # a run of the graph has trained for nothing
        self.feeds = False  # the script takes its batches by next_batch()
        self._entered = False
        self._finished = False
        self._found: dict[int, tuple[bool, bool]] = {}  # by id of an operation
        replica = self._training.replica
        if replica is None:
            raise UsageError("create an edl.Optimizer before the session")
        if self._training.epochs == 0:
            raise UsageError("the job has no data: call edl.elastic_shard_generator(...)")
        for operation in session.graph.get_operations():
            if "Shuffle" in operation.type and "Dataset" in operation.type:
                sources = {each.type for each in _before(operation)}
                if "FlatMapDataset" in sources:  # how from_generator begins
                    raise UsageError(
                        "the data set is shuffled after edl.elastic_shard_generator: that would "
                        "break the link between batches and leases, by which each sample is "
                        "trained once; give shuffle=True to elastic_shard_generator instead"
                    )
        replica.use_session(session)
        plain_close, thread = session.close, threading.get_ident()

        def close() -> None:
            try:
                # After an error TensorFlow closes a session in another thread.
                if threading.get_ident() == thread and sys.exc_info()[0] is None:
                    self.end()
            finally:
                if self._entered and not (self._finished or self._training.worker.warming_up):
                    with contextlib.suppress(tf.errors.OpError):
                        replica.keep_values()  # the script may go on, and end as others do
                # Or TensorFlow would wait for its thread, which waits for us.
                self._training.feed.end()
                plain_close()

        session.close = close
        config = session._config
        threads = (config and config.inter_op_parallelism_threads) or os.cpu_count() or 1
        if threads == 1:
            self._training.reduction.cannot_repair(ONE_THREAD)

    def done(self) -> bool:
        """Return whether all epochs are trained; then finish the training with all others."""
        now, worker = self._training, self._training.worker
        now.finish_step()
        if self._finished or not self._entered:
            return self._finished
        if (
            worker.loader.ledger.finished
            and not worker.loader.open
            and worker.loader.epoch + 1 >= now.epochs
        ):
            self._finished = True
            now.feed.end()
            worker.finishing.finish()
        return self._finished

    def end(self) -> None:
        worker = self._training.worker
        if self._entered and not (self._finished or worker.warming_up):
            self._training.finish_step()
            self._finished = True
            self._training.feed.end()
            worker.finishing.finish(early=True)

    def stops(self, asks: bool) -> bool:
        """Return whether all workers stop after the last step; `asks`: a hook of this one asks."""
        # They do if all ask, or one had asked before that step: hooks see their own worker's loss.
        worker = self._training.worker
        progress = worker.loader.progress
        if worker.warming_up:
            return False
        if self.done() or not self._entered:
            return self._finished or asks
        if not progress.stop:
            if not asks:
                return False
            if not worker.loader.wants_to_stop:
                logger.info("w%d wants to stop training: a hook asks to", worker.id)
            worker.loader.wants_to_stop = True
            self.begin()
            if self.feeds:
                self._training.feed.skip()
            if not worker.loader.all_stop():
                return False
        message = training.STOP.format(step=worker.step, reason=progress.stop)
        logger.info("%s", message)
        worker.log_event(TrainingStoppedDetails(), message)
        return True

    def begin(self) -> None:
        """Hand out the next batch, unless a batch that was handed out is not trained yet."""
        now, worker = self._training, self._training.worker
        now.finish_step()
        if worker.loader.open:
            return
        if worker.warming_up and not self._tried:
            self._tried = True
            now.steps.begin()
            return
        if not self._entered:
            self._entered = True
            if worker.warming_up:
                assert now.replica is not None
                now.replica.rehearse()
            now.steps.enter()
        if self.done():
            raise UsageError("all epochs are trained; ask edl.Session.Done() before each step")
        while not now.steps.begin():
            worker.loader.next_epoch()

    def trains(self, fetches: Any) -> bool:
        """Return whether a run of these `fetches` trains: they depend on reduced gradients."""
        flat = tf.nest.flatten(fetches)
        found = [self._depends(_operation(self._session.graph, fetch)) for fetch in flat]
        reduces = any(reduced for reduced, _ in found)
        if reduces and not any(applied for _, applied in found):
            raise UsageError(
                "this run computes the gradients of a batch and does not apply them; fetch them "
                "together with what optimizer.apply_gradients() returned"
            )
        return reduces

    def _depends(self, operation: tf.Operation) -> tuple[bool, bool]:
        """Return two bools: does `operation` depend on reduced gradients, and on an update?"""
        found = self._found.get(id(operation))
        if found is None:
            before = set(_before(operation))
            updates = {_operation(self._session.graph, each) for each in self._training.updates}
            here = {each for each in updates if each.graph is self._session.graph}
            # All updates may be in other graphs, such as a branch of tf.cond: taken for a yes.
            found = (any(map(_reduces, before)), not here or not here.isdisjoint(before))
            self._found[id(operation)] = found
        return found


_current: _GraphJob | None = None
_plain = False  # _current is of a session that does not ask for batches itself


def notify_batch_end() -> None:
    """Complete the step of the batch that was trained, so that the ledger counts its samples.

    In a graph, call it after each training step; a second call in the same step does nothing.
    Outside of graphs, taking the next batch completes the step, and this call is needed only before
    code that reads :func:`edl.tensorflow.step` after the update.

    In a plain ``tf.compat.v1.Session``, which must be the default session, this function also hands
    out the next batch. The first run of such a session updates nothing, and the first call, which
    follows it, lets the session take part in the job. When all epochs are trained, the data set of
    batches ends, so the next run that reads it raises ``tf.errors.OutOfRangeError``.

    Raises:
        UsageError: the graph has read a batch, and there is neither an edl.Session, a session with
            an edl.SessionHook, nor a default session; or there is no edl.Optimizer.
    """
    global _current, _plain
    now = training.current()
    now.finish_step()
    if _current is None and now.epochs and now.feed.trial:
        session = tf.compat.v1.get_default_session()
        if session is None:
            raise UsageError(
                "no session knows the job: use edl.Session, or call edl.notify_batch_end() inside "
                "`with tf.compat.v1.Session() as s:`"
            )
        _current, _plain = _GraphJob(session, tried=True), True
    if _plain and not _job().done():
        _job().begin()


def _job() -> _GraphJob:
    if _current is None:
        raise UsageError("no session knows the job: use edl.Session, or edl.SessionHook")
    return _current


class Session(tf.compat.v1.Session):
    """A ``tf.compat.v1.Session`` whose training runs are the steps of the job.

    Use it as a context manager::

        with edl.Session() as s:
            while not s.Done():
                s.run(train)
                edl.notify_batch_end()

    Entering the session initialises all variables; before the first step they get the job's values.
    When a worker dies in a step, ``run`` completes the step with the survivors.

    Args:
        target: the execution engine, as for TensorFlow's class; "": in this process.
        graph: the graph to run; None: the default graph.
        config: TensorFlow's ``ConfigProto``; if its ``inter_op_parallelism_threads`` is 0 to 2, it
            becomes the number of processors, at least 3. None: the default configuration.

    Raises:
        UsageError: TensorFlow executes eagerly and ``graph`` is None; or, on entering the session,
            there is no edl.Optimizer or no data, or the graph shuffles edl's batches.
    """

    def __init__(self, target: str = "", graph: Any = None, config: Any = None) -> None:
        if graph is None and tf.executing_eagerly():
            raise UsageError(
                "edl.Session needs a graph, and TensorFlow executes eagerly: call "
                "tf.compat.v1.disable_eager_execution() at the start of the script, or use "
                "edl.Dataset without a session"
            )
        if config is None:
            config = tf.compat.v1.ConfigProto()
        if 0 <= config.inter_op_parallelism_threads < MIN_THREADS:
            config.inter_op_parallelism_threads = max(MIN_THREADS, os.cpu_count() or 1)
        super().__init__(target, graph, config)
        self._edl: _GraphJob | None = None

    def __enter__(self) -> Session:
        global _current
        super().__enter__()
        self._edl = _current = _GraphJob(self)
        super().run(
            [
                tf.compat.v1.global_variables_initializer(),
                tf.compat.v1.local_variables_initializer(),
                tf.compat.v1.tables_initializer(),
            ]
        )
        return self

    def Done(self) -> bool:
        """Return whether all epochs are trained; ask before each step.

        It becomes True on all workers after the same step; this worker's training is then finished.

        Raises:
            UsageError: no session was entered.
        """
        return _job().done()

    def run(
        self, fetches: Any, feed_dict: Any = None, options: Any = None, run_metadata: Any = None
    ) -> Any:
        """Run ``fetches`` as ``tf.compat.v1.Session.run`` does, and return their values.

        If they depend on reduced gradients, the run trains: the next batch is handed out before it,
        and the run is one step of the job.

        Args:
            fetches: tensors, operations or their names, in any nested structure.
            feed_dict: the values to feed, by tensor; None: nothing is fed.
            options: TensorFlow's ``RunOptions``; None: the defaults.
            run_metadata: TensorFlow's ``RunMetadata``, which the run fills in; None: it is not
                wanted.

        Returns:
            The values, in the structure of ``fetches``.

        Raises:
            UsageError: ``fetches`` need gradients and no update, or all epochs are trained.
        """
        job = self._edl
        if job is None or not job.trains(fetches):
            return super().run(fetches, feed_dict, options, run_metadata)
        job.begin()
        with unhiding():
            result = super().run(fetches, feed_dict, options, run_metadata)
        training.current().reduction.raise_pending()
        return result


class SessionHook(tf.compat.v1.train.SessionRunHook):
    """A hook that lets a ``MonitoredTrainingSession`` of TensorFlow 1 train as part of the job.

    Give it as in ``tf.compat.v1.train.MonitoredTrainingSession(hooks=[edl.SessionHook()])``. The
    session stops when all epochs are trained. Give the session no ``checkpoint_dir``, which
    newcomers would read in place of the job's state; :mod:`edl.checkpoint` saves the job.
    """

    def __init__(self) -> None:
        self._job: _GraphJob | None = None
        self._coordinator: Any = None
        self._asks = False  # a hook asks to stop
        self._has_run = False  # other hooks may yet ask, after this one

    def after_create_session(self, session: Any, coord: Any) -> None:
        """Let ``session`` take part in the job; TensorFlow calls this when it has made it."""
        global _current
        self._job, self._coordinator = _GraphJob(session), coord
        _current = self._job

    def before_run(self, run_context: Any) -> None:
        """Hand out the next batch if the run to come trains."""
        self._asks, self._has_run = run_context.stop_requested, False
        # What a hook asks for is first agreed on by all workers.
        run_context._stop_requested = False
        run_context.request_stop = functools.partial(self._request_stop, run_context)
        if self._trains(run_context):
            _job().begin()

    def after_run(self, run_context: Any, run_values: Any) -> None:
        """Stop all workers after the same step: after all epochs, or when a hook has asked to."""
        self._has_run = True
        asks = self._asks or self._coordinator.should_stop()
        if asks or self._trains(run_context):
            self._stop(run_context, asks)

    def end(self, session: Any) -> None:
        """End the training before ``session`` closes, as all others do, or raise JobFailed."""
        if self._job is not None:
            self._job.end()

    def _request_stop(self, run_context: Any) -> None:
        self._asks = True
        if self._has_run and not run_context.stop_requested:
            self._stop(run_context, True)

    def _stop(self, run_context: Any, asks: bool) -> None:
        if _job().stops(asks):
            type(run_context).request_stop(run_context)
        elif self._coordinator.should_stop():
            self._coordinator.raise_requested_exception()
            self._coordinator.clear_stop()

    def _trains(self, run_context: Any) -> bool:
        return self._job is not None and self._job.trains(run_context.original_args.fetches)


def _operation(graph: tf.Graph, fetch: Any) -> tf.Operation:
    if isinstance(fetch, str):
        fetch = graph.as_graph_element(fetch)
    return fetch if isinstance(fetch, tf.Operation) else fetch.op


def _reduces(operation: tf.Operation) -> bool:
    name = operation.name.rpartition("/")[2]
    return bool(operation.type.endswith("PyFunc") and name.startswith(REDUCED))


def _before(operation: tf.Operation) -> Iterator[tf.Operation]:
    seen, waiting = {operation}, [operation]
    while waiting:
        each = waiting.pop()
        yield each
        for earlier in (*(tensor.op for tensor in each.inputs), *each.control_inputs):
            if earlier not in seen:
                seen.add(earlier)
                waiting.append(earlier)
