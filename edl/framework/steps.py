"""Hand out the batches of a script's training loop: epochs, padding, and a newcomer's warm-up.

:class:`BatchSteps` does so, for the loader or data set of each framework, which implements
:class:`BatchSource`, the queue of batches.
"""

from __future__ import annotations

import logging
import math
import numbers
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

from edl.core.step.batch import Batch
from edl.core.step.training_length import TrainingLength
from edl.errors import UsageError
from edl.framework.process import is_over
from edl.framework.random_numbers import EPOCH, LOOP_END, RandomNumbers
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)


class BatchSource(Protocol):
    """The interface of a queue of batches that are not trained yet."""

    def restart(self) -> None:
        """Drop the batches in the queue, because this worker's leases have changed."""

    def form_lost_again(self) -> None:
        """Form again, between two steps, what was lost when a framework ended its iterator."""

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Take the next batch from the queue; return it, and whether it is a padding batch."""
        # It is one if no samples are left, or the data are not loaded and `waits` is False.

    def pad(self) -> Batch:
        """Return a padding batch, of any data, for an open step that others have not finished."""


def asked_length(what: str, count: int | None, max_steps: int | None) -> None:
    """Check that a script's call says how long the job trains."""
    if count is None and max_steps is None:
        raise UsageError(
            f"{what} does not say how long to train: give the number of epochs, or max_steps=n, "
            "the number of updates that the job makes"
        )
    if max_steps is None:
        return
    given: Any = max_steps
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if not whole or given < 1:
        raise UsageError(
            f"{what}: the number of steps is {max_steps!r}; it must be a whole number, 1 or more"
        )


MOST_PADDING = 1000  # batches that count for nothing are handed out for one step
NO_STEP = (
    "{count} batches were handed out since the last optimizer.step(), and this worker has no "
    "samples left that no step has trained; call optimizer.step() inside the loop, after each "
    "group of batches whose gradients are added up"
)

OTHER_LENGTH = (
    "w{worker} trains as long as the job does: {job}; its script asks for {script}. Let the script "
    "ask for the same on all workers, and not by a file that the job rewrites"
)


def end_batch(worker: Worker) -> None:
    """End the batch that `worker`'s script has trained, and keep copies of tracked objects."""
    loader = worker.loader
    loader.end_batch()
    if loader.replica is not None and not worker.warming_up:
        loader.replica.end_batch(worker.step, loader.epoch)


def average_buffers(worker: Worker) -> None:
    """Set BatchNorm's averages to the job's, so that all evaluate the same model, as with DDP."""
    replica = worker.loader.replica
    # Logical workers average buffers in each step.
    if replica is None or worker.ring.alone or worker.warming_up or worker.logical:
        return
    replica.average_buffers(worker.step, worker.exchange_bytes)  # all workers come here


