"""Define the batch sizes of a job: given by its script, or chosen by its batch policy.

:func:`batching` makes a :class:`Batching` from a user's values.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from edl.core.record import Record
from edl.errors import NewcomerDiffers, UsageError


@dataclass(frozen=True)
class Batching(Record):
    """The sizes of a job's batches, in samples, equal on all workers.

    The sizes follow from ``batch_range`` if it is set; else from ``global_batch``, if that is set;
    else from ``batch_size``, with its limit ``max_global_batch``. 0 means that a size is not set.

    Attributes:
        batch_size: the batch of one worker.
        max_global_batch: the most samples that all workers together train in a step. If
            ``batch_size`` for each worker is more than that, the workers share this maximum.
        global_batch: the batch of all workers together; it is the same for any number of workers,
            and so are the samples of each step.
        batch_range: the smallest and the largest global batch, if the job itself chooses its global
            batch; (0, 0): it does not.
        chosen: the global batch that the job chose last; 0: none yet, so the smallest is used.
        micro_batch: the most samples that one worker trains in one forward and backward pass; a
            larger batch is trained in pieces. 0: a batch is one piece.
        logical: how many logical workers share the global batch (:func:`logical_batching`), each
            ``micro_batch`` samples of it; 0: the job has none.
    """

    batch_size: int = 1
    max_global_batch: int = 0
    global_batch: int = 0
    batch_range: tuple[int, int] = (0, 0)
    chosen: int = 0
    micro_batch: int = 0
    logical: int = 0

    @property
    def is_chosen(self) -> bool:
        """Whether the job itself chooses its global batch: whether ``batch_range`` is set."""
        return self.batch_range[1] > 0

    def choosing(self, global_batch: int) -> Batching:
        """Return a copy in which ``chosen`` is ``global_batch``, clipped to ``batch_range``.

        It is only for a job that chooses its global batch (:attr:`is_chosen`).
        """
        least, most = self.batch_range
        return replace(self, chosen=min(max(global_batch, least), most))

    def of_all(self, size: int) -> int:
        """Return the size of the global batch for a ring of ``size`` workers, in samples.

        It is the chosen batch, or the fixed ``global_batch``, or ``batch_size`` for each worker up
        to ``max_global_batch``. Except for a fixed ``global_batch`` it is at least ``size``: a
        sample for each worker.
        """
        if self.is_chosen:
            return max(size, self.chosen or self.batch_range[0])
        if self.global_batch:
            return self.global_batch
        whole = self.batch_size * size
        return max(size, min(whole, self.max_global_batch)) if self.max_global_batch else whole

    def of_one(self, rank: int, size: int) -> int:
        """Return the batch size, in samples, of one worker in a ring of ``size`` workers.

        The workers share the global batch (:meth:`of_all`) evenly, and the first ranks have one
        sample more if it cannot be divided (AutoScaling, MLSys 2020). So it is ``batch_size`` if
        neither a global batch nor a maximum is set.

        Args:
            rank: the rank of the worker, from 0.
            size: the number of workers in the ring.
        """
        each, more = divmod(self.of_all(size), size)
        return each + (rank < more)

    def microbatches(self, size: int) -> int:
        """Return in how many pieces each of ``size`` workers trains its batch.

        It is 1 without ``micro_batch``. The number is that of rank 0, whose batch is the largest,
        on all workers, so their scripts make equally many iterations.
        """
        return -(-self.of_one(0, size) // self.micro_batch) if self.micro_batch else 1

    def iterations(self, total: int, size: int) -> int:
        """Return how many iterations a script's loop over one epoch of the loader makes.

        The number is equal on all workers. An incomplete last batch counts as a whole one. A batch
        that is trained in pieces takes an iteration for each piece; but with logical workers the
        number is that of the updates, for the iterations depend on how many workers there are.

        Args:
            total: the number of samples of the epoch.
            size: the number of workers in the ring, assumed to stay the same.
        """
        steps = -(-total // self.of_all(size))
        return steps if self.logical else steps * self.microbatches(size)

    def split(self, samples: int, pieces: int) -> list[int]:
        """Return the lengths of the pieces in which a worker trains a batch of ``samples`` samples.

        Without ``micro_batch`` it is one piece. Else there are ``pieces`` pieces, but fewer rather
        than pieces of a single sample (of which BatchNorm computes no variance), and more if a
        piece would exceed ``micro_batch``. The lengths differ by one at most, the longer ones
        first.

        Args:
            samples: the length of the batch, at least 1.
            pieces: into how many pieces all workers divide their batches in the same step.
        """
        if not self.micro_batch:
            return [samples]
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
    """Check the batch sizes that a user gave, and return them as a :class:`Batching`.

    All sizes are in samples. With ``global_batch``, neither ``batch_size`` (other than 1) nor
    ``max_global_batch`` may be given.

    Args:
        what: the function or table that the values were given to, for error messages.
        batch_size: the batch of one worker.
        max_global_batch: the most that all workers together train in a step, at least
            ``batch_size``; None: no limit.
        global_batch: the batch of all workers together; or a sequence of the smallest and the
            largest one, among which the job chooses; None: not given.
        micro_batch: the most that a worker trains in one forward and backward pass; None: its whole
            batch.

    Raises:
        UsageError: a value is not a positive integer, or two values contradict each other.
    """
    found = _batching(what, batch_size, max_global_batch, global_batch)
    if micro_batch is None:
        return found
    return replace(found, micro_batch=_whole(what, "micro_batch", micro_batch))


def logical_batching(what: str, asked: Batching, logical: int) -> Batching:
    """Return the sizes of the batches of a job that has logical workers.

    A logical worker trains one microbatch of each step, on whichever worker it runs. So each step
    is the same sum of the same microbatches, whatever the number of workers.

    Args:
        what: the function that the sizes were given to, for error messages.
        asked: the sizes that the script asks for: the batch of one logical worker
            (``batch_size``), or of all of them together (``global_batch``).
        logical: the number of logical workers, at least 1.

    Raises:
        UsageError: the script asks for a range, a maximum or a microbatch, or for a global batch
            that the logical workers cannot share evenly.
    """
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
    """Raise an error if a worker asks for other batch sizes than the job has.

    The global batch that the job has chosen (``Batching.chosen``) may differ.

    Args:
        mine: the batch sizes that the worker's script asks for.
        theirs: the batch sizes of the job.
        worker: the id of the worker, for the message.

    Raises:
        NewcomerDiffers: the two differ.
    """
    if replace(theirs, chosen=mine.chosen) != mine:
        raise NewcomerDiffers(
            f"the batches of w{worker} are not the job's; every worker must ask for the same. "
            f"Here: {mine}. The job: {theirs}"
        )


def size_changes(given: Sequence[Sequence[int]]) -> tuple[tuple[int, int], ...]:
    """Return changes of the global batch, as JSON has them, as pairs (first update, size)."""
    return tuple((int(update), int(size)) for update, size in given)


def _batching(what: str, batch_size: Any, max_global_batch: Any, global_batch: Any) -> Batching:
    """Check a user's batch sizes except ``micro_batch``, and return them as a :class:`Batching`.

    Args:
        what: the function or table that the values were given to, for error messages.
        batch_size: the batch of one worker, in samples.
        max_global_batch: the most samples that all workers together train in a step; None: no
            limit.
        global_batch: the batch of all workers, or a sequence of the smallest and the largest one;
            None: not given.

    Raises:
        UsageError: a value is not a positive integer, or two values contradict each other.
    """
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
    """Return ``given`` unchanged if it is an integer of at least 1; otherwise raise an error.

    Args:
        what: the function or table that the value was given to, for the error message.
        name: the name of the parameter, for the error message.
        given: the value.

    Raises:
        UsageError: ``given`` is no integer (a boolean is none), or below 1.
    """
    if not isinstance(given, int) or isinstance(given, bool):
        raise UsageError(
            f"{name} is {given!r}; {what} needs a whole number of samples. Where "
            "each item of the data set is a batch already, give batch_size=1"
        )
    if given < 1:
        raise UsageError(f"{name} is {given}; it must be at least 1")
    return given


def _range(what: str, given: Sequence[Any]) -> tuple[int, int]:
    """Return a user's ``global_batch=(smallest, largest)`` as a tuple of two integers.

    Args:
        what: the function or table that the value was given to, for the error message.
        given: the numbers that the user gave.

    Raises:
        UsageError: ``given`` is not two integers with 1 <= smallest < largest.
    """
    whole = all(isinstance(each, int) and not isinstance(each, bool) for each in given)
    if len(given) != 2 or not whole or not 1 <= given[0] < given[1]:
        raise UsageError(
            f"global_batch is {given!r}; {what} takes a number of samples, the same in each step, "
            "or two, the fewest and the most among which the job is to choose"
        )
    return given[0], given[1]
