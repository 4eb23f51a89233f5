"""How much of an epoch was trained when its workers left it, in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochLeft:
    """An epoch at the moment when all workers left it.

    Attributes:
        epoch: its number.
        trained: how many of its samples are in the model.
        total: how many it has; 0: of a stream, nobody knows.
        is_over: all of them are trained.
    """

    epoch: int
    trained: int
    total: int
    is_over: bool

    @property
    def untrained(self) -> int:
        """How many samples were left out; 0 where nobody knows."""
        return max(0, self.total - self.trained) if not self.is_over else 0

    @property
    def share(self) -> str:
        """What was trained of it, as "752 of 960 samples"."""
        return (
            f"{self.trained} of {self.total} samples" if self.total else f"{self.trained} samples"
        )

    def __str__(self) -> str:
        rest = f"; {self.untrained} were not" if self.total else ""
        return f"epoch {self.epoch} was left with {self.share} trained{rest}"


def ended_by_script(left: EpochLeft) -> str:
    """Where a script has ended that had not trained all its epochs, as the end of a sentence."""
    if left.is_over:
        return f"; the script ended after epoch {left.epoch}"
    return f"; the script ended in epoch {left.epoch}, with {left.share} of it trained"


def ended_by_count(left: EpochLeft) -> str:
    """How much of its last epoch a job has trained that has finished, if not all of it."""
    return "" if left.is_over else f"; {left.share} of epoch {left.epoch} are trained"


def left_out(samples: int) -> str:
    """How many samples of all epochs were left out unawares, as the end of a sentence."""
    if not samples:
        return ""
    return f"; {samples:,} samples of epochs that all workers left early are not trained"
