"""Keep the open step of a worker on edl's loader, and the batch that is in training.

:class:`StepInput` does that. A step is open from its first batch until its update is in the model.
"""

from __future__ import annotations

from edl.core.step.weighting import Share
from edl.errors import DataError, UsageError
from edl.worker.sampler import Batch, BatchSampler


class StepInput:
    """The batches that this worker brings into a step, from the first one until the step ends.

    It is ``Worker.loader.step_input``; one object serves all steps, one after the other.

    With several optimizers a batch has several steps; with accumulated gradients a step has several
    batches. A large batch is divided into microbatches, which are handed out one after the other.
    "As bits" means: bit i stands for the optimizer with number i.

    Attributes:
        is_open: whether a batch is handed out whose step is not complete.
        in_hand: whether a batch is in hand: from when it is handed out until :meth:`end_batch`.
        batch: the batch or microbatch handed out last, until it is trained; else None.
        weight: the number of samples of the batch (or microbatch) handed out last, whether it is
            trained or not; 0 for a padding batch, before the first batch, and after :meth:`abandon`
            or, if the batch's samples went to other workers, :meth:`lose`.
        batches: how many batches the step has, padding included; all microbatches of one count as
            one.
        pieces_left: how many microbatches of the batch in hand are yet to be handed out.
        part: 0 in the first step of a batch, 1 in the second, and so on.
        summed: whether the gradients of the step's batches are added up, each times its samples.
        may_grow: whether the step may have one more batch: :meth:`accumulate` was called since the
            last one was handed out.
        updates: the optimizers, as bits, that have made their updates in the step; the framework's
            optimizer sets it.
        completed_by_peers: whether other workers have completed the step without this one.
        counted: the optimizers, as bits, that have already made an update with the samples of the
            batch on another worker.
    """

    def __init__(self) -> None:
        self.is_open = self.in_hand = False
        self.batch: Batch | None = None
        self.weight = self.batches = self.part = self.pieces_left = 0
        self._follow = 0  # how many of pieces_left have samples
        self.summed = self.may_grow = False
        self.updates = self.counted = 0
        self.completed_by_peers = False
        self._theirs = 0  # the updates of the workers that have completed the step
        self._batches: list[Batch] = []  # the batches of the step that are no padding
        self._samples = 0  # of the batch, if it was trained in a step before this one

    @property
    def samples(self) -> int:
        """The number of samples that this worker brings into the step, without padding batches."""
        return self._samples if self.part else sum(batch.samples for batch in self._batches)

    @property
    def untrained(self) -> tuple[Batch, ...]:
        """This worker's batches of the open step, without padding, that are not in the model yet.

        When the step is complete, their positions are marked as done in the ledger, and the
        property is empty.
        """
        return tuple(self._batches)

    @property
    def is_between_parts(self) -> bool:
        """Whether an optimizer has made an update with the batch in hand, or its step has ended.

        If gradients of this batch are computed again after that, they belong to a new step.
        """
        return self.in_hand and (self.updates > 0 or not self.is_open)

    def share(self, optimizer: int) -> Share:
        """Return how many samples and batches this worker brings into the step for one optimizer.

        ``optimizer`` is the number of the optimizer, from 0. The number of samples is 0 if the
        optimizer has already made an update with them on another worker. The result also says
        whether the batches' gradients are added up (``summed``).
        """
        samples = 0 if self.counted >> optimizer & 1 else self.samples
        return Share(samples, self.batches, self.summed)

    @property
    def is_exhausted(self) -> bool:
        """Whether all samples of the batch in hand are handed out, but not all its microbatches.

        All workers divide a batch into the same number of microbatches, so this worker has to add
        padding batches (whose samples do not count).
        """
        return self.pieces_left > 0 and self._follow == 0

    def begin(
        self, batch: Batch, padding: bool, nothing: Batch | None = None, pieces: int = 1
    ) -> None:
        """Note that a batch, or a microbatch of it, is handed out, for a new step or the open one.

        Args:
            batch: the samples that the script gets now: a whole batch, or a microbatch of it.
            padding: whether its samples count for nothing.
            nothing: with a padding batch, a batch that stands for the end of a stream's shard: it
                has no samples, and its positions are marked as done with this step; else None.
            pieces: into how many microbatches each worker divides a batch.

        Raises:
            DataError: ``batch.counted`` differs from that of the step's earlier batches.
        """
        if not self.is_open:
            self.is_open, self.summed = True, False
            self.batches, self._batches, self.counted, self.pieces_left = 0, [], 0, 0
        if self.pieces_left:
            self.pieces_left -= 1
        else:
            self.batches, self.pieces_left = self.batches + 1, pieces - 1
        self._follow = 0 if padding else batch.follow
        if nothing is not None:
            self._batches.append(nothing)
        if not padding:
            if self.samples and batch.counted != self.counted:
                raise DataError(
                    "a batch that a worker left behind in the midst of several optimizers' updates "
                    "cannot be accumulated with others; accumulate in all steps, or in none"
                )
            self.counted = batch.counted
            self._batches.append(batch)
        self.may_grow, self.in_hand = False, True
        self.batch = batch
        self.weight = 0 if padding else batch.samples

    def accumulate(self) -> None:
        """Set ``summed`` and ``may_grow``: gradients are added up, so more batches may follow."""
        self.summed = self.may_grow = True

    def begin_part(self) -> None:
        """Open another step on the batch in hand.

        Raises:
            UsageError: the step before has accumulated the gradients of more than one batch.
        """
        if self.batches > 1:
            raise UsageError(
                "with accumulated gradients, several optimizers make their updates one after the "
                "other: call backward() for all of them before the first optimizer.step()"
            )
        self.part += 1
        self.is_open, self.summed, self.may_grow = True, False, False

    def trained(self, sampler: BatchSampler) -> None:
        """Note that the batches of the step are in the model, and remove them from ``sampler``.

        The step stays open until :meth:`close`.
        """
        self._samples = self.samples
        for batch in self._batches:
            sampler.trained(batch)
        self.batch, self._batches = None, []

    def miss(self, theirs: int, sampler: BatchSampler) -> None:
        """Note that other workers have completed the step, and that their state is in the model.

        ``completed_by_peers`` is True until :meth:`close`.

        Args:
            theirs: the optimizers, with bit i for number i, that have made their updates in the
                step.
            sampler: the sampler from which the batches of the step are removed.
        """
        self.completed_by_peers, self._theirs = True, theirs
        self.trained(sampler)

    def lose(self) -> None:
        """Drop the batches of the step, whose positions are leased to other workers now.

        The attribute ``weight`` becomes 0, unless this worker has trained the batch in an earlier
        step, or others have completed the step.
        """
        self._batches, self._follow = [], 0
        if not self.completed_by_peers and self.part == 0:
            self.weight = 0

    def close(self) -> int:
        """Close the step, and return which optimizers have made their updates in it.

        The step is complete on this worker, or other workers have completed it without this one,
        which has received their state (:meth:`miss`).

        Returns:
            The optimizers, with bit i for number i: those that have made their updates on this
            worker; if other workers have completed the step, those that have made them there (the
            argument ``theirs`` of :meth:`miss`).
        """
        updated = self._theirs if self.completed_by_peers else self.updates
        self.is_open, self.completed_by_peers, self.updates = False, False, 0
        return updated

    def end_batch(self) -> None:
        """Note that the script is done with the batch in hand: ``in_hand`` is False afterwards."""
        self.part, self.in_hand = 0, False

    def abandon(self) -> None:
        """Drop the open step and its batches, because the script has left its loop.

        No batch is in hand afterwards. The ledger and the sampler stay the same.
        """
        self.is_open, self.batch, self.weight, self._batches, self.updates = False, None, 0, [], 0
        self.end_batch()
