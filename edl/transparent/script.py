"""Check where an unchanged Horovod script leaves its loops over the training data, and ends.

A loop is left *early* if the script takes no more batches after an update, or within a step of
which it has trained some. Then the model would depend on the number of processes: a process takes a
batch for each of its ranks in a step. With one rank no end is early.
"""

from __future__ import annotations

import builtins
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from edl import config
from edl.binding import process
from edl.binding.api import PROCESS_SETS
from edl.binding.process import current_worker
from edl.errors import EdlError, NewcomerDiffers, UsageError
from edl.ring.ring import ADASUM

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Count the ranks of an unchanged Horovod script, and check its calls, for all frameworks.


NO_LOGICAL = (
    "--transparent needs the number of ranks that the script sees (hvd.size()), which stays the "
    "same whatever the number of processes: give edl run --logical N"
)
SUM = (
    "with --transparent gradients are averaged over the ranks; for their sum multiply the learning "
    "rate by hvd.size(), and leave out op=hvd.Sum"
)
KEPT = (
    "this process has the place of rank 0 now, and the script has not asked hvd.rank() or "
    "hvd.local_rank() for an epoch: where it has kept the answer from its start (is_main = "
    "hvd.rank() == 0), no process writes its files any more; ask where the answer is needed"
)
TAKES_OVER = (
    "this process answers hvd.{name}() == 0 now, since the one that did so before is gone: what "
    "the script has made on that one only (a SummaryWriter, an open file) it does not have here"
)


class Flag(int):
    """True, except while the process passes over epochs: `is_main = hvd.rank() == 0`."""

    hides: Callable[[], bool]

    def __bool__(self) -> bool:
        return not self.hides()


class Rank(int):
    """A number that compares as 0 only on the first process, when that passes over no epochs.

    As an index, and as text, it stays what it is: a local rank is the number of a GPU.
    """

    is_first: bool
    hides: Callable[[], bool]

    @property
    def _answer(self) -> int:
        return 0 if self.is_first and not self.hides() else max(int(self), 1)

    def __eq__(self, other: object) -> Any:
        if self._answer or other != 0:
            return self._answer == other
        flag = Flag(1)
        flag.hides = self.hides
        return flag

    def __ne__(self, other: object) -> bool:
        return self._answer != other

    def __lt__(self, other: int) -> bool:
        return self._answer < other

    def __le__(self, other: int) -> bool:
        return self._answer <= other

    def __gt__(self, other: int) -> bool:
        return self._answer > other

    def __ge__(self, other: int) -> bool:
        return self._answer >= other

    def __bool__(self) -> bool:
        return self._answer != 0

    __hash__ = int.__hash__

    def __reduce__(self) -> Any:
        return int, (int(self),)


class Ranks:
    """What the script is told when it asks which process it is, as in `hvd.rank() == 0`."""

    def __init__(
        self,
        has_begun: Callable[[], bool],
        passes_over: Callable[[], bool],
        has_gpus: Callable[[], bool],
    ) -> None:
        self._has_begun, self._passes_over, self._has_gpus = has_begun, passes_over, has_gpus
        self._told: dict[str, bool] = {}  # whether it was the first, by the script's last calls
        self._has_taken_over = False
        self._asked = True  # in this epoch
        self._was_first = False  # when this epoch began

    def rank(self) -> int:
        own = process.rank()
        return self._number("rank", own, own, own == 0)

    def local_rank(self) -> int:
        """Return the number of this process on its host; where there are GPUs, its slot."""
        worker = process.current_worker()
        own = worker.local_rank if worker.warming_up else worker.ring.place.local_rank
        number = worker.local_rank if self._has_gpus() else own
        return self._number("local_rank", number, own, worker.is_first_of_host)

    def _number(self, name: str, number: int, own: int, is_first: bool) -> int:
        self._asked = True
        if not (hidden := self._hides()):
            if is_first and self._told.get(name) is False and self._has_begun():
                if not self._has_taken_over:
                    logger.warning(TAKES_OVER.format(name=name))
                self._has_taken_over = True
            self._told[name] = is_first
        # Where epochs are passed over, the script has other weights to write.
        answer = 0 if is_first and not hidden else max(own, 1)
        # Until the training begins, nobody knows whether a resumed job has epochs behind it.
        worker = process.current_worker()
        may_hide = not self._has_begun() and (worker.warming_up or worker.checkpointing.saves)
        if not (is_first and may_hide) and (number == answer or not self._has_gpus()):
            return answer
        found = Rank(number)
        found.is_first, found.hides = is_first, self._hides
        return found

    def _hides(self) -> bool:
        begun = self._has_begun()
        return begun and (self._passes_over() or process.current_worker().warming_up)

    def begin_epoch(self) -> None:
        """Warn once if this process has become the first, and the script does not ask for it."""
        if self._was_first and not self._asked and False in self._told.values():
            self._told.clear()
            logger.warning(KEPT)
        self._was_first, self._asked = process.rank() == 0, False

    def show_newcomer(self) -> None:
        """Let a newcomer's environment not say that it is rank 0, as in the ring of its warm-up."""
        worker = process.current_worker()
        if worker.warming_up:
            local = worker.local_rank if worker.is_first_of_host else max(worker.local_rank, 1)
            config.set_environment(
                {"HOROVOD_RANK": str(worker.rank), "HOROVOD_LOCAL_RANK": str(local)}
            )


def ranks() -> int:
    """Return the number of the script's ranks, which never changes: the logical workers."""
    worker = process.current_worker()
    return worker.logical or worker.size


def check_has_ranks() -> None:
    worker = process.current_worker()
    if worker.is_shared and not worker.logical:
        raise UsageError(NO_LOGICAL)


def check_reduction(asked: dict[str, Any], horovod: Any, passes: str = "") -> None:
    # `passes`: the error for backward_passes_per_step above 1; empty: it is allowed.
    operation = asked.get("op", horovod.Average)
    check_collective(asked.get("process_set"), operation, horovod)
    if operation != horovod.Average:
        raise UsageError(SUM)
    if passes and asked.get("backward_passes_per_step", 1) > 1:
        raise UsageError(passes)
    none = horovod.Compression.none
    if asked.get("compression", none) is not none and process.rank() == 0:
        logger.warning("gradients are added up exactly, so compression=... has no effect")


def check_collective(process_set: Any, operation: Any, horovod: Any) -> None:
    if operation == horovod.Adasum:
        raise UsageError(f"op=Adasum is not there: {ADASUM}")
    if process_set not in (None, horovod.global_process_set):
        raise UsageError(f"process_set: {PROCESS_SETS}")


def place_of_root(rank: int, there: int) -> int:
    """Return the place, in rank order, of the process that a broadcast of `rank` comes from."""
    if there == 1:  # alone, or the others have sent nothing
        return 0
    if not 0 <= rank < there:
        raise UsageError(
            f"a broadcast from rank {rank}: with --transparent {there} processes share the ranks "
            "now, and the number changes; broadcast from rank 0"
        )
    return rank


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
        # A script that keeps the iterator of the loop has left it, too.
        if self.is_within and self._is_early():
            self._left_early = True
        self.check_not_left_early()

    def check_not_left_early(self) -> None:
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
