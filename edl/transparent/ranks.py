"""Count the ranks of an unchanged Horovod script, and check its calls, for all frameworks."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from edl import config
from edl.binding import process
from edl.binding.api import ADASUM, PROCESS_SETS
from edl.errors import UsageError

logger = logging.getLogger(__name__)

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
    """Raise a UsageError if this process is in a job without logical workers."""
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
