"""``edl.LRTuner``: the learning rate is tuned while the job trains, the same on all workers.

What is measured, and what follows from it, is :mod:`edl.core.policy.lr_tuner`. Here a measured
update is kept, its losses are evaluated in the batches of the next one, and all workers agree on
their mean by an exchange between two steps. Whether an update is measured follows from what all
workers know, so all come to the exchange; one that did not make that update (a newcomer, or one
that missed the step) brings nothing to it.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from edl.core.policy.lr_fit import points
from edl.core.policy.lr_tuner import Measured, TunerState, Tuning
from edl.core.step.mean import weighted_means
from edl.daemon.loader_steps import Update
from edl.errors import UsageError
from edl.framework.process import current_worker
from edl.schedules import EXPLORE
from edl.torch.accumulation import in_pieces
from edl.torch.api import model_of, settle_step
from edl.torch.lr_schedule import before_each_update
from edl.torch.probe import Probe
from edl.torch.schedulers import schedulers_of

logger = logging.getLogger(__name__)

now_s = time.monotonic
UNSCALED = {"Rprop", "ASGD", "Adafactor"}  # their rate is no factor of the update
RANGE = 1e3  # the learning rate stays within this factor of the one that was given
STEPS_KEPT = 50


class LRTuner(LRScheduler):
    """Tunes the learning rate of ``optimizer`` by the loss along its own updates.

    ::

        tuner = edl.LRTuner(
            optimizer,
            loss_of=lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
            total=len(dataset) * epochs,
        )
        ...
            optimizer.step()
            tuner.step((x, y))

    It explores with a rate that is as high as the loss does not grow, then exploits with the one
    that minimises it. It begins at a tenth of the optimizer's own rate. Parameter groups keep the
    ratios of their rates.

    Args:
        optimizer: that of ``edl.Optimizer``, the script's only one.
        loss_of: the mean loss of a batch, a number, from a forward pass.
        total: samples of the whole training: those of an epoch times the epochs.
        explore: samples of them in which it explores; None: half of them.
        share: of the time of all steps that measuring may take.
        max_lr: the highest learning rate; None: 1,000 times the optimizer's own.

    Raises:
        UsageError: the optimizer is not edl's, has another scheduler, or a rate that is no factor
            of its updates; or the other arguments cannot be.
    """

    def __init__(
        self,
        optimizer: torch.optim.Optimizer,
        loss_of: Callable[[Any], Any],
        total: float,
        explore: float | None = None,
        share: float = 0.03,
        max_lr: float | None = None,
    ) -> None:
        kind = type(optimizer).__name__
        if kind in UNSCALED:
            _refuse(f"the learning rate of {kind} is no factor of its updates, so it has no tuner")
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        if not rates[0] > 0:
            _refuse(f"the optimizer's learning rate is {rates[0]:g}; give it one to begin with")
        self._ratios = [rate / rates[0] for rate in rates]
        self._tuning = Tuning(
            total=total,
            explore=EXPLORE * total if explore is None else explore,
            share=share,
            least=rates[0] / RANGE,
            most=rates[0] * RANGE if max_lr is None else max_lr,
        )
        if why := self._tuning.refusal():
            _refuse(why)
        self._refuse_others(optimizer)
        before_each_update(optimizer, self._begin_update, "edl.LRTuner")
        self._loss_of = loss_of
        self._state = self._tuning.begin(rates[0])
        self._probe = Probe(optimizer, model_of(optimizer))
        self._left_s: float | None = None  # when the script went on after the last step()
        self._extra_s = 0.0  # of measuring, that the others do not know of
        self._copied_s = 0.0  # of that, within the present step
        self._steps_s: deque[float] = deque(maxlen=STEPS_KEPT)
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # the groups may have one and the same
                group["lr"] = group["lr"].clone()
        self._set(current_worker().loader.update)

    @property
    def reason(self) -> str:
        """What was decided last, and why."""
        return self._state.reason

    def step(self, batch: Any) -> None:  # type: ignore[override]
        """After the update of ``batch`` and before the next one; all workers call it.

        Raises:
            UsageError: its update is not made, or the script has several optimizers.
        """
        worker = current_worker()
        if worker.warming_up:
            return
        if worker.loader.progress.optimizers > 1:
            _refuse("this script has several optimizers; it tunes the only one")
        if in_pieces(worker):
            _refuse("it measures whole batches, and micro_batch hands out pieces; leave that out")
        settle_step()  # an update that a GradScaler has skipped
        if worker.loader.open:
            _refuse("call its step() after optimizer.step()")
        began_s = now_s()
        if self._left_s is not None:
            self._steps_s.append(began_s - self._left_s - self._copied_s)
        update = worker.loader.update
        if self._state.measures:
            self._measure(batch, update)
        elif self._is_due(update):
            self._probe.end()
            self._state = replace(self._state, measures=True)
        else:
            self._probe.forget()
        self._left_s, self._copied_s = now_s(), 0.0
        self._extra_s += self._left_s - began_s

    def get_lr(self) -> list[float | torch.Tensor]:
        """That of the last update: nothing changes between two."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What all workers know."""
        return self._state.snapshot()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what the others know."""
        self._state = TunerState.restore(state_dict)
        self._probe.forget()

    def _initial_step(self) -> None:
        """PyTorch's own calls step(), for which there is no batch yet."""
        self._last_lr = self.get_lr()

    def _begin_update(self, update: Update) -> None:
        """Right before an update."""
        worker = current_worker()
        self._refuse_others(self.optimizer)
        self._set(update)
        missed = worker.loader.open_step.superseded  # the others' update is in the model
        if worker.warming_up or missed or not self._is_due(update):
            return
        began_s = now_s()
        self._probe.begin()
        self._copied_s = now_s() - began_s
        self._extra_s += self._copied_s

    def _is_due(self, update: Update) -> bool:
        return self._tuning.is_due(self._state, update.after, update.batches[-1][1])

    def _measure(self, batch: Any, update: Update) -> None:
        """The losses along the update before this one, in its batch; then what follows."""
        worker, at = current_worker(), points(self._state.reach)
        weight, losses = 0.0, [0.0] * len(at)
        began_s = now_s()
        if self._probe.holds:
            weight = float(worker.steps.batch_weight)
            losses = self._probe.losses(at, lambda: self._loss_of(batch))
        self._probe.forget()
        extra_s, self._extra_s = self._extra_s + now_s() - began_s, began_s - now_s()
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        rows = worker.exchange([weight, extra_s, step_s, *losses])
        before, self._state = self._state, self._tuning.measured(self._state, _told(rows, update))
        if self._state.reason != before.reason and worker.rank == 0:
            logger.info("learning rate: %s", self._state.reason)

    def _set(self, update: Update) -> None:
        rate = self._tuning.rate_at(self._state, update.after)
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio
        self._last_lr = self.get_lr()

    def _refuse_others(self, optimizer: torch.optim.Optimizer) -> None:
        others = [each for each in schedulers_of(optimizer) if each is not self]
        for other in others:
            _refuse(f"{type(other).__name__} sets the same learning rate; leave one of them out")


def _told(rows: Sequence[Sequence[float]], update: Update) -> Measured:
    """What the workers have told each other: weight, seconds of measuring and of a step, losses."""
    means = weighted_means([[row[0], *row[3:]] for row in rows])
    known = any(row[0] > 0 for row in rows)
    steps_s = [row[2] for row in rows if row[2] > 0]
    return Measured(
        samples=update.after,
        batch=update.batches[-1][1],
        losses=tuple(means) if known else None,
        cost_s=max(row[1] for row in rows),
        step_s=statistics.fmean(steps_s) if steps_s else 0.0,
    )


def _refuse(why: str) -> None:
    raise UsageError(f"edl.LRTuner: {why}")
