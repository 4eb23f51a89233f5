"""Pass a worker's batches from its leases through ``tf.data`` to the steps, in one order.

Two threads take part. The training thread forms batches (lists of sample indices), between two
steps only, a few batches before their steps. A reader, a function that ``tf.data`` runs in a thread
of its own, takes the batches in the same order and loads their samples. A batch is recognised by
its place in the order alone: the k-th batch that leaves the pipeline is the k-th that was formed.
"""

from __future__ import annotations

import math
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from edl.binding.loop import FirstBatch
from edl.binding.process import raise_in
from edl.errors import EdlError, UsageError
from edl.step.engine import Batch
from edl.worker.worker import Worker

AHEAD = 2  # batches formed before they are needed, for tf.data to prefetch
POLL_S = 0.5  # how often a waiting reader looks whether the program still runs
LEAVE_S = 1.0  # for readers to leave when the program ends
UNBEGUN_S = 120.0  # how long it waits for the very first step


@dataclass
class _Entry:
    batch: Batch  # formed from the leases, or that of the warm-up
    padding: bool  # its gradients have weight zero
    handed_s: float = math.inf  # when it was handed to a step, by time.monotonic()
    read: bool = False  # `tf.data` has taken it to load its samples
    error: EdlError | None = None  # it could not be loaded


