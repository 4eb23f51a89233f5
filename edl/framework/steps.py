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
    """The interface of a queue of batches that are not trained yet.

    The batches are formed from the samples that this worker has leased. Each framework implements
    the interface for its loader or data set, and :class:`BatchSteps` calls it in the training
    thread.
    """

    def restart(self) -> None:
        """Drop the batches in the queue, because this worker's leases have changed.

        Later batches are formed from the new leases. The call is made between two steps, and before
        a newcomer joins.
        """

    def form_lost_again(self) -> None:
        """Form again the batches that were lost untrained; call this between two steps.

        They are lost if the framework ends the iterator that has formed them, such as at the end of
        a call of Keras' ``fit``. Nothing happens if none was lost.
        """

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Take the next batch from the queue, and return it.

        PyTorch's loader waits here until the batch's data are loaded; ``tf.data`` loads them in a
        thread, and its iterator waits for them later.

        Args:
            waits: False: if it is known that the data of the next batch are not loaded yet, a
                padding batch is returned in its place, and a later call returns the batch.

        Returns:
            A pair: the batch whose data the script gets next, and whether it is a padding batch,
            whose samples count for nothing. A padding batch is also returned when this worker has
            no samples left.
        """

    def pad(self) -> Batch:
        """Return a padding batch for the open step; which data the script gets does not matter.

        It is called when this worker has handed out all its pieces of the step and others have not.
        """


def asked_length(what: str, count: int | None, max_steps: int | None) -> None:
    """Check that a script's call says how long the job trains.

    Args:
        what: the script's call, for the error message.
        count: the number of epochs, which is not checked; None: not given.
        max_steps: the number of updates; None: not given.

    Raises:
        UsageError: if neither is given, or ``max_steps`` is not a whole number of at least 1.
    """
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
    """End the batch that ``worker``'s script has trained, and keep copies of tracked objects.

    A worker that missed the last update loads the copies of another worker instead of its own. In a
    warm-up no copies are kept. Call this before the next batch, and at an epoch's end.
    """
    loader = worker.loader
    loader.end_batch()
    if loader.replica is not None and not worker.warming_up:
        loader.replica.end_batch(worker.step, loader.epoch)


def average_buffers(worker: Worker) -> None:
    """Set BatchNorm's averages to the job's; all workers call it between two steps.

    At an epoch's end each then evaluates the same model, as with DDP, and their scripts decide
    alike.
    """
    replica = worker.loader.replica
    # Logical workers average buffers in each step.
    if replica is None or worker.ring.alone or worker.warming_up or worker.logical:
        return
    replica.average_buffers(worker.step, worker.exchange_bytes)


class BatchSteps:
    """The training loop of one worker's script: it hands out batches and ends them.

    A framework's loader yields from :meth:`epochs`, and calls :meth:`begin` for each batch of an
    epoch. Between two steps the worker may switch to another ring.

    Args:
        worker: the worker that this process is.
        feed: the queue of batches for the script.
        unfinished: returns an error message for a script that asks for a batch before it has made
            the update of the last one.
        end_batch: called without arguments when the script asks for its next batch, has left its
            loop over an epoch, or has ended. It completes a step whose update the script has
            skipped after its gradients were reduced.
        numbers: the seeder of the training thread's random generators; None: the script's own seeds
            stay.

    Attributes:
        max_steps: the number of updates that :meth:`limit` has set; None: no limit.
    """

    def __init__(
        self,
        worker: Worker,
        feed: BatchSource,
        unfinished: Callable[[], str],
        end_batch: Callable[[], None] = lambda: None,
        numbers: RandomNumbers | None = None,
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
        self.max_steps: int | None = None
        self._has_entered = False
        self._loop = object()  # the newest of the script's loops over batches
        self._is_new = False  # it has come into the ring, and has trained nothing there yet

    def check_may_iterate(self, outside: str) -> None:
        """Check that the script may begin to iterate over its batches; change nothing.

        Args:
            outside: the message of the error if the script is in no epoch of :meth:`epochs`.

        Raises:
            UsageError: if the script is in no epoch, or if all samples of the epoch are trained.
        """
        if not self._in_epoch:
            raise UsageError(outside)
        if self._came_to_end:
            raise UsageError(
                "all samples of this epoch are trained, so a second loop over them would see none; "
                "edl's loader is for training: evaluate with one of the framework's own"
            )

    def epochs(self, count: int | None = None, max_steps: int | None = None) -> Iterator[int]:
        """Yield the numbers of the epochs to train: from the job's current epoch to ``count - 1``.

        A newcomer first gets an epoch with one batch for its warm-up, before it joins the ring.
        After the last epoch all workers end the job together, and no training can begin again.
        If the job trains for longer or shorter than this newcomer asks for, it does as the job.

        Args:
            count: the number of epochs of the job; None: as many as ``max_steps`` updates take.
            max_steps: how many updates the job makes in all, also inside an epoch; None: no limit.

        Raises:
            UsageError: if the script has trained to its end before, if its loader belongs to an
                earlier job of this process, or if it has several optimizers and gives a range as
                its global batch.
            SystemExit: with code 0, if the job ends or goes on without this newcomer before it has
                joined.
            NewcomerDiffers: if this newcomer's model differs from the job's.
            JobFailed, WorkerEvicted: if the workers cannot end the job together, or this one is
                evicted.
        """
        worker = self._worker
        asked = worker.loader.progress.length = TrainingLength.asked(count, max_steps)
        if worker.warming_up:
            self.warm_up()
            yield from self._within(worker.loader.epoch)
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
        """Seed a newcomer's random generators for its warm-up; call this before its first batch.

        By then the script has made its model and optimizer. Nothing happens if this object was made
        without a seeder.
        """
        if self._numbers is not None:
            self._numbers.describe()
            self._numbers.warm_up()

    def warm_up_again(self) -> None:
        """Let a newcomer train one more batch alone, in a loop that the job has behind it."""
        self._warmed_up = self._came_to_end = False

    def limit(self, max_steps: int | None) -> None:
        """Set how many updates the job makes at most; a later call replaces the limit.

        Args:
            max_steps: the number of updates since the job began, at least 1; None: only the epochs
                end the training.
        """
        self.max_steps = max_steps

    @property
    def made_all_steps(self) -> bool:
        """Whether the job has made as many updates as :meth:`limit` allows; False without limit."""
        return self.max_steps is not None and self._worker.step >= self.max_steps

    @property
    def is_over(self) -> bool:
        """Whether the epoch has no batch left, as known after an update; the same on all workers.

        Then :meth:`begin` would return False. It is False while a batch is not trained yet.
        """
        worker = self._worker
        if worker.loader.open:
            return False
        if worker.warming_up:
            return self._warmed_up
        return worker.loader.ledger.finished or self.made_all_steps

    def enter(self) -> None:
        """Enter the job's training; a newcomer, which has warmed up before, joins the ring here.

        The call waits until this worker has the job's state, which a newcomer receives and a
        resumed job loads. The script has made its model and optimizer by then. From this call on
        the epoch and the step are the job's, and the random generators are seeded.

        Raises:
            UsageError: if the script has trained to its end before, if its loader belongs to an
                earlier job of this process, or if it has several optimizers and gives a range as
                its global batch.
            FitIsDone: if the job is in a later call of Keras' ``fit`` than the script, which then
                skips the present one.
            NewcomerDiffers: if this newcomer's model differs from the job's.
            SystemExit: with code 0, if the job ends or goes on without this newcomer before it has
                joined.
        """
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
        """Check that a script with several optimizers does not let the job choose the batch size.

        The script lets it choose if it gives a range as its global batch. The job chooses by the
        noise of its gradients, which is measured with one optimizer only.

        Raises:
            UsageError: if the script has several optimizers and gives a range.
        """
        progress = self._worker.loader.progress
        if progress.optimizers > 1 and progress.source.batching.is_chosen:
            raise UsageError(
                "the job is to choose its global batch, by the noise of its gradients, which is "
                "measured where a script has one optimizer; this one has several: give one "
                "number as global_batch, or batch_size"
            )

    def begin(self) -> bool:
        """Begin a step on the next batch; return True, or False when the epoch is over.

        After True the loader gives the data of the batch to the script. Within a step of
        accumulated gradients, the batch is added to the step. Otherwise, first the batch before is
        ended, and the worker switches to another ring if all workers have agreed on one. The epoch
        is over, too, when the job has made all its updates, and after the one batch of a warm-up.

        Raises:
            UsageError: if the script has not trained the batch that it got last.
            SystemExit: with code 0, if this worker leaves the job with the switch.
            StateDiffers, JobFailed, WorkerEvicted: if the job or this worker cannot go on.
        """
        worker, feed = self._worker, self._feed
        self._end_batch()
        if worker.loader.open:
            if not worker.loader.engine.batches.may_grow:
                raise UsageError(self._unfinished())
            self._add()
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
        worker.boundary()
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
        """Return the next batch of the queue; see :meth:`BatchSource.next`.

        If its data cannot be read, the script may begin its loop again: then the batches that no
        step has trained are formed and read again.
        """
        try:
            return self._feed.next(waits)
        except (Exception, KeyboardInterrupt):
            self._form_again()
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
        """Return whether this newcomer may train a padding batch, because others train samples.

        It may if the worker that sent the job's state (and so is no newcomer) has leased samples
        for a whole batch, and if the kind of the training data allows it.
        """
        root, loader = self._worker.steps.state_source, self._worker.loader
        source = loader.progress.source
        if not source.lets_newcomers_pad:
            return False
        enough = source.batching.of_one(0, self._worker.size)
        return root != self._worker.id and loader.ledger.held_samples(root) >= enough

    def _add(self) -> None:
        """Hand out one more batch, or piece of a batch, for the open step, which adds up gradients.

        A padding batch is handed out if this worker has no samples left.

        Raises:
            UsageError: if more than 1000 (:data:`MOST_PADDING`) batches of the step count for
                nothing, so the script seems to make no update.
        """
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
        """Yield ``epoch`` once, for the script to train it; then end the epoch's last batch.

        Batches that were formed before are dropped first. There are some if the script has left an
        earlier loop by an exception, and begins again.

        Args:
            epoch: the number of the epoch, from 0.
        """
        self._in_epoch, self._came_to_end = True, False
        self._form_again()
        self.begin_epoch()
        yield epoch
        self._end_batch()  # the script may have left its loop in the middle
        if not self._worker.loader.open and not self._came_to_end:
            end_batch(self._worker)
        self._in_epoch = False
