"""How large the batches of a job are: what its script, or its policy, asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.core.record import Record
from edl.errors import DataError, UsageError


@dataclass(frozen=True)
class Batching(Record):
    """Sizes in samples, equal on all workers; 0: not asked for.

    Attributes:
        batch_size: of one worker.
        max_global_batch: of all together, at most: more workers share it out.
        global_batch: of all together, the same samples in each step, whoever shares them.
        batch_range: of all together, the fewest and the most: the job chooses among them.
        chosen: what it has chosen last; 0: nothing yet, and has the fewest.
        micro_batch: what one worker trains at once, at most; it trains more in pieces.
    """

    batch_size: int = 1
    max_global_batch: int = 0
    global_batch: int = 0
    batch_range: tuple[int, int] = (0, 0)
    chosen: int = 0
    micro_batch: int = 0

    @property
    def is_chosen(self) -> bool:
        """The job chooses the size of its global batch itself."""
        return self.batch_range[1] > 0

    def choosing(self, global_batch: int) -> Batching:
        """The same with this global batch, as near as its range allows."""
        least, most = self.batch_range
        return replace(self, chosen=min(max(global_batch, least), most))

    def of_all(self, size: int) -> int:
        """Samples in a batch of all of ``size`` workers; at least one of each."""
        if self.is_chosen:
            return max(size, self.chosen or self.batch_range[0])
        if self.global_batch:
            return self.global_batch
        whole = self.batch_size * size
        return max(size, min(whole, self.max_global_batch)) if self.max_global_batch else whole

    def of_one(self, rank: int, size: int) -> int:
        """Samples in a batch of one of ``size`` workers.

        ``batch_size``, as long as all together have no more than ``max_global_batch``; else they
        share out what all have evenly, the first ones with one more (AutoScaling, MLSys 2020).
        """
        each, more = divmod(self.of_all(size), size)
        return each + (rank < more)

    def microbatches(self, size: int) -> int:
        """In how many pieces each of ``size`` workers trains its batch: in as many as the others.

        So their loops go round equally often, and what a script counts in them is equal.
        """
        return -(-self.of_one(0, size) // self.micro_batch) if self.micro_batch else 1

    def iterations(self, total: int, size: int) -> int:
        """Return how often the loop of each of ``size`` workers goes round in ``total`` samples.

        Rounded up: the last batch may be short.
        """
        return -(-total // self.of_all(size)) * self.microbatches(size)

    def split(self, samples: int, size: int) -> list[int]:
        """A batch of one of ``size`` workers, at least one sample, in pieces of like length."""
        if not self.micro_batch:
            return [samples]
        count = max(-(-samples // self.micro_batch), min(self.microbatches(size), samples))
        each, more = divmod(samples, count)
        return [each + (piece < more) for piece in range(count)]

    def __str__(self) -> str:
        micro = f", micro_batch={self.micro_batch}" if self.micro_batch else ""
        if self.is_chosen:
            return f"global_batch=({self.batch_range[0]}, {self.batch_range[1]}){micro}"
        if self.global_batch:
            return f"global_batch={self.global_batch}{micro}"
        most = f", max_global_batch={self.max_global_batch}" if self.max_global_batch else ""
        return f"batch_size={self.batch_size}{most}{micro}"


NAMES = ("batch_size", "max_global_batch", "global_batch", "micro_batch")


def batching(
    what: str,
    batch_size: Any = 1,
    max_global_batch: Any = None,
    global_batch: Any = None,
    micro_batch: Any = None,
) -> Batching:
    """What is asked for; ``what``: the call or the table, for its sentence.

    Raises:
        UsageError: it cannot be.
    """
    found = _batching(what, batch_size, max_global_batch, global_batch)
    if micro_batch is None:
        return found
    return replace(found, micro_batch=_whole(what, "micro_batch", micro_batch))


def check_alike(mine: Batching, theirs: Batching, worker: int) -> None:
    """Make sure that ``worker`` asks for the batches of its job, whatever that has chosen.

    Raises:
        DataError: it does not.
    """
    if replace(theirs, chosen=mine.chosen) != mine:
        raise DataError(
            f"the batches of w{worker} are not the job's; every worker must ask for the same. "
            f"Here: {mine}. The job: {theirs}"
        )


def _batching(what: str, batch_size: Any, max_global_batch: Any, global_batch: Any) -> Batching:
    if global_batch is not None and (batch_size != 1 or max_global_batch is not None):
        raise UsageError(
            f"{what} was given global_batch, by which each worker has its part of that, and "
            "batch_size or max_global_batch, too; leave these out"
        )
    if isinstance(global_batch, Sequence) and not isinstance(global_batch, str):
        return Batching(batch_range=_range(what, global_batch))
    if global_batch is not None:
        return Batching(global_batch=_whole(what, "global_batch", global_batch))
    size = _whole(what, "batch_size", batch_size)
    if max_global_batch is None:
        return Batching(size)
    whole = isinstance(max_global_batch, int) and not isinstance(max_global_batch, bool)
    if not whole or max_global_batch < size:
        raise UsageError(
            f"max_global_batch is {max_global_batch!r} and batch_size {size}; give the most "
            "samples that all workers together may have in a batch, not fewer than one of them has"
        )
    return Batching(size, max_global_batch)


def _whole(what: str, name: str, given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(
            f"{name} is {given!r}; {what} needs a whole number of samples. Where "
            "each item of the data set is a batch already, give batch_size=1"
        )
    if given < 1:
        raise UsageError(f"{name} is {given}; it must be at least 1")
    return given


def _range(what: str, given: Sequence[Any]) -> tuple[int, int]:
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if len(given) != 2 or not whole or not 1 <= given[0] < given[1]:
        raise UsageError(
            f"global_batch is {given!r}; {what} takes a number of samples, the same in each step, "
            "or two, the fewest and the most among which the job is to choose"
        )
    return given[0], given[1]
