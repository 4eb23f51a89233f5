"""``edl.LRTuner``: the learning rate is tuned while the job trains, the same on all workers.

What is measured when, and how all agree on it, is :mod:`edl.framework.lr_tuner`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from edl.framework.lr_tuner import (
    Tuner,
    refuse,
    refuse_beside,
    refuse_several,
    refuse_unscaled,
    tuning_of,
)
from edl.framework.process import current_worker
from edl.schedules import EXPLORE
from edl.torch.accumulation import in_pieces
from edl.torch.api import end_batch, model_of
from edl.torch.lr_schedule import UNSCALED, before_each_update
from edl.torch.probe import Probe
from edl.torch.schedulers import counts_samples, schedulers_of
from edl.worker.loader_steps import Update


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
        self._refuse_others(optimizer)  # before its rate is looked at, which may be theirs
        kind = type(optimizer).__name__
        if kind in UNSCALED:
            refuse_unscaled(kind)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        explore = EXPLORE * total if explore is None else explore
        tuning = tuning_of(rates[0], total, explore, share, max_lr)
        self._ratios = [rate / rates[0] for rate in rates]
        before_each_update(optimizer, self._begin_update, "edl.LRTuner")
        counts_samples(self)
        self._loss_of = loss_of
        self._probe = Probe(optimizer, model_of(optimizer))
        self._tuner = Tuner(tuning, rates[0], self._probe)
        super().__init__(optimizer)
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):  # the groups may have one and the same
                group["lr"] = group["lr"].clone()
        self._set(current_worker().loader.update)

    @property
    def reason(self) -> str:
        """What was decided last, and why."""
        return self._tuner.reason

    def step(self, batch: Any) -> None:  # type: ignore[override]
        """After the update of ``batch`` and before the next one; all workers call it.

        Raises:
            UsageError: its update is not made, or the script has several optimizers.
        """
        worker = current_worker()
        if worker.warming_up:
            return
        if worker.loader.progress.optimizers > 1:
            refuse_several()
        if in_pieces(worker):
            refuse("it measures whole batches, and micro_batch hands out pieces; leave that out")
        end_batch()  # an update that a GradScaler has skipped
        if worker.loader.open:
            refuse("call its step() after optimizer.step()")
        self._tuner.end_update(
            worker, lambda at: self._probe.losses(at, lambda: self._loss_of(batch))
        )

    def get_lr(self) -> list[float | torch.Tensor]:
        """That of the last update: nothing changes between two."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """What all workers know."""
        return self._tuner.snapshot()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from what the others know."""
        self._tuner.restore(state_dict)

    def _initial_step(self) -> None:
        """PyTorch's own calls step(), for which there is no batch yet."""
        self._last_lr = self.get_lr()

    def _begin_update(self, update: Update) -> None:
        """Right before an update."""
        self._refuse_others(self.optimizer)
        self._set(update)
        self._tuner.begin_update(current_worker(), update)

    def _set(self, update: Update) -> None:
        rate = self._tuner.rate(update)
        for group, ratio in zip(self.optimizer.param_groups, self._ratios, strict=True):
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(rate * ratio)
            else:
                group["lr"] = rate * ratio
        self._last_lr = self.get_lr()

    def _refuse_others(self, optimizer: torch.optim.Optimizer) -> None:
        others = [each for each in schedulers_of(optimizer) if each is not self]
        for other in others:
            refuse_beside(type(other).__name__)
