"""Record the outcome of an optimizer's last step, for workers that missed it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch


@dataclass
class LastStep:
    """The outcome of the last complete step of one optimizer."""

    # The state of the job has it, so that a worker that missed the step learns it.

    # whether its update was skipped. If the optimizer decides that by itself, on its device, this
    # is a tensor, and 0.0 means that the update was made.
    skipped: bool | torch.Tensor = False
    # if other workers completed the step without this one, which received their result: a function
    # that restores this result after the script's `optimizer.step()`. (Some optimizers change
    # weights even without gradients.) None: there is nothing to restore.
    missed: Callable[[], None] | None = None
