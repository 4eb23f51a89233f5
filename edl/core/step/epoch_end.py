"""Write clauses of messages that say how much of an epoch was trained when the workers left it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EpochLeft:
    """An epoch at the moment when all workers left it, by finishing it or before its end."""

    epoch: int  # from 0
    trained: int  # samples that the job has trained
    total: int  # its samples; 0 for a stream, whose length is not known
    is_over: bool  # all samples were trained

    @property
    def untrained(self) -> int:
        """The number of samples of the epoch that were not trained; always 0 for a stream."""
        return max(0, self.total - self.trained) if not self.is_over else 0

    @property
    def share(self) -> str:
        """How much was trained, in words: "752 of 960 samples", or "752 samples" of a stream."""
        return (
            f"{self.trained} of {self.total} samples" if self.total else f"{self.trained} samples"
        )

    def __str__(self) -> str:
        rest = f"; {self.untrained} were not" if self.total else ""
        return f"epoch {self.epoch} was left with {self.share} trained{rest}"


def ended_by_script(left: EpochLeft) -> str:
    """Return a clause: "; the script ended after epoch 3", or in it, with how much trained."""
    if left.is_over:
        return f"; the script ended after epoch {left.epoch}"
    return f"; the script ended in epoch {left.epoch}, with {left.share} of it trained"


def ended_by_count(left: EpochLeft) -> str:
    """Return a clause: "; 752 of 960 samples of epoch 3 are trained"; empty if all are."""
    return "" if left.is_over else f"; {left.share} of epoch {left.epoch} are trained"


def left_out(samples: int) -> str:
    """Return a clause that says how many samples of all epochs were not trained; empty if none."""
    if not samples:
        return ""
    return f"; {samples:,} samples of epochs that all workers left early are not trained"
