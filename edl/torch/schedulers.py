"""Share the states of a script's LR schedulers, if they are of PyTorch's base class.

:class:`Schedulers` shares them. A script makes its scheduler as with PyTorch alone; a newcomer, and
a job that is resumed, must go on with the learning rate of the job. The module also warns of
schedules that depend on the number of steps (:func:`warn_of_counted_steps`,
:func:`warn_of_a_changed_batch`), because a job whose size changes has no fixed number of steps.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import AveragedModel

from edl.core.dict_kinds import dict_of_kind, kind_of_dict
from edl.core.step.step_interval import StepInterval
from edl.framework.digest import PLAIN
from edl.framework.state import map_leaves
from edl.torch.names import can_save
from edl.torch.optimizer_state import with_inner_optimizers

logger = logging.getLogger(__name__)

STAYS = "edl: stays with each worker"  # takes the place of a value that cannot be sent
_LISTS = (list, tuple)

_made: list[weakref.ref[LRScheduler]] = []
_warned_of: weakref.WeakSet[LRScheduler] = weakref.WeakSet()
# By scheduler that counts samples: the steps that it had made before the job's first sample.
_counting_samples: weakref.WeakKeyDictionary[LRScheduler, int] = weakref.WeakKeyDictionary()
_step_values: weakref.WeakKeyDictionary[LRScheduler, float] = weakref.WeakKeyDictionary()
_intervals: weakref.WeakKeyDictionary[LRScheduler, StepInterval] = weakref.WeakKeyDictionary()


def watch_schedulers(skips: Callable[[], bool]) -> None:
    """Keep a list of the LR schedulers that the script makes; no `step()` while `skips()`."""
    _skip_if(AveragedModel, "update_parameters", skips)

    def new(kind: type[LRScheduler], *_: Any, **__: Any) -> LRScheduler:
        for one in kind.__mro__:
            _skip_if(one, "step", skips)
        scheduler: LRScheduler = super(LRScheduler, kind).__new__(kind)
        _made.append(weakref.ref(scheduler))
        return scheduler

    # PyTorch has no hook, and not every scheduler calls the constructor of the base class.
    LRScheduler.__new__ = new  # type: ignore[method-assign,assignment]


def _skip_if(kind: type, name: str, skips: Callable[[], bool]) -> None:
    """Replace a method of a class by one that does nothing while `skips()` returns True."""
    method = vars(kind).get(name)
    if method is None or hasattr(method, "_edl_skips"):
        return

    @functools.wraps(method)
    def wrapped(self: Any, *given: Any, **named: Any) -> Any:
        if skips():
            return None
        result = method(self, *given, **named)
        if kind is ReduceLROnPlateau:
            _step_values[self] = float(given[0] if given else named["metrics"])
        return result

    wrapped._edl_skips = True  # type: ignore[attr-defined]
    setattr(kind, name, wrapped)


class Schedulers:
    """The LR schedulers of the optimizers given to `add`, in the order of their creation."""

    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        """Include the schedulers of `optimizer`, also those that the script makes later."""
        self._optimizers.append(optimizer)

    def states(self, but: Collection[Any]) -> list[dict[str, Any]]:
        """Return a dict for each scheduler, but those that are tracked by name."""
        return [
            {
                "kind": type(scheduler).__name__,
                "state": _portable(scheduler.state_dict()),
                "steps_before": steps_before_samples(scheduler),
                "interval": [*(interval_of(scheduler) or ())],
            }
            for scheduler in self._mine(but)
        ]

    def load(self, states: Sequence[dict[str, Any]], but: Collection[Any]) -> list[str]:
        """Load the job's states into schedulers of the same classes; return the others' classes."""
        mine, unfit = self._mine(but), []
        for theirs in reversed(states):  # the newest first: an earlier one may be of another stage
            fits = [one for one in mine if type(one).__name__ == theirs["kind"]]
            if fits:
                mine.remove(fits[-1])
                load_scheduler(fits[-1], theirs["state"])
                if fits[-1] in _counting_samples and "steps_before" in theirs:
                    go_on(fits[-1], theirs["steps_before"], theirs.get("interval"))
            else:
                unfit.append(theirs["kind"])
        return unfit[::-1]

    def _mine(self, but: Collection[Any]) -> list[LRScheduler]:
        """Return the schedulers of the optimizers, without those inside of other schedulers."""
        # Objects are compared by identity, because an optimizer has no other equality.
        optimizers = {id(one) for each in self._optimizers for one in with_inner_optimizers(each)}
        others = {id(each) for each in but}
        found = [one for one in _alive() if id(getattr(one, "optimizer", None)) in optimizers]
        parts = {id(part) for one in found for part in getattr(one, "_schedulers", ())}
        return [one for one in found if id(one) not in parts | others]


def schedulers_of(optimizer: torch.optim.Optimizer) -> list[LRScheduler]:
    """Return the LR schedulers that the script has made for `optimizer` and not deleted."""
    optimizers = {id(one) for one in with_inner_optimizers(optimizer)}
    return [one for one in _alive() if id(getattr(one, "optimizer", None)) in optimizers]


def step_values(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the values by which ReduceLROnPlateau schedulers of `optimizer` decided last."""
    return [_step_values[one] for one in schedulers_of(optimizer) if one in _step_values]


