"""Set learning rates by the number of samples trained: ``edl.LRSchedule``, ``edl.in_samples``.

The rate of an update is set right before the update, when every worker knows how many samples the
update has. So it is the same on all workers, whatever the batches are and whichever workers have
joined or left.
"""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    LambdaLR,
    LRScheduler,
    OneCycleLR,
    ReduceLROnPlateau,
)
from torch.optim.swa_utils import AveragedModel
from torch.utils.hooks import RemovableHandle

from edl.binding.process import current_worker
from edl.binding.replica import map_leaves
from edl.errors import UsageError
from edl.record import dict_of_kind, kind_of_dict
from edl.schedules import Constant, Scaling, Schedule
from edl.step.source import StepInterval
from edl.torch.optimizer_state import (
    PORTABLE,
    Arguments,
    after_closure,
    can_save,
    stepping,
    with_inner_optimizers,
)
from edl.worker.loader_steps import Update

logger = logging.getLogger(__name__)


# ------------------------------------------------------------
# Share the states of a script's LR schedulers, if they are of PyTorch's base class: a newcomer, and
# a job that is resumed, must go on with the learning rate of the job. And warn of schedules that
# depend on the number of steps, since a job whose size changes has no fixed number of them.

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
    def __init__(self) -> None:
        self._optimizers: list[torch.optim.Optimizer] = []

    def add(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizers.append(optimizer)

    def states(self, but: Collection[Any]) -> list[dict[str, Any]]:
        """Return a dict for each scheduler, but those that are tracked by name."""
        return [
            {
                "kind": type(scheduler).__name__,
                "state": map_leaves(
                    scheduler.state_dict(),
                    lambda leaf, _: leaf if isinstance(leaf, PORTABLE) else STAYS,
                ),
                "steps_before": steps_before_samples(scheduler),
                "interval": [*(_intervals.get(scheduler) or ())],
            }
            for scheduler in self._mine(but)
        ]

    def load(self, states: Sequence[dict[str, Any]], but: Collection[Any]) -> list[str]:
        """Load the job's states into schedulers of the same classes; return the others' classes."""
        mine, unfit = self._mine(but), []
        for theirs in reversed(states):  # the newest first: an earlier one may be of another stage
            same = [one for one in mine if type(one).__name__ == theirs["kind"]]
            if not same:
                unfit.append(theirs["kind"])
                continue
            mine.remove(same[-1])
            load_scheduler(same[-1], theirs["state"])
            if same[-1] in _counting_samples and "steps_before" in theirs:
                go_on(same[-1], theirs["steps_before"], theirs.get("interval"))
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
    optimizers = {id(one) for one in with_inner_optimizers(optimizer)}
    return [one for one in _alive() if id(getattr(one, "optimizer", None)) in optimizers]


def step_values(optimizer: torch.optim.Optimizer) -> list[float]:
    """Return the values by which ReduceLROnPlateau schedulers of `optimizer` decided last."""
    return [_step_values[one] for one in schedulers_of(optimizer) if one in _step_values]


def warn_of_counted_steps(epochs: int) -> None:
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


def go_on(scheduler: LRScheduler, steps_before: int, interval: Sequence[Any] | None) -> None:
    """Let a scheduler go on with the samples of the job, perhaps with another global batch."""
    mine, theirs = _intervals.get(scheduler), StepInterval(*interval) if interval else None
    if mine is not None and theirs is not None:
        if has_own_function(scheduler):  # to which the script's interval belongs
            steps_before = mine.steps(theirs.samples(steps_before))
        else:  # the loaded state has the number of steps, to which the job's interval belongs
            mine = theirs
    counts_samples(scheduler, steps_before, mine)


def has_own_function(scheduler: LRScheduler) -> bool:
    """Return whether the rates come from a function of the script that is not in the state."""
    return isinstance(scheduler, LambdaLR) and not any(scheduler.state_dict()["lr_lambdas"])


def steps_before_samples(scheduler: LRScheduler) -> int:
    return _counting_samples.get(scheduler, 0)


def warn_of_a_changed_batch(before: int, now: int, epochs: int) -> None:
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
    while isinstance(scheduler, ChainedScheduler):
        scheduler = scheduler._schedulers[0]
    return int(scheduler.last_epoch)


def _alive() -> list[LRScheduler]:
    _made[:] = [ref for ref in _made if ref() is not None]
    return [one for ref in _made if (one := ref()) is not None]


def savable(states: list[dict[str, Any]]) -> Any:
    return map_leaves(states, lambda leaf, _: leaf if can_save(leaf) else STAYS)


def load_scheduler(scheduler: LRScheduler, state: Any) -> None:
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
    if isinstance(state, dict):
        return any(map(_has_marker, state.values()))
    if isinstance(state, list | tuple):
        return any(map(_has_marker, state))
    return isinstance(state, str) and state == STAYS


BEFORE, INTERVAL = "edl_steps_before", "edl_interval"  # keys in the state of an InSamples
UNSCALED = {"Rprop", "ASGD", "Adafactor"}  # their rate is no factor of the update


class LRSchedule(LRScheduler):
    """An LR scheduler that sets the rates of ``optimizer`` by the number of samples trained.

    It sets them when it is made, and then right before each update.

    Args:
        optimizer: an optimizer that ``edl.Optimizer`` has returned.
        schedule: a schedule of :mod:`edl.schedules`, a learning rate as a function of samples; or a
            sequence of these, one for each parameter group.
        scaling: the rule by which the rates grow with the global batch, an
            :class:`edl.schedules.Scaling`; None: they do not.
        keep_ratios: whether the rates of the other groups keep their present ratios to the rate of
            the first group, which follows ``schedule``. If False, each group's rate is that of its
            schedule, or of the one schedule.

    Raises:
        UsageError: the optimizer is not edl's, its learning rate cannot be scaled, there are not as
            many schedules as parameter groups, or a ratio to be kept is one to a rate of 0.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        schedule: Schedule | Sequence[Schedule],
        scaling: Scaling | None = None,
        *,
        keep_ratios: bool = False,
    ) -> None:
        groups = len(optimizer.param_groups)
        self._first_rate = float(optimizer.param_groups[0]["lr"])
        self._keeps_ratios = keep_ratios
        self._ratios: list[float] = []
        several = [schedule] * groups if isinstance(schedule, Schedule) else schedule
        is_of_groups = isinstance(several, Sequence) and len(several) == groups
        if not is_of_groups or not all(isinstance(one, Schedule) for one in several):
            raise UsageError(
                f"edl.LRSchedule needs a schedule of edl.schedules, or {groups}, one for each "
                "parameter group"
            )
        self.schedules = tuple(several)
        self._is_for_all = isinstance(schedule, Schedule)
        if scaling is not None and type(optimizer).__name__ in UNSCALED:
            raise UsageError(
                f"the learning rate of {type(optimizer).__name__} is no factor of its updates, so "
                "it cannot follow the global batch; leave out the scaling of edl.LRSchedule"
            )
        self.scaling = scaling
        if scaling is not None and scaling.needs_noise:
            current_worker().loader.progress.noise.asked = True
        before_each_update(optimizer, self._set, "edl.LRSchedule")
        counts_samples(self)
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # the groups may have one and the same
                group["lr"] = group["lr"].clone()
        self._set(current_worker().loader.update)

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the present learning rate of each parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state, without the schedules, which each worker's script gives."""
        state = super().state_dict()
        del state["schedules"]
        return state

    def _set(self, update: Update) -> None:
        scaling = self.scaling
        factor = 1.0
        if scaling is not None:
            factor = scaling.at(update.number, update.batches, update.noise.changes)
        self._extend_to_new_groups()
        groups = self.optimizer.param_groups
        for group, schedule, ratio in zip(groups, self.schedules, self._ratios, strict=True):
            rate = factor * ratio * schedule.at(update.after)
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._last_lr = self.get_lr()

    def _extend_to_new_groups(self) -> None:
        check_groups(self.optimizer, len(self._ratios), "edl.LRSchedule", may_grow=True)
        new = self.optimizer.param_groups[len(self._ratios) :]
        for number, group in enumerate(new, len(self._ratios)):
            rate = float(group["lr"])
            if not self._keeps_ratios or rate == self._first_rate:
                self._ratios.append(1.0)
                continue
            if self._first_rate == 0:
                raise UsageError(
                    "the rate of the first parameter group of the optimizer is 0 and that of "
                    f"group {number} is {rate:g}, so they have no ratio to keep; freeze parameters "
                    "with requires_grad_(False) in place of a rate of 0, or put their group last"
                )
            self._ratios.append(rate / self._first_rate)
        lacking = len(self._ratios) - len(self.schedules)
        if lacking > 0 and not self._is_for_all:
            raise UsageError(
                f"the optimizer has {len(self._ratios)} parameter groups by now, and "
                f"edl.LRSchedule {len(self.schedules)} schedules; give it one for all groups"
            )
        self.schedules += self.schedules[:1] * lacking


def check_groups(
    optimizer: torch.optim.Optimizer, count: int, scheduler: str, may_grow: bool = False
) -> None:
    now = len(optimizer.param_groups)
    if now < count or (now > count and not may_grow):
        instead = "freeze parameters with requires_grad_(False) in place of removing their group"
        if now > count:
            instead = f"give the optimizer all its groups before {scheduler}"
        raise UsageError(
            f"the optimizer has {now} parameter groups by now, and {scheduler} has rates for "
            f"{count}; {instead}"
        )


def follow_policy(optimizer: torch.optim.Optimizer) -> None:
    policy = current_worker().follows()
    if policy is None or policy.learning_rate is None:
        return
    if others := schedulers_of(optimizer):
        raise UsageError(BOTH.format(kind=type(others[0]).__name__))
    table, first = policy.learning_rate, float(optimizer.param_groups[0]["lr"])
    if table.schedule is not None and current_worker().loader.progress.optimizers > 1:
        raise UsageError(
            "the job's policy has one schedule in [learning_rate], and the script several "
            "optimizers; leave the schedule out, and give edl.LRSchedule to each in the script"
        )
    schedule = table.schedule or Constant(peak_lr=first)
    _of_policy.add(LRSchedule(optimizer, schedule, table.scaling, keep_ratios=True))


def check_schedulers() -> None:
    for mine in _of_policy:
        if others := [one for one in schedulers_of(mine.optimizer) if one is not mine]:
            raise UsageError(BOTH.format(kind=type(others[0]).__name__))


BOTH = (
    "the job's policy has a [learning_rate], and the script a {kind} for the same optimizer; "
    "leave one of them out"
)

_of_policy: weakref.WeakSet[LRSchedule] = weakref.WeakSet()  # their optimizers hold them


class InSamples:
    """A wrapper of an LR scheduler of PyTorch, for which `batch` samples count as one step."""

    def __init__(self, scheduler: LRScheduler, batch: int, epoch: int | None = None) -> None:
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise UsageError(
                f"batch is {batch!r}; edl.in_samples needs the global batch, in samples, for which "
                "the steps of the scheduler were chosen"
            )
        if isinstance(scheduler, ReduceLROnPlateau) or not isinstance(scheduler, LRScheduler):
            raise UsageError(
                f"edl.in_samples takes an LR scheduler that counts steps; "
                f"{type(scheduler).__name__} does not"
            )
        self.scheduler = scheduler
        loaded = {name: vars(scheduler).pop(name, None) for name in (BEFORE, INTERVAL)}
        counts_samples(scheduler, 0, StepInterval(batch, epoch))
        go_on(scheduler, step_count(scheduler), loaded[INTERVAL])
        self._hook = before_each_update(
            scheduler.optimizer, lambda update: self._advance_to(update.before), "edl.in_samples"
        )

    @property
    def _step_interval(self) -> StepInterval:
        return _intervals[self.scheduler]

    def steps_of(self, samples: int) -> int:
        return steps_before_samples(self.scheduler) + self._step_interval.steps(samples)

    def _advance_to(self, trained: int) -> None:
        scheduler, steps = self.scheduler, self.steps_of(trained)
        if isinstance(scheduler, LambdaLR) and scheduler.last_epoch > steps:
            scheduler.last_epoch = steps - 1  # resumed with a larger batch; a step sets the rate
        while step_count(scheduler) < steps:
            scheduler.step()

    def release(self) -> LRScheduler:
        self._hook.remove()
        del _counting_samples[self.scheduler]
        _intervals.pop(self.scheduler, None)
        return self.scheduler

    def step(self) -> None:
        """Set the rate of the next update now; without a call edl sets it right before that."""
        self._advance_to(current_worker().loader.progress.trained)

    def get_last_lr(self) -> list[float | torch.Tensor]:
        return self.scheduler.get_last_lr()

    def state_dict(self) -> dict[str, Any]:
        return {
            **self.scheduler.state_dict(),
            BEFORE: steps_before_samples(self.scheduler),
            INTERVAL: [*self._step_interval],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load `state`, perhaps of another job, and go on from its step with the next samples."""
        by_samples = step_count(self.scheduler) - steps_before_samples(self.scheduler)
        trained = self._step_interval.samples(by_samples)
        self._load(state)
        go_on(self.scheduler, step_count(self.scheduler), state.get(INTERVAL))
        before = steps_before_samples(self.scheduler) - self._step_interval.steps(trained)
        counts_samples(self.scheduler, before)

    def edl_load_state_dict(self, state: dict[str, Any]) -> None:
        """Load `state`, whose steps were made by the samples of this job, if it is tracked."""
        before = state.get(BEFORE, steps_before_samples(self.scheduler))  # not in old checkpoints
        self._load(state)
        go_on(self.scheduler, before, state.get(INTERVAL))

    def _load(self, state: dict[str, Any]) -> None:
        own = {name: value for name, value in state.items() if name not in (BEFORE, INTERVAL)}
        load_scheduler(self.scheduler, own)


def in_samples(scheduler: LRScheduler, batch: int) -> InSamples:
    """Return a wrapper of ``scheduler`` that counts ``batch`` samples as one of its steps.

    So its learning rate after a number of samples is the one that it has in a job whose global
    batch is always ``batch``. A scheduler that has made steps before, such as one whose state the
    script has loaded, goes on from there. ``step()`` of the wrapper, after an update, sets the rate
    of the next one at once; the scheduler's own ``step()`` must not be called.

    Args:
        scheduler: an LR scheduler of PyTorch that counts steps.
        batch: the global batch, in samples, for which the scheduler's numbers of steps were chosen.

    Raises:
        UsageError: the scheduler counts no steps, its optimizer is not edl's, or ``batch`` is below
            1.
    """
    return InSamples(scheduler, batch)


def before_each_update(
    optimizer: torch.optim.Optimizer, then: Callable[[Update], None], caller: str
) -> RemovableHandle:
    """Let `then` be called right before each update, also one that others have made already."""
    if not hasattr(optimizer, "synchronize"):
        raise UsageError(
            f"{caller} needs the optimizer of the job: write optimizer = edl.Optimizer(optimizer, "
            "model) before it"
        )

    if hasattr(optimizer, "_allreduce_delay"):  # Horovod's DistributedOptimizer
        raise UsageError(
            f"{caller} counts the samples of edl's own loader, and hvd.DistributedOptimizer trains "
            "on others; use edl.DataLoader and edl.Optimizer, or a scheduler of PyTorch's"
        )

    def before(_: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> Arguments | None:
        return after_closure(arguments, named, lambda: then(current_worker().loader.update))

    return stepping(optimizer).register_step_pre_hook(before)
