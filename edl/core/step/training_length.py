"""Define how long a job trains: :class:`TrainingLength`, which all workers of a job share.

Each worker's script asks for a length. A newcomer's script may ask for another one than the job
has, if it computes the number from a file that the job has rewritten meanwhile: the newcomer then
takes over the job's. :meth:`TrainingLength.resuming` decides on the length of a resumed job.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from edl.core.plural import counted
from edl.core.record import Record
from edl.errors import CheckpointError

UNREACHED_STEPS = 2**62  # a number of updates that stands for no limit


@dataclass(frozen=True)
class TrainingLength(Record):
    """How long a job trains, counted from its begin; a resumed job goes on with the same counts."""

    epochs: int | None = None  # None: there is no limit, or it is not known
    max_steps: int | None = None  # updates; None: only the epochs end the training

    @classmethod
    def asked(cls, epochs: float | None, max_steps: int | None) -> TrainingLength:
        """Return the length that a script asks for, in plain whole numbers."""
        return cls(
            None if epochs is None or epochs == math.inf else math.ceil(epochs),
            None if max_steps is None or max_steps >= UNREACHED_STEPS else int(max_steps),
        )

    def left(self, epoch: int, done: int, total: int, step: int, batch: float) -> float | None:
        """Return the number of samples that all workers have to train until the end of the job."""
        limits: list[float | None] = []
        if self.epochs is not None:
            limits.append((self.epochs - epoch) * total - done if total else None)
        if self.max_steps is not None:
            limits.append(max(0, self.max_steps - step) * batch if batch else None)
        known = [float(samples) for samples in limits if samples is not None]
        return min(known) if known and len(known) == len(limits) else None

    def is_below(self, other: TrainingLength) -> bool:
        """Return whether the epochs or the updates are fewer than those of `other`."""
        pairs = (self.epochs, other.epochs), (self.max_steps, other.max_steps)
        return any(mine is not None and its is not None and mine < its for mine, its in pairs)

    def resuming(
        self, saved: TrainingLength, restarts: bool = False, automatic: bool = False
    ) -> TrainingLength:
        """Return the length of a job that is resumed; this one is the script's."""
        if restarts:  # nobody resumed it: all its workers died, and new ones go on
            return self if saved == NO_LENGTH else saved
        # More epochs are allowed, and fewer updates: scripts compute these from the updates of an
        # epoch, of which more workers make fewer.
        if not TrainingLength(self.epochs).is_below(TrainingLength(saved.epochs)):
            return self
        if automatic:  # a job of a cluster begins or goes on, whichever is possible
            return TrainingLength(saved.epochs, self.max_steps)
        # A script that subtracts what a file says is trained asks for fewer epochs, and would end
        # in the midst of the job, which would count as finished.
        raise CheckpointError(
            f"cannot resume: the job that saved the checkpoint trains {saved}, and this script "
            f"asks for {self}; give the number for the whole job, not for what is left of it "
            "(a larger one trains longer). To end earlier, stop inside the loop"
        )

    def __str__(self) -> str:
        updates = "" if self.max_steps is None else counted(self.max_steps, "update")
        if self.epochs is None:
            return updates or "without an end"
        return counted(self.epochs, "epoch") + (updates and f", at most {updates}")


NO_LENGTH = TrainingLength()  # not known, or without an end