def warn_of_counted_steps(epochs: int) -> None:
    """Warn once of each OneCycleLR that counts steps and not epochs."""
    for scheduler in _alive():
        if not isinstance(scheduler, OneCycleLR) or scheduler.total_steps <= epochs:
            continue
        if scheduler in _warned_of or scheduler in _counting_samples:
            continue
        _warned_of.add(scheduler)
        logger.warning(
            "OneCycleLR fails after its %d steps, and a job has more of them when workers leave: "
            "give it total_steps=%d, the number of epochs, and call its step() at the end of each, "
            "or let it count samples, by edl.in_samples",
            scheduler.total_steps,
            epochs,
        )


def counts_samples(
    scheduler: LRScheduler, steps_before: int = 0, interval: StepInterval | None = None
) -> None:
    """Exempt `scheduler` from the warnings of this module, because it counts samples."""
    _counting_samples[scheduler] = steps_before
    if interval is not None:
        _intervals[scheduler] = interval


def counts_steps(scheduler: LRScheduler) -> None:
    """Take back `counts_samples` for `scheduler`."""
    del _counting_samples[scheduler]
    _intervals.pop(scheduler, None)


def go_on(scheduler: LRScheduler, steps_before: int, interval: Sequence[Any] | None) -> None:
    """Let a scheduler go on with the samples of the job, perhaps with another global batch."""
    mine, theirs = interval_of(scheduler), StepInterval(*interval) if interval else None
    if mine is not None and theirs is not None:
        if has_own_function(scheduler):  # to which the script's interval belongs
            steps_before = mine.steps(theirs.samples(steps_before))
        else:  # the loaded state has the number of steps, to which the job's interval belongs
            mine = theirs
    counts_samples(scheduler, steps_before, mine)


def interval_of(scheduler: LRScheduler) -> StepInterval | None:
    """Return after how many samples `scheduler` makes a step; None if it has no such number."""
    return _intervals.get(scheduler)


def has_own_function(scheduler: LRScheduler) -> bool:
    """Return whether the rates come from a function of the script that is not in the state."""
    return isinstance(scheduler, LambdaLR) and not any(scheduler.state_dict()["lr_lambdas"])


def steps_before_samples(scheduler: LRScheduler) -> int:
    """Return how many steps `scheduler` had made before the job's first sample."""
    return _counting_samples.get(scheduler, 0)


def warn_of_a_changed_batch(before: int, now: int, epochs: int) -> None:
    """Log a warning for each LR scheduler that counts steps, after the global batch has changed."""
    alive = _alive()
    parts = {id(part) for one in alive for part in getattr(one, "_schedulers", ())}
    for scheduler in alive:
        if id(scheduler) in parts or scheduler in _warned_of or scheduler in _counting_samples:
            continue
        if isinstance(scheduler, ReduceLROnPlateau) or step_count(scheduler) <= epochs:
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


def step_count(scheduler: LRScheduler) -> int:
    """Return how many steps `scheduler` has made, by its `last_epoch`."""
    while isinstance(scheduler, ChainedScheduler):
        scheduler = scheduler._schedulers[0]
    return int(scheduler.last_epoch)


def _alive() -> list[LRScheduler]:
    _made[:] = [ref for ref in _made if ref() is not None]
    return [one for ref in _made if (one := ref()) is not None]


def _portable(state: dict[str, Any]) -> Any:
    values = (*PLAIN, np.ndarray, np.generic, torch.Tensor)
    return map_leaves(state, lambda leaf, _: leaf if isinstance(leaf, values) else STAYS)


def savable(states: list[dict[str, Any]]) -> Any:
    """Return what `Schedulers.states` has returned in a form that a checkpoint can hold."""
    return map_leaves(states, lambda leaf, _: leaf if can_save(leaf) else STAYS)


def load_scheduler(scheduler: LRScheduler, state: Any) -> None:
    """Load `state`, of a scheduler of the same class in the job, into `scheduler`."""
    scheduler.load_state_dict(_overlaid(scheduler.state_dict(), state))
    _step_values.pop(scheduler, None)  # a newcomer's warm-up had another model


def _overlaid(mine: Any, theirs: Any) -> Any:
    """Return `theirs`, with values of `mine` in the place of markers for values not sent."""
    if isinstance(mine, dict) and isinstance(theirs, dict):
        values = {
            name: _overlaid(mine.get(name), value)
            for name, value in theirs.items()
            if name in mine or not _has_marker(value)
        }
        # In checkpoints of an earlier edl the Counter of a MultiStepLR is a plain dict.
        return dict_of_kind(kind_of_dict(mine if type(theirs) is dict else theirs), values)
    lists = type(mine) in _LISTS and type(theirs) in _LISTS
    if lists and len(mine) == len(theirs):
        return type(theirs)(map(_overlaid, mine, theirs))
    return mine if _has_marker(theirs) else theirs


def _has_marker(state: Any) -> bool:
    """Return whether `state` is the marker of a value that was not sent, or has one inside."""
    if isinstance(state, dict):
        return any(map(_has_marker, state.values()))
    if isinstance(state, list | tuple):
        return any(map(_has_marker, state))
    return isinstance(state, str) and state == STAYS
