"""Schedules that end after a number of steps: a job whose size changes has no such number.

``OneCycleLR(total_steps=epochs * len(loader))`` raises an error in the step after its last. With
fewer workers than it was made for an epoch has more steps.
"""

from __future__ import annotations

import functools
import logging
import weakref
from typing import Any

from torch.optim.lr_scheduler import OneCycleLR

logger = logging.getLogger(__name__)

_made: list[weakref.ref[OneCycleLR]] = []


def watch_schedulers() -> None:
    """Remember the schedulers that the script makes in this process."""
    make: Any = OneCycleLR.__init__
    if hasattr(make, "__wrapped__"):
        return

    @functools.wraps(make)
    def made(self: OneCycleLR, *arguments: Any, **named: Any) -> None:
        make(self, *arguments, **named)
        _made.append(weakref.ref(self))

    OneCycleLR.__init__ = made  # type: ignore[method-assign]


def warn_of_counted_steps(epochs: int) -> None:
    """Warn, once, of schedulers that count steps, for they have more of them than ``epochs``."""
    counting = [one for ref in _made if (one := ref()) is not None and one.total_steps > epochs]
    _made.clear()
    for scheduler in counting:
        logger.warning(
            "OneCycleLR fails after its %d steps, and a job has more of them when workers leave: "
            "give it total_steps=%d, the number of epochs, and call its step() at the end of each",
            scheduler.total_steps,
            epochs,
        )
