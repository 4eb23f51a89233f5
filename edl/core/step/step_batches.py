"""Keep the batches of the open step on one worker: which are handed out, and which may follow.

:class:`StepBatches` is the part of :class:`edl.core.step.engine.StepEngine` that is about samples.
A step has one batch, or several if gradients are accumulated; a batch is handed out whole, or in
pieces (microbatches), of which all workers have equally many.
"""

from __future__ import annotations

from edl.core.step.batch import Batch
from edl.core.step.step_events import BatchStart
from edl.core.step.weighting import Share
from edl.errors import DataError


class StepBatches:
    """The batches of the open step on one worker, and the pieces that are yet to be handed out."""

    def __init__(self) -> None:
        # the batch or microbatch handed out last, until it is trained; else None
        self.newest: Batch | None = None
        # `weight`: the samples of the batch (or microbatch) handed out last, trained or not; 0 for
        # padding, before the first batch, and if it is abandoned or lost. `count`: the batches of
        # the step, padding too; microbatches of one count once. `pieces_left`: the microbatches of
        # the batch in hand yet to be handed out. `part`: 0 in the first step of a batch, 1 in the
        # second. `counted`: the optimizers, as bits, that have updated by the batch elsewhere.
        self.weight = self.count = self.pieces_left = self.part = self.counted = 0
        self.pieces = 1  # microbatches of each batch of the step, on each worker
        # `summed`: gradients are added up over the batches, each times its samples. `may_grow`: one
        # more batch, or microbatch, may be added to the step.
        self.summed = self.may_grow = False
        self._follow = 0  # how many of pieces_left have samples
        self._untrained: list[Batch] = []  # the batches of the step that are no padding
        self._trained = 0  # samples of the batch, if it was trained in a step before this one

    @property
    def samples(self) -> int:
        """The number of samples that this worker brings into the step, without padding batches."""
        return self._trained if self.part else sum(batch.samples for batch in self._untrained)

    @property
    def untrained(self) -> tuple[Batch, ...]:
        """This worker's batches of the open step, without padding, not yet in the model."""
        return tuple(self._untrained)

    @property
    def follow(self) -> int:
        """How many microbatches of the batch in hand follow on this worker, without padding."""
        return self._follow if self.pieces_left > 0 and self.newest is not None else 0

    @property
    def is_exhausted(self) -> bool:
        """Whether only padding is left of the microbatches of the batch in hand."""
        return self.pieces_left > 0 and self._follow == 0

    def share(self, optimizer: int) -> Share:
        """Return how many samples and batches this worker brings into the step for an optimizer."""
        samples = 0 if self.counted >> optimizer & 1 else self.samples
        return Share(samples, self.count, self.summed)

    # --- what changes them: the engine's calls only

    def begin(self, summed: bool) -> None:
        """Begin a step without batches; `summed` says whether its gradients are always sums."""
        self.summed = summed
        self.count, self._untrained, self.counted, self.pieces_left = 0, [], 0, 0

    def add(self, event: BatchStart) -> None:
        """Add the batch or microbatch that the script gets now."""
        batch = event.batch
        if self.pieces_left:
            self.pieces_left -= 1
        else:
            self.count, self.pieces = self.count + 1, event.pieces
            self.pieces_left = event.pieces - 1
        self._follow = 0 if event.padding and not batch.repeats else batch.follow
        if event.nothing is not None:
            self._untrained.append(event.nothing)
        if not event.padding:
            if self.samples and batch.counted != self.counted:
                raise DataError(
                    "a batch that a worker left behind in the midst of several optimizers' updates "
                    "cannot be accumulated with others; accumulate in all steps, or in none"
                )
            self.counted = batch.counted
            self._untrained.append(batch)
        self.may_grow, self.newest = False, batch
        self.weight = 0 if event.padding else batch.samples

    def begin_part(self) -> None:
        """Begin one more step on the batch in hand."""
        self.part += 1
        self.summed = self.may_grow = False

    def end_parts(self) -> None:
        """End the batch in hand: the next step is the first one of its batch."""
        self.part = 0

    def grow(self) -> None:
        """Let the step have more batches, or microbatches: gradients are added up."""
        self.summed = self.may_grow = True

    def add_pieces(self, pieces: int, follow: int) -> None:
        """Divide the batch in hand into more microbatches: workers that are gone left them."""
        self.pieces_left += pieces - self.pieces
        self.pieces, self._follow = pieces, follow
        self.grow()

    def train(self) -> None:
        """Note that the samples of the step are in the model, here or on other workers."""
        self._trained = self.samples
        self.newest, self._untrained = None, []

    def drop(self) -> None:
        """Drop all batches of the step, because the script has left its loop."""
        self.newest, self.weight, self._untrained, self.part = None, 0, [], 0

    def lose(self, weight_stays: bool) -> None:
        """Drop the samples of the batches, which are leased to other workers now."""
        self._untrained, self._follow = [], 0
        if not weight_stays:
            self.weight = 0
