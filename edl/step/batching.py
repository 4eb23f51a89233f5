"""Define the batch sizes of a job: given by its script, or chosen by its batch policy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.errors import NewcomerDiffers, UsageError
from edl.record import Record


@dataclass(frozen=True)
class Batching(Record):
    """The sizes of a job's batches, in samples, equal on all workers."""

    batch_size: int = 1  # the batch of one worker
    # the most samples of all workers in a step; they share it if `batch_size` for each is more
    max_global_batch: int = 0
    # the batch of all workers together, whatever their number: each step has the same samples
    global_batch: int = 0
    # the smallest and the largest global batch, if the job itself chooses; (0, 0): it does not
    batch_range: tuple[int, int] = (0, 0)
    # the global batch that the job chose last; 0: none yet, so the smallest is used
    chosen: int = 0
    # the most samples of a forward and backward pass (a larger batch has several); 0: no limit
    micro_batch: int = 0
    # how many logical workers share the global batch, each `micro_batch` of it; 0: there are none
    logical: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether the job itself chooses its global batch: whether `batch_range` is set."""
        return self.batch_range[1] > 0

    def choosing(self, global_batch: int) -> Batching:
        """Return a copy in which `chosen` is `global_batch`, clipped to `batch_range`."""
        least, most = self.batch_range
        return replace(self, chosen=min(max(global_batch, least), most))

    def of_all(self, size: int) -> int:
        """Return the size of the global batch for a ring of `size` workers, in samples."""
        if self.is_chosen:
            return max(size, self.chosen or self.batch_range[0])  # a sample for each worker
        if self.global_batch:
            return self.global_batch
        whole = self.batch_size * size
        return max(size, min(whole, self.max_global_batch)) if self.max_global_batch else whole

    def of_one(self, rank: int, size: int) -> int:
        """Return the batch size, in samples, of one worker in a ring of `size` workers."""
        # As AutoScaling (MLSys 2020) shares a batch.
        each, more = divmod(self.of_all(size), size)
        return each + (rank < more)

    def microbatches(self, size: int) -> int:
        """Return in how many pieces each of `size` workers trains its batch."""
        # Rank 0 has the largest batch; all have as many pieces, so their scripts iterate alike.
        return -(-self.of_one(0, size) // self.micro_batch) if self.micro_batch else 1

    def iterations(self, total: int, size: int) -> int:
        """Return how many iterations a script's loop over one epoch of the loader makes."""
        steps = -(-total // self.of_all(size))
        # With logical workers the pieces depend on the number of workers, so updates are counted.
        return steps if self.logical else steps * self.microbatches(size)

    def split(self, samples: int, pieces: int) -> list[int]:
        """Return the lengths of the pieces of a batch of `samples` samples, longer ones first."""
        if not self.micro_batch:
            return [samples]
        # Rather fewer pieces than one of a single sample: BatchNorm computes no variance of it.
        count = max(-(-samples // self.micro_batch), min(pieces, samples // 2))
        each, more = divmod(samples, count)
        return [each + (piece < more) for piece in range(count)]

    def __str__(self) -> str:
        if self.logical:
            return f"batch_size={self.micro_batch} of each of {self.logical} logical workers"
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
    """Check the batch sizes that a user gave, and return them as a `Batching`."""
    found = _batching(what, batch_size, max_global_batch, global_batch)
    if micro_batch is None:
        return found
    return replace(found, micro_batch=_whole(what, "micro_batch", micro_batch))


def logical_batching(what: str, asked: Batching, logical: int) -> Batching:
    """Return the sizes for logical workers, each of which trains a microbatch of every step."""
    if asked.is_chosen or asked.max_global_batch or asked.micro_batch:
        raise UsageError(
            f"the job has {logical} logical workers, so each step is to be the same for any number "
            f"of workers, and {what} asks for {asked}; give it batch_size, the batch of each "
            "logical worker, or one number as global_batch"
        )
    each, rest = divmod(asked.global_batch or asked.batch_size * logical, logical)
    if rest or not each:
        raise UsageError(
            f"global_batch={asked.global_batch} cannot be shared evenly by the job's {logical} "
            f"logical workers; give {what} a multiple of {logical}, or batch_size, the batch of "
            "each logical worker"
        )
    return Batching(each, global_batch=each * logical, micro_batch=each, logical=logical)


def check_alike(mine: Batching, theirs: Batching, worker: int) -> None:
    """Raise an error if a worker asks for other batch sizes than the job has."""
    if replace(theirs, chosen=mine.chosen) != mine:
        raise NewcomerDiffers(
            f"the batches of w{worker} are not the job's; every worker must ask for the same. "
            f"Here: {mine}. The job: {theirs}"
        )


def size_changes(given: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return changes of the global batch, as JSON has them, as pairs (first update, size)."""
    return tuple((int(update), int(size)) for update, size in given)


def _batching(what: str, batch_size: Any, max_global_batch: Any, global_batch: Any) -> Batching:
    """Check a user's batch sizes except `micro_batch`."""
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
    """Return `given` if it is an integer of at least 1; else raise UsageError."""
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(
            f"{name} is {given!r}; {what} needs a whole number of samples. Where "
            "each item of the data set is a batch already, give batch_size=1"
        )
    if given < 1:
        raise UsageError(f"{name} is {given}; it must be at least 1")
    return given


def _range(what: str, given: Sequence[Any]) -> tuple[int, int]:
    """Return a user's `global_batch=(smallest, largest)` as a tuple of two integers."""
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if len(given) != 2 or not whole or not 1 <= given[0] < given[1]:
        raise UsageError(
            f"global_batch is {given!r}; {what} takes a number of samples, the same in each step, "
            "or two, the fewest and the most among which the job is to choose"
        )
    return given[0], given[1]
