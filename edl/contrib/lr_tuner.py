"""Measure some updates of a job and set its learning rate: ``edl.LRTuner`` in every framework.

To measure an update is to evaluate the loss at several points on the line through the weights
before and after it, in the batches of the next update. Until then each worker keeps a copy of these
weights. All workers measure the same updates, because the choice depends only on values that are
equal on all; they exchange their losses between two steps and use the mean. A worker that did not
make the update (a newcomer, or one that missed the step) takes part with weight 0.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from edl.contrib.lr_rules import MeasuredUpdate, TunerState, Tuning, points
from edl.errors import UsageError
from edl.step.weighting import weighted_means
from edl.worker.loader_steps import Update
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)
now_s = time.monotonic
RANGE = 1e3  # the learning rate stays within this factor of the one that was given
STEPS_KEPT = 50
Losses = Callable[[Sequence[float]], list[float]]  # at the points e, see edl.contrib.lr_rules


class Probe(Protocol):
    """The interface to keep a copy of one update of the model: the weights before and after it."""

    @property
    def holds(self) -> bool:
        """Whether the probe holds a whole update: the weights before and after it."""

    def begin(self) -> None:
        """Copy the weights before an update; call this right before the optimizer makes it."""

    def end(self) -> None:
        """Copy the weights after the update; do nothing if `begin` was not called for it."""

    def forget(self) -> None:
        """Drop the copy of the update, whether it is whole, only begun, or not there."""


class Tuner:
    """A tuner of the job's learning rate: one on each worker, all in equal states."""

    def __init__(self, tuning: Tuning, rate: float, probe: Probe) -> None:
        self._tuning, self._probe = tuning, probe
        self._state = tuning.begin(rate)
        self._left_s: float | None = None  # when the script went on after the last update
        self._extra_s = 0.0  # of measuring, that the others do not know of
        self._copied_s = 0.0  # of that, within the present step
        self._steps_s: deque[float] = deque(maxlen=STEPS_KEPT)

    @property
    def reason(self) -> str:
        return self._state.reason

    @property
    def measures(self) -> bool:
        return self._state.measures

    def rate(self, update: Update) -> float:
        """Return the learning rate for an update; call this before the optimizer makes it."""
        return self._tuning.rate_at(self._state, update.after)

    def snapshot(self) -> dict[str, Any]:
        return self._state.snapshot()

    def restore(self, values: dict[str, Any]) -> None:
        self._state = TunerState.restore(values)
        self._probe.forget()

    def begin_update(self, worker: Worker, update: Update) -> None:
        """Copy the weights before an update if it is to be measured; call this right before it."""
        missed = worker.loader.engine.completed_by_peers  # the others' update is in the model
        if worker.warming_up or missed or not self._is_due(update):
            return
        began_s = now_s()
        self._probe.begin()
        self._copied_s = now_s() - began_s
        self._extra_s += self._copied_s

    def end_update(self, worker: Worker, losses: Losses) -> None:
        """Measure the update before the last one if it was chosen; else perhaps choose the last."""
        # All workers must call this between an update and the next batch: each may wait for all.
        began_s = now_s()
        if self._left_s is not None:
            self._steps_s.append(began_s - self._left_s - self._copied_s)
        update = worker.loader.update
        if self._state.measures:
            self._measure(worker, update, losses)
        elif self._is_due(update):
            self._probe.end()
            self._state = replace(self._state, measures=True)
        else:
            self._probe.forget()
        self._left_s, self._copied_s = now_s(), 0.0
        self._extra_s += self._left_s - began_s

    def _is_due(self, update: Update) -> bool:
        return self._tuning.is_due(self._state, update.after, update.batches[-1][1])

    def _measure(self, worker: Worker, update: Update, losses: Losses) -> None:
        at = points(self._state.reach)
        weight, found = 0.0, [0.0] * len(at)
        began_s = now_s()
        if self._probe.holds:  # else this worker has not made the update
            weight, found = float(worker.steps.batch_weight), losses(at)
        self._probe.forget()
        extra_s, self._extra_s = self._extra_s + now_s() - began_s, began_s - now_s()
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        rows = worker.exchange([weight, extra_s, step_s, *found])
        before, self._state = (
            self._state,
            self._tuning.measured(self._state, _measured(rows, update)),
        )
        if self._state.reason != before.reason and worker.rank == 0:
            logger.info("learning rate: %s", self._state.reason)


def tuning_of(
    rate: float, total: float, explore: float, share: float, max_lr: float | None
) -> Tuning:
    if not rate > 0:
        refuse(f"the optimizer's learning rate is {rate:g}; give it one to begin with")
    most = rate * RANGE if max_lr is None else max_lr
    tuning = Tuning(total=total, explore=explore, share=share, least=rate / RANGE, most=most)
    if why := tuning.refusal():
        refuse(why)
    return tuning


def mean_loss(loss: Any) -> float:
    item = getattr(loss, "item", None)
    try:
        return float(loss if item is None else item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            "loss_of of edl.LRTuner gives the mean loss of a batch, a number or a tensor with one "
            f"element in it: {error}"
        ) from error


def refuse(why: str) -> NoReturn:
    raise UsageError(f"edl.LRTuner: {why}")


def refuse_several() -> NoReturn:
    refuse("this script has several optimizers; it tunes the only one")


def refuse_beside(other: str) -> NoReturn:
    refuse(f"{other} sets the same learning rate; leave one of them out")


def refuse_unscaled(kind: str) -> NoReturn:
    refuse(f"the learning rate of {kind} is no factor of its updates, so it has no tuner")


def _measured(rows: Sequence[Sequence[float]], update: Update) -> MeasuredUpdate:
    # A row: the weight of the losses, seconds of measuring, of a step (0: unknown), the losses.
    means = weighted_means([[row[0], *row[3:]] for row in rows])
    known = any(row[0] > 0 for row in rows)
    steps_s = [row[2] for row in rows if row[2] > 0]
    return MeasuredUpdate(
        samples=update.after,
        batch=update.batches[-1][1],
        losses=tuple(means) if known else None,
        cost_s=max(row[1] for row in rows),
        step_s=statistics.fmean(steps_s) if steps_s else 0.0,
    )
