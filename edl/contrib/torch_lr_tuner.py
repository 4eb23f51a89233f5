"""Provide ``edl.LRTuner``, which chooses the learning rate by losses measured in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from edl.binding.process import current_worker
from edl.contrib.lr_tuner import (
    Tuner,
    mean_loss,
    refuse,
    refuse_beside,
    refuse_several,
    refuse_unscaled,
    tuning_of,
)
from edl.schedules import EXPLORE
from edl.torch.api import end_batch, model_of
from edl.torch.gradients import in_microbatches
from edl.torch.lr_schedules import (
    UNSCALED,
    before_each_update,
    check_groups,
    counts_samples,
    schedulers_of,
)
from edl.worker.loader_steps import Update

# ------------------------------------------------------------
# Evaluate the loss along an update that was made, at other learning rates than the update's own.
#
# A `Probe` does it. An update with another learning rate would have moved the parameters along the
# same line, through their values before and after the update, by a distance in proportion to the
# rate. So copies of the parameters before and after it are enough, whatever the optimizer is, as
# long as its update is a multiple of its learning rate.
#
# An evaluation leaves no trace: parameters, buffers (BatchNorm's averages) and PyTorch's generators
# are bit for bit what they were. All evaluations of an update begin with the same buffers and the
# same random numbers, so dropout removes the same units at each learning rate. Modules stay in the
# mode in which they train: BatchNorm normalises by the batch, as in the step itself.


class Probe:
    """A probe of the loss along one update, with copies of the parameters before and after it."""

    def __init__(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module | None) -> None:
        self._optimizer, self._model = optimizer, model
        self._parameters: list[torch.Tensor] = []
        self._before: list[torch.Tensor] = []
        self._after: list[torch.Tensor] = []

    @property
    def holds(self) -> bool:
        return bool(self._after)

    def begin(self) -> None:
        groups = self._optimizer.param_groups
        self._parameters = [p for group in groups for p in group["params"] if p.requires_grad]
        self._before, self._after = self._copies(), []

    def end(self) -> None:
        if self._before:
            self._after = self._copies()

    def forget(self) -> None:
        self._parameters, self._before, self._after = [], [], []

    def losses(self, at: Sequence[float], loss: Callable[[], Any]) -> list[float]:
        assert self.holds
        now, found = self._copies(), []
        with torch.no_grad(), _same_random_numbers(self._devices()) as begin_again:
            buffers = _Buffers(self._model)
            try:
                for e in at:
                    self._move(1.0 + e)
                    found.append(mean_loss(loss()))
                    buffers.put_back()
                    begin_again()
            finally:
                for parameter, value in zip(self._parameters, now, strict=True):
                    parameter.copy_(value)
                buffers.put_back()
        return found

    def _move(self, part: float) -> None:
        for p, before, after in zip(self._parameters, self._before, self._after, strict=True):
            p.copy_(torch.lerp(before, after, part))

    def _copies(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self._parameters]

    def _devices(self) -> list[torch.device]:
        found = {p.device for p in self._parameters if p.device.type == "cuda"}
        return sorted(found, key=str)


class _Buffers:
    """A copy of the buffers of a model, taken when the object is made."""

    def __init__(self, model: torch.nn.Module | None) -> None:
        modules = () if model is None else model.modules()
        self._kept = [
            (module, name, buffer, buffer.clone())
            for module in modules
            for name, buffer in module.named_buffers(recurse=False)
        ]

    def put_back(self) -> None:
        for module, name, buffer, value in self._kept:
            buffer.copy_(value)
            if getattr(module, name) is not buffer:
                setattr(module, name, buffer)


@contextmanager
def _same_random_numbers(devices: Sequence[torch.device]) -> Iterator[Callable[[], None]]:
    """Yield a function that resets PyTorch's generators to their state before the block."""
    on_cpu = torch.get_rng_state()
    on_devices = [torch.cuda.get_rng_state(device) for device in devices]

    def begin_again() -> None:
        torch.set_rng_state(on_cpu)
        for device, state in zip(devices, on_devices, strict=True):
            torch.cuda.set_rng_state(state, device)

    try:
        yield begin_again
    finally:
        begin_again()


class LRTuner(LRScheduler):
    """An LR scheduler that chooses the rate of ``optimizer`` by losses that it measures.

    It evaluates what the loss would be if an update had been made with a larger or smaller rate::

        tuner = edl.LRTuner(
            optimizer,
            loss_of=lambda batch: F.cross_entropy(model(batch[0]), batch[1]),
            total=len(dataset) * epochs,
        )
        ...
            optimizer.step()
            tuner.step((x, y))

    In the first ``explore`` samples, it uses the highest rate at which the loss does not grow;
    after that, the rate that minimises the loss. It begins at a tenth of the optimizer's own rate.
    Parameter groups keep the ratios of their rates.

    Args:
        optimizer: the optimizer that ``edl.Optimizer`` has returned, the script's only one.
        loss_of: a function that computes the mean loss of a batch, a number or a tensor with one
            element, by a forward pass. Its argument is the batch that the script gives to
            :meth:`step`.
        total: samples of the whole training: the samples of an epoch times the number of epochs.
        explore: how many of these samples the first phase has; None: half of them.
        share: the largest fraction of the training time that goes into measuring losses; above 0,
            at most 1.
        max_lr: the highest learning rate; None: 1,000 times the optimizer's own.

    Raises:
        UsageError: the optimizer is not edl's, has another scheduler, or makes updates that are not
            proportional to its rate; or another argument has an impossible value.
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
        """The last decision about the learning rate, with its reason, as a text."""
        return self._tuner.reason

    def step(self, batch: Any) -> None:  # type: ignore[override]
        """Evaluate the loss at other rates of an earlier update, or select this update for that.

        All workers call it after the update of each batch, before they take the next batch; during
        a newcomer's warm-up it does nothing. If the update before was selected, its losses at
        several rates are evaluated in this ``batch`` and exchanged with all workers, and the rate
        may change.

        Args:
            batch: the batch of the update, in the form that ``loss_of`` takes.

        Raises:
            UsageError: the update of ``batch`` is not made yet, the script has several optimizers,
                or the loader splits batches into microbatches.
        """
        worker = current_worker()
        if worker.warming_up:
            return
        if worker.loader.progress.optimizers > 1:
            refuse_several()
        if in_microbatches(worker):
            refuse(
                "it measures whole batches, and micro_batch or --logical hands out pieces; leave "
                "that out"
            )
        end_batch()  # an update that a GradScaler has skipped
        if worker.loader.open:
            refuse("call its step() after optimizer.step()")
        self._tuner.end_update(
            worker, lambda at: self._probe.losses(at, lambda: self._loss_of(batch))
        )

    def get_lr(self) -> list[float | torch.Tensor]:
        """Return the present learning rate of each parameter group."""
        return [group["lr"] for group in self.optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the tuning (rates, decisions), which is the same on all workers."""
        return self._tuner.snapshot()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the tuning of another worker or a checkpoint; a selected update is forgotten."""
        self._tuner.restore(state_dict)

    def _initial_step(self) -> None:
        self._last_lr = self.get_lr()  # PyTorch's own calls step(), which needs a batch here

    def _begin_update(self, update: Update) -> None:
        self._refuse_others(self.optimizer)
        self._set(update)
        self._tuner.begin_update(current_worker(), update)

    def _set(self, update: Update) -> None:
        check_groups(self.optimizer, len(self._ratios), "edl.LRTuner")
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
