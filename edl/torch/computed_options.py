"""Find the options of an optimizer that its own ``step()`` computes: :class:`ComputedOptions`.

The options of a parameter group are set by the script and its schedulers, such as ``lr`` and
``weight_decay``. Some optimizers also keep numbers there that ``step()`` computes from gradients
(Prodigy, D-Adaptation) or counts (schedule-free optimizers). A worker that missed a step needs
these from another worker, and must keep the others, which its script has yet to change.
"""

from __future__ import annotations

from typing import Any

import torch

from edl.torch.optimizer_state import stepping

SCHEDULED = ("lr", "initial_lr")  # by schedulers, at any time

Numbers = list[dict[str, Any]]  # of the options of each group, by name


def option_numbers(optimizer: torch.optim.Optimizer) -> Numbers:
    """Return the numbers among the options of each parameter group, by name, to compare them."""
    # A tensor is known by its identity and count of changes: to read it would wait for its device.
    return [
        {
            name: (id(value), value._version) if isinstance(value, torch.Tensor) else value
            for name, value in group.items()
            if isinstance(value, int | float | torch.Tensor) and name not in SCHEDULED
        }
        for group in optimizer.param_groups
    ]


class ComputedOptions:
    """The names of the options that the `step()` of one optimizer has changed itself."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self.names: set[str] = set()
        self._optimizer = optimizer
        self._before: list[Numbers] = []  # of steps within steps, the outermost first
        for each in dict.fromkeys((optimizer, stepping(optimizer))):
            each.register_step_pre_hook(self._begin)
            each.register_step_post_hook(self._end)

    def _begin(self, *_: Any) -> None:
        self._before.append(option_numbers(self._optimizer))

    def _end(self, *_: Any) -> None:
        before, now = self._before.pop(), option_numbers(self._optimizer)
        for old, new in zip(before, now, strict=False):
            self.names.update(name for name in new if old.get(name) != new[name])
