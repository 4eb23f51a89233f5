"""Describe the data of a job: its number of samples, their order, and the sizes of its batches.

A :class:`Source` also says how the positions of an epoch are leased to the workers. Subclasses are
:class:`edl.core.step.aligned.AlignedSource`, for a fixed global batch, and
:class:`edl.core.step.stream.StreamSource`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from edl.core.step.batching import Batching, check_alike
from edl.core.step.ledger import LeasePolicy, Ledger, free_leases, restore, start_epoch
from edl.core.step.shuffle import EpochOrder, Indices
from edl.errors import DataError, NewcomerDiffers

NO_FINGERPRINT = "data of unknown files"
SUBSET = "a Subset"  # in the fingerprint of data of which the script chooses some samples


@dataclass(frozen=True)
class SliceSizes:
    """The number of samples that one worker trains together: a logical worker's batch, or 1."""

    usual: int = 1  # in all global batches, but for those from `shorter_from` on
    shorter_from: int | None = None  # epoch position; None: nowhere
    shorter: int = 1  # there, at the end of an epoch

    def at(self, position: int) -> int:
        """Return the number in the global batch that has the epoch position `position`."""
        is_last = self.shorter_from is not None and position >= self.shorter_from
        return self.shorter if is_last else self.usual


@dataclass(frozen=True)
class Source:
    """A description of the data that a script trains on, equal on all workers; it reads no data."""

    total: int  # positions of an epoch: its samples, unless the data is a stream
    batching: Batching
    shuffle: bool  # the order of an epoch is random
    seed: int  # of that order
    prefetch_batches: int  # that the loader forms ahead of the one in training
    fingerprint: str = ""  # one line that differs where the data differ; empty: not known
    # from an epoch, the sample at each position; None: it follows from `shuffle` and `seed`
    sampler: Callable[[int], Indices] | None = field(default=None, compare=False, repr=False)

    lets_newcomers_pad: ClassVar[bool] = True  # until their first batch is loaded

    @property
    def needs_same_seed(self) -> bool:
        """Whether all workers, and a checkpoint that is resumed, must have the same `seed`."""
        # Augmentation of logical workers must draw the same numbers on each worker; other scripts
        # may put the rank into the seed.
        return bool(self.batching.logical) or (self.shuffle and self.sampler is None)

    @property
    def batch_size(self) -> int:
        """The nominal batch, in samples, from which the weights of gradients are computed."""
        batching = self.batching
        return batching.global_batch or batching.batch_range[0] or batching.batch_size

    @property
    def units(self) -> SliceSizes:
        """The numbers of samples that one worker trains together; 1 without logical workers."""
        return SliceSizes()

    @property
    def warm_up_batch(self) -> int:
        """The number of samples of a newcomer's first batch, whose result is discarded."""
        # At least two workers share a global batch.
        is_shared = self.batching.is_chosen or self.batching.global_batch
        whole = -(-self.batch_size // 2) if is_shared else self.batch_size
        return min(whole, self.batching.micro_batch or whole)

    def need(self, step_batches: int, size: int) -> int:
        """Return how many leased samples a worker wants to hold, so that its loader never waits."""
        return (self.prefetch_batches + 2 * step_batches) * self.batching.of_one(0, size)

    @property
    def known_total(self) -> int:
        """The number of samples of an epoch; 0 for a stream, where it is not known."""
        return self.total

    def describe_total(self, total: int) -> str:
        """Return a number of positions of an epoch, `total`, in words: "960 samples"."""
        return f"{total} samples"

    def policy(self, size: int) -> LeasePolicy:
        """Return the policy that leases samples in a ring of `size` workers."""
        return LeasePolicy(self.batching.of_one(0, size))  # rank 0 has the largest batch

    def lacks(self, ledger: Ledger, worker: int, step_batches: int, size: int) -> int:
        """Return how many more samples must be leased to `worker`, at least 0."""
        return max(0, self.need(step_batches, size) - ledger.held_samples(worker))

    def start(self, epoch: int) -> Ledger:
        """Return the ledger of the epoch `epoch` (from 0), in which all positions are free."""
        return start_epoch(self.total, epoch)

    def regroup(self, ledger: Ledger, members: Collection[int], in_hand: int) -> Ledger:
        """Return the ledger for a new ring: leases of workers that are not in it are free again."""
        return free_leases(ledger, members)

    def added_pieces(self, ledger: Ledger, members: Collection[int], in_hand: int) -> int:
        """Return how many more pieces each worker trains in a step that workers have left."""
        return 0

    def order(self, epoch: int) -> EpochOrder:
        """Return which sample is at each position of the epoch `epoch` (from 0)."""
        if self.sampler is not None:
            return EpochOrder.given(self.total, partial(self.sampler, epoch))
        return EpochOrder(self.total, self.seed, epoch, self.shuffle)


def check_same_data(mine: Source, header: Mapping[str, Any], worker: int) -> None:
    """Refuse to take over the progress of a job that trains on other data, or in another order."""
    theirs = header["fingerprint"]
    if mine.fingerprint != theirs:
        both = f"Here: {mine.fingerprint or NO_FINGERPRINT}. The job: {theirs or NO_FINGERPRINT}"
        if SUBSET in mine.fingerprint and SUBSET in theirs:
            raise NewcomerDiffers(
                f"the samples that w{worker} chooses are not the job's; choose them alike on all "
                "workers, as random_split() with a generator of a fixed seed does, without the "
                f"rank in it. {both}"
            )
        # The worker is started again: its host may lack the data for a moment, while it is copied.
        raise DataError(
            f"the data of w{worker} are not the job's; every worker must load the same. {both}"
        )
    check_alike(mine.batching, Batching.from_json(header["batching"]), worker)
    total, total_of_job = mine.total, restore(header["ledger"]).total
    if total_of_job != total:
        raise DataError(
            f"the dataset of w{worker} has {mine.describe_total(total)} and the job's "
            f"{mine.describe_total(total_of_job)}; every worker must load the same data"
        )
    # A worker with another order is not replaced: its script would ask for the same again or, by a
    # seed from the clock, for yet another. A `sampler` is not compared: it may take long.
    if mine.needs_same_seed and mine.seed != header["order_seed"]:
        raise NewcomerDiffers(
            f"the seed of the data loader of w{worker} is {mine.seed} and the job's "
            f"{header['order_seed']}; give all workers the same seed, or a generator with the same "
            "one, without the rank or the time in it"
        )
    if mine.shuffle != header["shuffle"]:
        raise NewcomerDiffers(
            f"shuffle of the data loader of w{worker} is {mine.shuffle} and the job's "
            f"{header['shuffle']}; give all workers the same shuffle"
        )
