"""LR schedulers follow the job by themselves, if they are of PyTorch's base class.

A script makes its scheduler as with PyTorch alone; a newcomer, and a job that is resumed, must go
on with the learning rate where the job is. And one kind is warned of: a schedule that ends after a
number of steps, for a job whose size changes has no such number.
"""

from __future__ import annotations

import logging
import weakref
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)

from edl.framework.digest import PLAIN
from edl.framework.state import map_leaves

logger = logging.getLogger(__name__)

STAYS = "edl: stays with each worker"  # in the place of what cannot travel

_made: list[weakref.ref[LRScheduler]] = []
_warned_of: weakref.WeakSet[LRScheduler] = weakref.WeakSet()
_counting_samples: weakref.WeakSet[LRScheduler] = weakref.WeakSet()


def watch_schedulers() -> None:
    """Remember the schedulers that the script makes in this process, from now on; called once.

    PyTorch has no hook for that, and not every scheduler calls the constructor of the base class.
    """

    def new(kind: type[LRScheduler], *_: Any, **__: Any) -> LRScheduler:
        scheduler: LRScheduler = super(LRScheduler, kind).__new__(kind)
        _made.append(weakref.ref(scheduler))
        return scheduler

    LRScheduler.__new__ = new  # type: ignore[method-assign,assignment]


class Schedulers:
    """Those of some optimizers, in the order in which the script has made them.

    One that is part of another (of a SequentialLR) travels with it. A scheduler that the script
    drops is none of them any more: a script may make one for each of its stages.
    """

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Its schedulers are the job's, those that exist and those that the script will make."""
        self._optimizers.append(optimizer)

    def states(self, but: Collection[Any]) -> list[dict[str, Any]]:
        """A state of each that is not one of ``but``; what of it cannot travel is left out."""
        return [
            {"kind": type(scheduler).__name__, "state": _portable(scheduler.state_dict())}
            for scheduler in self._mine(but)
        ]

    def load(self, states: Sequence[dict[str, Any]], but: Collection[Any]) -> list[str]:
        """Take over the states; returns the kinds of those that fit no scheduler of this script."""
        mine, unfit = self._mine(but), []
        for theirs in reversed(states):  # the newest first: an earlier one may be of another stage
            fits = [one for one in mine if type(one).__name__ == theirs["kind"]]
            if fits:
                mine.remove(fits[-1])
                _load(fits[-1], theirs["state"])
            else:
                unfit.append(theirs["kind"])
        return unfit[::-1]

    def _mine(self, but: Collection[Any]) -> list[LRScheduler]:
        """Those of the optimizers; compared by identity, for an optimizer has no other equality."""
        optimizers, others = {id(each) for each in self._optimizers}, {id(each) for each in but}
        found = [one for one in _alive() if id(getattr(one, "optimizer", None)) in optimizers]
        parts = {id(part) for one in found for part in getattr(one, "_schedulers", ())}
        return [one for one in found if id(one) not in parts | others]


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """Those that the script has made for ``optimizer``."""
    return [one for one in _alive() if getattr(one, "optimizer", None) is optimizer]


def warn_of_counted_steps(epochs: int) -> None:
    """Warn, once, of schedulers that count steps, for they have more of them than ``epochs``."""
    for scheduler in _alive():
        if not isinstance(scheduler, OneCycleLR) or scheduler in _warned_of:
            continue
        if scheduler.total_steps <= epochs:
            continue
        _warned_of.add(scheduler)
        logger.warning(
            "OneCycleLR fails after its %d steps, and a job has more of them when workers leave: "
            "give it total_steps=%d, the number of epochs, and call its step() at the end of each",
            scheduler.total_steps,
            epochs,
        )


def counts_samples(scheduler: LRScheduler) -> None:
    """``scheduler`` follows the samples of the job, so no change of the batch moves it."""
    _counting_samples.add(scheduler)


def warn_of_a_changed_batch(before: int, now: int, epochs: int) -> None:
    """Name, once each, the schedulers that count steps, as the global batch has changed.

    Args:
        before: samples of the global batch; ``now``: the same after the change.
        epochs: that the job has begun. Who counts more than these counts steps.
    """
    alive = _alive()
    parts = {id(part) for one in alive for part in getattr(one, "_schedulers", ())}
    for scheduler in alive:
        if id(scheduler) in parts or scheduler in _warned_of or scheduler in _counting_samples:
            continue
        if isinstance(scheduler, ReduceLROnPlateau) or counted(scheduler) <= epochs:
            continue
        _warned_of.add(scheduler)
        logger.warning(
            "%s counts steps, and the global batch has gone from %d to %d samples, so its learning "
            "rates come at other samples than they were meant for: let it count samples, by "
            "edl.in_samples(scheduler, batch=%d)",
            type(scheduler).__name__,
            before,
            now,
            before,
        )


def counted(scheduler: LRScheduler) -> int:
    """How often its step() was called; a ChainedScheduler says it by its parts."""
    while isinstance(scheduler, ChainedScheduler):
        scheduler = scheduler._schedulers[0]
    return int(scheduler.last_epoch)


def _alive() -> list[LRScheduler]:
    """In the order in which they were made."""
    _made[:] = [ref for ref in _made if ref() is not None]
    return [one for ref in _made if (one := ref()) is not None]


def _portable(state: dict[str, Any]) -> Any:
    """What of a state is numbers, text and tensors: a scheduler may hold functions and objects."""
    values = (*PLAIN, np.ndarray, np.generic, torch.Tensor)
    return map_leaves(state, lambda leaf, _: leaf if isinstance(leaf, values) else STAYS)


def _load(scheduler: LRScheduler, state: dict[str, Any]) -> None:
    """The inverse. Counters (MultiStepLR has one) have become dicts on their way."""
    whole = _overlaid(scheduler.state_dict(), state)
    own = vars(scheduler)
    counters = {name: Counter(whole[name]) for name in whole if type(own.get(name)) is Counter}
    scheduler.load_state_dict({**whole, **counters})


def _overlaid(mine: Any, theirs: Any) -> Any:
    """``theirs``, and mine where it stays with each worker."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        return {name: _overlaid(mine.get(name), value) for name, value in theirs.items()}
    lists = isinstance(mine, list | tuple) and isinstance(theirs, list | tuple)
    if lists and len(mine) == len(theirs):
        return type(theirs)(map(_overlaid, mine, theirs))
    return mine if isinstance(theirs, str) and theirs == STAYS else theirs
