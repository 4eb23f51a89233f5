"""Check where an unchanged Horovod script leaves its loops over the training data, and ends.

A script that stops at a place where its job may not end would leave a model that depends on the
number of processes, or on whether the job was resumed. A loop is left *early* if the script takes
no more batches after an update, or within a step of which it has trained some: a process takes a
batch for each of its ranks in a step, so what a script counts in its loop depends on the number of
processes. With one rank no end is early.
"""

from __future__ import annotations

import builtins
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edl.binding.process import current_worker
from edl.errors import EdlError, NewcomerDiffers, UsageError
from edl.transparent.ranks import ranks

LEFT_EARLY = (
    "the script has left its loop over the training data early, after a counted number of batches "
    "or after an update. A process that trains several ranks takes a batch for each in every step, "
    "so the number of updates would depend on the number of processes. Take batches until the data "
    "end (for batch in loader), not a counted number of them (range(len(loader)), "
    "itertools.islice, next()). To stop before, compare the step number that enumerate(loader) "
    "gives, before the batch is trained; in TensorFlow dataset.take(n) limits the steps"
)

ENDED_BEHIND = (
    "the script has ended in epoch {epoch}, which the job has behind it: a process that comes "
    "later, and one of a resumed job, goes through such epochs without training, so the script "
    "must not decide to end by something that it remembers over epochs (early stopping by the best "
    "value so far, a learning rate that a scheduler has lowered); leave that out to resume this "
    "job, or change the script to edl.torch or edl.tensorflow, which send what it tracks"
)


def ended_behind(epoch: int, ends_alone: bool) -> EdlError:
    # A newcomer that has trained no epoch ends alone, and the others train on; else the job fails.
    error = NewcomerDiffers if ends_alone else UsageError
    return error(ENDED_BEHIND.format(epoch=epoch))


class LoopWatch:
    """The script's loops over its training data, in which it may not end."""

    def __init__(self, has_trained: Callable[[], bool]) -> None:
        self._has_trained = has_trained
        self._loops = 0
        self.is_within = self._left_early = False
        self._had_several = False  # passes of the loop in a step

    def batches(self, source: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches of one loop, after `check_next`; note how the script ends it."""
        self._loops += 1
        number, self.is_within = self._loops, True
        try:
            for batch in source:  # not `yield from`, which would first end the iterator of source
                pieces = current_worker().loader.engine.batches.pieces
                self._had_several = self._had_several or pieces > 1
                yield batch
        except GeneratorExit:
            if number == self._loops:
                self._left_early = self._is_early()
            raise
        finally:
            if number == self._loops:
                self.is_within = False

    def check_next(self) -> None:
        """Raise a UsageError if the script has left its last loop early; call it before another."""
        # A script that keeps the iterator of the loop has left it, too.
        if self.is_within and self._is_early():
            self._left_early = True
        self.refuse_left_early()

    def refuse_left_early(self) -> None:
        """Raise a UsageError if the script is known to have left its last loop early."""
        # An error that the script handles may be why it has left the loop, and would be hidden.
        if self._left_early and sys.exc_info()[1] is None:
            raise UsageError(LEFT_EARLY)

    def check_end(self) -> None:
        """Raise a UsageError if the script has ended in a loop, or has left its last one early."""
        # With one rank in each step a count of passes is one of steps, which may end with the last
        # epoch. With several it may end with an earlier one, and leave out those after it.
        loader = current_worker().loader
        is_over = loader.ledger.finished and not loader.open
        if self._had_several or not is_over:
            self.check_next()

    def _is_early(self) -> bool:
        """Return whether the script, if it takes no more batches now, leaves its loop early."""
        engine = current_worker().loader.engine
        taken = engine.batches.pieces - engine.batches.pieces_left
        return ranks() > 1 and (self._has_trained() or (engine.is_open and taken > 1))


# ------------------------------------------------------------
# Send messages between the processes of an unchanged Keras script: `ScriptExchange`.


WAITS_S, PAUSE_S = 60.0, 0.2  # for the others, who come to the script's next fit soon


class ScriptExchange:
    """The exchanges of a script, which all processes make at the same points."""

    def __init__(self) -> None:
        self._made = 0
        self.has_trained = False  # whether the script has come to its training

    def known(self, payload: bytes) -> list[bytes]:
        """Send `payload` outside of the training; return all payloads in rank order."""
        # The others keep their answer for newcomers, who may come here before them.
        number, self._made = self._made, self._made + 1
        deadline = time.monotonic() + WAITS_S
        while (answer := current_worker().exchange_before_training(number, payload)) is None:
            if time.monotonic() > deadline:
                return [payload]
            time.sleep(PAUSE_S)
        return answer

    def now(self, payload: bytes) -> list[bytes]:
        """Send `payload` between two steps, or before the training; return all payloads."""
        if self.has_trained:  # a newcomer that has not joined gets its own alone
            return current_worker().exchange_bytes(payload)
        return self.known(payload)


# ------------------------------------------------------------
# Let `enumerate(loader)` number the steps of a job's epoch: `replace_enumerate`.
#
# A process that trains several ranks of the script, one after the other, goes through the script's
# loop once for each of them. Horovod's scripts compute a learning rate from the number that
# `enumerate` gives, and print by it. So it counts steps here: each pass of a step has the same
# number, and a process that joins within an epoch begins with the number of the step that it joins.


class StepNumbers(builtins.enumerate):  # type: ignore[type-arg]
    """Python's `enumerate`, except for iterators over batches, whose steps it numbers."""

    def __new__(cls, iterable: Iterable[Any], start: int = 0) -> Any:
        inner = getattr(iterable, "iterable", iterable)  # what a tqdm shows the progress of
        if not getattr(inner, "edl_numbers_steps", False):
            return super().__new__(cls, iterable, start)
        return _numbered(iterable, inner, start)


def _numbered(iterable: Iterable[Any], loader: Any, start: int) -> Iterator[tuple[int, Any]]:
    for item in iterable:
        yield start + loader.edl_step_in_epoch, item


def replace_enumerate() -> None:
    builtins.enumerate = StepNumbers  # type: ignore[misc]
