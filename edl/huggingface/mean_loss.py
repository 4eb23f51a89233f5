"""Compute the mean loss of all workers that a ``Trainer`` logs: :class:`MeanLoss`."""

from __future__ import annotations

import torch

import edl.torch


class MeanLoss:
    """The mean loss since the last log over the samples, or labels, of all workers."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        self._sum = torch.zeros(2, dtype=torch.float32)  # of loss times weight, and of weights
        self.tokens = 0  # of the inputs that this worker has trained

    def add(self, mean: torch.Tensor, weight: int, finite_only: bool) -> None:
        """Add a batch of this worker; its weight is its labels or samples, 0 for padding."""
        added = torch.stack((mean.float() * weight, torch.full_like(mean, weight).float()))
        if finite_only:
            added = torch.where(torch.isfinite(mean), added, 0.0)
        self._sum = self._sum.to(added.device) + (added if weight else 0.0)

    def of_all(self) -> tuple[float, int]:
        """Return the mean loss and the tokens of all workers, which call it between two steps."""
        found = edl.torch.sum({"loss": self._sum, "tokens": torch.tensor(self.tokens)})
        total, weight = found["loss"].tolist()
        self.begin()
        return total / weight if weight else 0.0, int(found["tokens"])