class PipelineBatchSource:
    def __init__(self, worker: Worker) -> None:
        self.ahead = AHEAD  # 0: no batch is read in advance when workers join or leave
        self._worker = worker
        self._thread = threading.get_ident()  # the one that trains
        self._formed: deque[_Entry] = deque()  # not yet handed to a step
        self._unread: deque[_Entry] = deque()
        self._change = threading.Condition()
        self._inside = 0  # readers that wait
        self._iteration = 0  # the newest iterator of the pipeline
        self._reader = 0  # the newest one; older ones end
        self._begun = False
        self._abandoned = False  # batches were formed that nobody will train
        self._arriving: Iterator[Any] | None = None  # of a loop that this feed receives for
        self._first: FirstBatch | None = None  # that is awaited while others train
        self._repeats = False  # the data of the warm-up, for a step that counts for nothing
        self._warm_up: Any = None  # the data of that
        self.trial = False  # a batch was read before any step had begun
        self.fit_iterates = False  # its next iterator is the one of Keras' fit

    @property
    def is_trial(self) -> bool:
        """Whether a session other than `edl.Session` runs for the first time: for no update."""
        return self.trial and not self._worker.loader.begun

    # --- training thread

    def restart(self) -> None:
        """Discard the batches that are formed and not yet trained: this worker has new leases."""
        with self._change:
            self._unread.clear()
            self._formed = deque(entry for entry in self._formed if entry.read)
            for entry in self._formed:  # they still come out of tf.data
                entry.padding = True

    def next(self, waits: bool = True) -> tuple[Batch, bool]:
        """Take the batch of the next step, and whether it is padding; `receiving` gets its samples.

        If it is known that they are not loaded and `waits` is False, the batch stays in the queue,
        and that of the warm-up is returned as padding.
        """
        sampler = self._worker.loader.sampler
        with self._change:
            self._begun = True
        while (batch := self._form()) is not None:  # without the lock, for a stream is read here
            with self._change:
                self._put(batch, False)
        # Not if it is known that the samples of the next batch are not loaded.
        knows = self._arriving is not None and self._warm_up is not None and bool(self._formed)
        self._repeats = not waits and knows
        if self._repeats:
            assert self._arriving is not None
            if self._first is None:
                self._first = FirstBatch(self._arriving, None)
            self._repeats = not self._first.has_come
        if self._repeats:
            return sampler.warm_up(), True
        with self._change:
            if not self._formed:
                self._put(sampler.warm_up(), not self._worker.warming_up)
            return self._hand_out()

    def pad(self) -> Batch:
        with self._change:
            self._put(self._worker.loader.sampler.warm_up(), True)
            return self._hand_out()[0]

    def _hand_out(self) -> tuple[Batch, bool]:
        # The caller holds the lock.
        entry = self._formed.popleft()
        entry.handed_s = time.monotonic()
        self._change.notify_all()
        if entry.error is not None:
            raise entry.error
        return entry.batch, entry.padding

    @contextmanager
    def receiving(self, arriving: Iterator[Any]) -> Iterator[Callable[[], Any]]:
        """Let a loop wait for the samples of the batch that `next` returned last, in the block.

        After it `tf.data` loads no more, and `form_lost_again` forms what no step has taken.
        """
        if self._arriving is not None:  # a loop that was left, and whose iterator is kept
            self.end()
        self._arriving, self._first = arriving, None
        try:
            yield partial(self._receive, arriving)
        finally:
            if self._arriving is arriving:
                self._arriving = self._first = None
            self.end()

    def _receive(self, arriving: Iterator[Any]) -> Any:
        if self._repeats:
            return self._warm_up
        first, self._first = self._first, None
        if self._arriving is not arriving:
            raise UsageError(
                "two iterators of the edl.Dataset are open at once, and the newer one takes the "
                "batches; take all from one of them, as in `for batch in dataset`"
            )
        data = next(arriving) if first is None else first.take()
        if self._worker.warming_up:
            self._warm_up = data
        return data

    def _form(self) -> Batch | None:
        worker = self._worker
        if worker.warming_up or len(self._formed) > self.ahead:
            return None
        return worker.loader.sampler.form(worker.loader.ledger)

    def skip(self) -> None:
        """Keep `tf.data` from loading the batch that `next` has just returned: the caller does."""
        with self._change:
            self._unread.popleft()

    def end(self) -> None:
        """End all readers, and drop the batches that no step took; any thread may call it."""
        with self._change:
            self._abandoned |= any(not entry.padding for entry in self._formed)
            self._reader += 1
            self._formed.clear()
            self._unread.clear()
            self._change.notify_all()

    def form_lost_again(self) -> None:
        """Let the sampler form the batches that `end` has dropped again, between two steps."""
        with self._change:
            gave_up, self._abandoned = self._abandoned, False
        if gave_up:
            self._worker.loader.sampler.restart()

    def close(self) -> None:
        self.end()
        with self._change:
            self._change.wait_for(lambda: self._inside == 0, LEAVE_S)
        time.sleep(0.02)  # for the way from here out of Python

    def watch(self, iterator: object) -> None:
        # TensorFlow's destructor waits for the iterator's thread, which may wait in `take`.
        self._iteration += 1
        number = self._iteration
        weakref.finalize(iterator, lambda: self.end() if number == self._iteration else None)

    def _put(self, batch: Batch, padding: bool) -> None:
        # The caller holds the lock.
        entry = _Entry(batch, padding)
        self._formed.append(entry)
        self._unread.append(entry)

    # --- tf.data's thread

    def read(self, load: Callable[[Any], Any]) -> Iterator[Any]:
        number = self.open()
        while (samples := self.take(number, load)) is not None:
            yield samples

    def open(self) -> int:
        with self._change:
            self._reader += 1
            self._change.notify_all()
            return self._reader

    def take(self, number: int, load: Callable[[Any], Any]) -> Any:
        """Wait until the next batch is formed, and load it; None: an end, or an error of edl's."""
        if (entry := self._take(number)) is None:
            return None
        try:
            loaded = load(entry.batch)
        except EdlError as error:
            # The training thread raises it when it takes the batch, or now if it waits.
            with self._change:
                entry.error = error
                waited_for = all(entry is not other for other in self._formed)
            if waited_for:
                self._raise_in_trainer(error)
            return None
        if (late_s := time.monotonic() - entry.handed_s) > 0:  # the step waits for it
            self._worker.loader.timer.load(late_s)
        return loaded

    def _raise_in_trainer(self, error: EdlError) -> None:
        if not raise_in(self._thread, error):  # it has ended, or is the calling one
            raise error

    def _take(self, number: int) -> _Entry | None:
        with self._change:
            self._inside += 1
            try:
                return self._wait(number)
            finally:
                self._inside -= 1
                self._change.notify_all()

    def _wait(self, number: int) -> _Entry | None:
        # The caller holds the lock.
        if not (self._begun or self.trial):
            # A session that does not know the job: its first run is a trial for nothing.
            self.trial = True
            return _Entry(self._worker.loader.sampler.warm_up(), True, read=True)
        waited = 0.0
        while self._reader == number and not self._unread:
            if not self._change.wait(POLL_S):
                waited += POLL_S
            if not threading.main_thread().is_alive():
                return None
            if not self._begun and waited >= UNBEGUN_S:
                self._raise_in_trainer(
                    UsageError(
                        "a batch was asked for, and no step has begun: run the graph in "
                        "edl.Session, or call edl.notify_batch_end() after each training step; "
                        "without a graph use edl.Dataset"
                    )
                )
                return None
        if self._reader != number:
            return None
        entry = self._unread.popleft()
        entry.read = True
        return entry
