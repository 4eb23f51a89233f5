"""Record the outcome of an optimizer's last step, for workers that missed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class LastStep:
    """The outcome of one optimizer's last step, in the job's state for workers that missed it."""

    skipped: bool | torch.Tensor = False  # a tensor of an optimizer that decides; 0.0: not skipped
    # Of a step that others completed without this worker: it restores their result after the
    # script's `optimizer.step()`, since some optimizers change weights even without gradients.
    missed: Callable[[], None] | None = None
