"""Let each label of a step count alike, over all workers and batches."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

import edl.torch
from edl.binding import process
from edl.step.weighting import Counts, batch_factor, step_factor
from edl.torch.api import exchange, skip_loss_check

# ------------------------------------------------------------
# Compute the mean loss of all workers that a `Trainer` logs: `MeanLoss`.


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


def divisor(labels: torch.Tensor) -> torch.Tensor:
    """Return by what the sum of a batch's losses is divided: its labels that are not masked."""
    return labels.clamp(min=1)  # without labels the loss counts 0 times, and 0 times NaN is NaN


class LabelWeights:
    """The weighting of losses that are means over labels, for one worker."""

    def __init__(self) -> None:
        self.loss_factor = 1.0  # of the present batch, before `backward()`; 1.0 between batches
        self._counts_of_all: list[Counts] = []  # of a step whose last batch is in training
        self.begin_step()

    def begin_step(self) -> None:
        self._samples = self._labels = 0

    def begin_batch(self, samples: int, labels: int, batches: int, is_last: bool) -> int:
        """Set `loss_factor` for a batch; all call it before the forward pass. Return its labels."""
        skip_loss_check()
        counted = labels if samples else 0  # a padding batch has no samples
        self.loss_factor = batch_factor(samples, counted, batches)
        self._samples += samples
        self._labels += counted
        self._counts_of_all = self._exchange() if is_last else []
        return counted

    def end_batch(self) -> None:
        self.loss_factor = 1.0  # for the script's other calls of `backward()`

    def scale_gradients(self, optimizer: Any) -> None:
        """Turn the averaged gradients of a step into means over the labels."""
        counts, self._counts_of_all = self._counts_of_all, []
        if not counts:  # not the last batch of a step, or one that is not weighted
            return
        averaged = process.current_worker().loader.progress.members
        groups = optimizer.param_groups
        gradients = [p.grad for group in groups for p in group["params"] if p.grad is not None]
        if gradients:
            torch._foreach_mul_(gradients, step_factor(counts, averaged))

    def _exchange(self) -> list[Counts]:
        own = Counts(process.current_worker().id, self._samples, self._labels)
        answers = exchange(np.array(own, dtype=np.int64).tobytes())
        return [Counts(*np.frombuffer(one, dtype=np.int64).tolist()) for one in answers]
