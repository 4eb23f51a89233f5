"""Compute the mean loss of all workers that a ``Trainer`` logs: :class:`MeanLoss`."""

from __future__ import annotations

import torch

import edl.torch


class MeanLoss:
    """The mean loss since the last log, over the samples (or labels) that all workers have trained.

    Attributes:
        tokens: the input tokens that this worker has trained since the last log.
    """

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Begin a new mean without any batch."""
        self._sum = torch.zeros(2, dtype=torch.float32)  # of loss times weight, and of weights
        self.tokens = 0

    def add(self, mean: torch.Tensor, weight: int, finite_only: bool) -> None:
        """Add a batch of this worker.

        Args:
            mean: the mean of the batch's loss, over its labels or samples.
            weight: how many of them there are; 0 for a padding batch.
            finite_only: whether a loss that is inf or nan is left out.
        """
        added = torch.stack((mean.float() * weight, torch.full_like(mean, weight).float()))
        if finite_only:
            added = torch.where(torch.isfinite(mean), added, 0.0)
        self._sum = self._sum.to(added.device) + (added if weight else 0.0)

    def of_all(self) -> tuple[float, int]:
        """Return the mean loss and the number of tokens of all workers, and begin a new mean.

        All workers call it at the same point, between two steps. A mean without any batch is 0.0.
        """
        found = edl.torch.sum({"loss": self._sum, "tokens": torch.tensor(self.tokens)})
        total, weight = found["loss"].tolist()
        self.begin()
        return total / weight if weight else 0.0, int(found["tokens"])