class BatchSteps:
    """The training loop of one worker's script: it hands out batches and ends them."""

    def __init__(
        self,
        worker: Worker,
        feed: BatchSource,
        unfinished: Callable[[], str],  # the error if the last batch has got no update
        end_batch: Callable[[], None] = lambda: None,  # ends a step whose update was skipped
        numbers: RandomNumbers | None = None,  # None: the script's own seeds stay
    ) -> None:
        self._worker = worker
        self._feed = feed
        self._unfinished = unfinished
        self._end_batch = worker.finishing.end_batch = end_batch
        self._numbers = numbers
        self._restarts = -1
        self._warmed_up = False
        self._came_to_end = False  # the script was told that the epoch is over
        self._padding = 0  # batches of the open step that count for nothing
        self._in_epoch = False
        self.max_steps: int | None = None  # set by `limit`
        self._has_entered = False
        self._loop = object()  # the newest of the script's loops over batches
        self._is_new = False  # it has come into the ring, and has trained nothing there yet

    def check_may_iterate(self, outside: str) -> None:
        """Check that the script may begin to iterate over its batches; change nothing."""
        if not self._in_epoch:
            raise UsageError(outside)
        if self._came_to_end:
            raise UsageError(
                "all samples of this epoch are trained, so a second loop over them would see none; "
                "edl's loader is for training: evaluate with one of the framework's own"
            )

    def epochs(self, count: int | None = None, max_steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to train: from the job's current epoch to `count - 1`."""
        worker = self._worker
        asked = worker.loader.progress.length = TrainingLength.asked(count, max_steps)
        if worker.warming_up:
            self.warm_up()
            yield from self._within(worker.loader.epoch)  # of one batch
        self.enter()
        length = worker.loader.progress.length
        if asked.is_below(length):
            logger.warning("%s", OTHER_LENGTH.format(worker=worker.id, job=length, script=asked))
        self.limit(length.max_steps)
        most = math.inf if length.epochs is None else length.epochs
        while worker.loader.epoch < most and not self.made_all_steps:
            yield from self._within(worker.loader.epoch)
            if worker.loader.epoch + 1 >= most or self.made_all_steps:
                break
            worker.loader.next_epoch()
            if worker.steps.target is not None:  # newcomers begin the epoch where the others do
                worker.boundary()
        worker.finishing.finish(early=self.made_all_steps)

    def warm_up(self) -> None:
        """Seed a newcomer's random generators for its warm-up; call this before its first batch."""
        if self._numbers is not None:
            self._numbers.describe()
            self._numbers.warm_up()

    def warm_up_again(self) -> None:
        """Let a newcomer train one more batch alone, in a loop that the job has behind it."""
        self._warmed_up = self._came_to_end = False

    def limit(self, max_steps: int | None) -> None:
        """Set how many updates the job makes at most since it began; None: its epochs decide."""
        self.max_steps = max_steps

    @property
    def made_all_steps(self) -> bool:
        """Whether the job has made as many updates as `limit` allows; False without limit."""
        return self.max_steps is not None and self._worker.step >= self.max_steps

    @property
    def is_over(self) -> bool:
        """Whether `begin` would return False, as known after an update; the same on all workers."""
        worker = self._worker
        if worker.loader.open:
            return False
        if worker.warming_up:
            return self._warmed_up
        return worker.loader.ledger.finished or self.made_all_steps

    def enter(self) -> None:
        """Enter the job's training; a newcomer, which has warmed up before, joins the ring here."""
        if is_over(self._worker):
            raise UsageError(
                "this loader is of the job before the last edl.init(); make a new one after it"
            )
        self._worker.check_trains()
        self._check_batching()
        if self._worker.warming_up:
            self._warmed_up = False  # it warms up once more in the next fit, if it does not join
            self._feed.restart()  # while no other worker waits for this one
            self._worker.join()
            self._is_new = True
        elif self._numbers is not None:
            self._numbers.describe()
        self._worker.begin()
        if self._numbers is not None and not self._has_entered:
            self._numbers.enter()
        self._has_entered = True

    def _check_batching(self) -> None:
        progress = self._worker.loader.progress
        if progress.optimizers > 1 and progress.source.batching.is_chosen:
            raise UsageError(
                "the job is to choose its global batch, by the noise of its gradients, which is "
                "measured where a script has one optimizer; this one has several: give one "
                "number as global_batch, or batch_size"
            )

    def begin(self) -> bool:
        """Begin a step on the next batch; return True, or False when the epoch is over."""
        worker, feed = self._worker, self._feed
        self._end_batch()
        if worker.loader.open:
            if not worker.loader.engine.batches.may_grow:
                raise UsageError(self._unfinished())
            self._add()  # the step adds up gradients
            return True
        end_batch(worker)
        if worker.warming_up:
            if self._warmed_up:
                return False
            self._warmed_up = True
            self._draw_for_step()
            worker.loader.begin(self._next()[0])
            return True
        self._padding = 0
        if worker.loader.ledger.finished or self.made_all_steps:
            average_buffers(worker)
            self._came_to_end = True
            return False
        feed.form_lost_again()
        worker.boundary()  # to another ring, if all workers have agreed on one
        self._restart_feed()
        self._draw_for_step()
        with worker.loader.timer.loading():
            batch, padding = self._next(waits=not (self._is_new and self._others_train()))
        self._is_new &= padding
        worker.loader.begin(batch, padding)
        return True

    @contextmanager
    def looping(self, exiting: Callable[[], bool] = sys.is_finalizing) -> Iterator[None]:
        """Let the script loop over the batches; what it draws after the loop is the job's."""
        self._loop = mine = object()
        self._draw_for_step()  # what the framework draws for its iterator
        try:
            yield
        finally:
            # The iterator may be kept, until the interpreter's end, where modules are empty.
            if self._numbers is not None and self._loop is mine and not exiting():
                self._numbers.between(LOOP_END, self._worker.step)

    def begin_epoch(self) -> None:
        """Let the script draw the same numbers on all workers from now on, until a batch."""
        if self._numbers is not None:
            self._numbers.between(EPOCH, self._worker.loader.epoch)

    def _draw_for_step(self) -> None:
        if self._numbers is not None:
            self._numbers.step()

    def _next(self, waits: bool = True) -> tuple[Batch, bool]:
        try:
            return self._feed.next(waits)
        except (Exception, KeyboardInterrupt):
            self._form_again()  # the script may begin its loop again
            raise

    def _form_again(self) -> None:
        """Drop all batches that no step has trained, but those of an open step; form them again."""
        loader = self._worker.loader
        loader.sampler.form_again(loader.engine.batches)
        self._feed.restart()

    def _restart_feed(self) -> None:
        """Let the queue drop its batches, if they do not fit this worker's leases any more."""
        if self._worker.loader.sampler.restarts != self._restarts:
            self._restarts = self._worker.loader.sampler.restarts
            self._feed.restart()

    def _others_train(self) -> bool:
        """Return whether this newcomer may train a padding batch, because others train samples."""
        root, loader = self._worker.steps.state_source, self._worker.loader  # root: no newcomer
        source = loader.progress.source
        if not source.lets_newcomers_pad:
            return False
        enough = source.batching.of_one(0, self._worker.size)
        return root != self._worker.id and loader.ledger.held_samples(root) >= enough

    def _add(self) -> None:
        """Hand out one more batch for the open step, which adds up gradients."""
        worker = self._worker
        self._draw_for_step()  # the script may have seeded
        self._restart_feed()  # a repair inside the step may have changed the leases
        if worker.loader.engine.batches.is_exhausted:
            worker.loader.begin(self._feed.pad(), True)
            return
        with worker.loader.timer.loading():
            batch, padding = self._next()
        if padding or worker.warming_up:
            self._padding += 1
            if self._padding > MOST_PADDING:
                raise UsageError(NO_STEP.format(count=worker.loader.engine.batches.count))
        worker.loader.begin(batch, padding and not worker.warming_up)

    def _within(self, epoch: int) -> Iterator[int]:
        """Yield `epoch` once, for the script to train it; then end the epoch's last batch."""
        self._in_epoch, self._came_to_end = True, False
        self._form_again()  # the script may have left an earlier loop by an exception
        self.begin_epoch()
        yield epoch
        self._end_batch()  # the script may have left its loop in the middle
        if not self._worker.loader.open and not self._came_to_end:
            end_batch(self._worker)
        self._in_epoch = False
