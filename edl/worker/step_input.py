"""The step that is open on a worker of edl's loader, and the batch in its hands."""

from __future__ import annotations

from edl.core.step.weighting import Share
from edl.errors import DataError, UsageError
from edl.worker.sampler import Batch, BatchSampler


class StepInput:
    """What this worker brings into the step, from the batch that is handed out until it ends.

    With several optimizers a batch has several steps; with accumulated gradients a step has several
    batches.

    Attributes:
        is_open: a batch is handed out, its step not complete.
        in_hand: a batch is, from the moment when it is handed out until the next one is due.
        batch: the one handed out last, until it is trained.
        weight: how many samples count of the one handed out last.
        batches: of the step, padding included; all pieces of one are one.
        pieces_left: of the batch in hand, that are yet to be handed out.
        part: 0 in the first step of a batch.
        summed: gradients of the step are added up, weighted already.
        may_grow: the step may have one more batch.
        updates: the optimizers, as bits, that have made theirs in the step.
        superseded: others have completed it.
        counted: the optimizers, as bits, that had counted the batch before with another worker.
    """

    def __init__(self) -> None:
        self.is_open = self.in_hand = False
        self.batch: Batch | None = None
        self.weight = self.batches = self.part = self.pieces_left = 0
        self._follow = 0  # pieces that have samples, of those
        self.summed = self.may_grow = False
        self.updates = self.counted = 0
        self.completed_by_peers = False
        self._theirs = 0  # the updates of those who have completed it
        self._batches: list[Batch] = []  # those of the step that are no padding
        self._samples = 0  # of a batch that is trained in a step before this one

    @property
    def samples(self) -> int:
        """How many samples this worker contributes."""
        return self._samples if self.part else sum(batch.samples for batch in self._batches)

    @property
    def untrained(self) -> tuple[Batch, ...]:
        """Those of its batches that the ledger has to move."""
        return tuple(self._batches)

    @property
    def is_between_parts(self) -> bool:
        """An update was made with the batch in hand: what follows belongs to its next step."""
        return self.in_hand and (self.updates > 0 or not self.is_open)

    def share(self, optimizer: int) -> Share:
        """What this worker brings into the step, for one of the optimizers."""
        samples = 0 if self.counted >> optimizer & 1 else self.samples
        return Share(samples, self.batches, self.summed)

    @property
    def is_exhausted(self) -> bool:
        """The next piece of the batch in hand has no samples: its others had them all."""
        return self.pieces_left > 0 and self._follow == 0

    def begin(
        self, batch: Batch, padding: bool, nothing: Batch | None = None, pieces: int = 1
    ) -> None:
        """A batch, or a piece of one, is handed out: of the next step, or one more of the open one.

        Args:
            nothing: a batch without samples that goes with one for padding.
            pieces: in how many each worker trains a batch.

        Raises:
            DataError: it counts for other optimizers than those before it in the open step.
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
        """The gradients of the batch in hand are added up on this worker."""
        self.summed = self.may_grow = True

    def begin_part(self) -> None:
        """Another step on the batch in hand.

        Raises:
            UsageError: it is more than one.
        """
        if self.batches > 1:
            raise UsageError(
                "with accumulated gradients, several optimizers make their updates one after the "
                "other: call backward() for all of them before the first optimizer.step()"
            )
        self.part += 1
        self.is_open, self.summed, self.may_grow = True, False, False

    def trained(self, sampler: BatchSampler) -> None:
        """Its batches are in the model; the next one is formed after them."""
        self._samples = self.samples
        for batch in self._batches:
            sampler.trained(batch)
        self.batch, self._batches = None, []

    def miss(self, theirs: int, sampler: BatchSampler) -> None:
        """Others have completed it, with the updates ``theirs``: their state is in the model."""
        self.completed_by_peers, self._theirs = True, theirs
        self.trained(sampler)

    def lose(self) -> None:
        """What this worker has loaded is somebody else's now; what is trained already is not."""
        self._batches, self._follow = [], 0
        if not self.completed_by_peers and self.part == 0:
            self.weight = 0

    def close(self) -> int:
        """It is complete, here or for the others: the optimizers that have made their updates."""
        updated = self._theirs if self.completed_by_peers else self.updates
        self.is_open, self.completed_by_peers, self.updates = False, False, 0
        return updated

    def end_batch(self) -> None:
        """The next batch is due."""
        self.part, self.in_hand = 0, False

    def abandon(self) -> None:
        """Forget a batch that was handed out and never trained (the script left its loop)."""
        self.is_open, self.batch, self.weight, self._batches, self.updates = False, None, 0, [], 0
        self.end_batch()
