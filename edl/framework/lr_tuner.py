"""Which updates are measured, and what follows: what ``edl.LRTuner`` does in every framework.

What is decided from a measurement is :mod:`edl.core.policy.lr_tuner`. Here a measured update is
kept, its losses are evaluated in the batches of the next one, and all workers agree on their mean
by an exchange between two steps. Whether an update is measured follows from what all workers know,
so all come to the exchange; one that did not make that update (a newcomer, or one that missed the
step) brings nothing to it.

A framework adds the probe, which keeps an update and evaluates the loss along it, and sets the
learning rate.
"""

from __future__ import annotations

import logging
import statistics
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, Protocol

from edl.core.policy.lr_fit import points
from edl.core.policy.lr_tuner import Measured, TunerState, Tuning
from edl.core.step.mean import weighted_means
from edl.errors import UsageError
from edl.worker.loader_steps import Update
from edl.worker.worker import Worker

logger = logging.getLogger(__name__)

now_s = time.monotonic
RANGE = 1e3  # the learning rate stays within this factor of the one that was given
STEPS_KEPT = 50

Losses = Callable[[Sequence[float]], list[float]]  # at the points e, see edl.core.policy.lr_fit


class Probe(Protocol):
    """What is kept of an update, for as long as it may be measured."""

    @property
    def holds(self) -> bool:
        """Whether it has a whole update."""

    def begin(self) -> None:
        """The update is about to be made."""

    def end(self) -> None:
        """It was made, if it was begun."""

    def forget(self) -> None:
        """Let go of what is kept."""


class Tuner:
    """One worker's part in the tuning of a job's learning rate.

    Args:
        tuning: what was asked for.
        rate: the learning rate that was given.
        probe: the framework's.
    """

    def __init__(self, tuning: Tuning, rate: float, probe: Probe) -> None:
        self._tuning, self._probe = tuning, probe
        self._state = tuning.begin(rate)
        self._left_s: float | None = None  # when the script went on after the last update
        self._extra_s = 0.0  # of measuring, that the others do not know of
        self._copied_s = 0.0  # of that, within the present step
        self._steps_s: deque[float] = deque(maxlen=STEPS_KEPT)

    @property
    def reason(self) -> str:
        """What was decided last, and why."""
        return self._state.reason

    @property
    def measures(self) -> bool:
        """The last update is measured: in the batch of the next one."""
        return self._state.measures

    def rate(self, update: Update) -> float:
        """The learning rate of ``update``."""
        return self._tuning.rate_at(self._state, update.after)

    def snapshot(self) -> dict[str, Any]:
        """What all workers know, as JSON values."""
        return self._state.snapshot()

    def restore(self, values: dict[str, Any]) -> None:
        """Go on from what the others know."""
        self._state = TunerState.restore(values)
        self._probe.forget()

    def begin_update(self, worker: Worker, update: Update) -> None:
        """Right before ``update``: it is kept, if it is to be measured."""
        missed = worker.loader.step_input.completed_by_peers  # the others' update is in the model
        if worker.warming_up or missed or not self._is_due(update):
            return
        began_s = now_s()
        self._probe.begin()
        self._copied_s = now_s() - began_s
        self._extra_s += self._copied_s

    def end_update(self, worker: Worker, losses: Losses) -> None:
        """Between an update and the next batch, on all workers.

        Args:
            losses: evaluates the update *before* in the batch of this one; called where it is
                measured and this worker has made it.
        """
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
        """The losses along the update before this one, in its batch; then what follows."""
        at = points(self._state.reach)
        weight, found = 0.0, [0.0] * len(at)
        began_s = now_s()
        if self._probe.holds:
            weight, found = float(worker.steps.batch_weight), losses(at)
        self._probe.forget()
        extra_s, self._extra_s = self._extra_s + now_s() - began_s, began_s - now_s()
        step_s = statistics.median(self._steps_s) if self._steps_s else 0.0
        rows = worker.exchange([weight, extra_s, step_s, *found])
        before, self._state = self._state, self._tuning.measured(self._state, _told(rows, update))
        if self._state.reason != before.reason and worker.rank == 0:
            logger.info("learning rate: %s", self._state.reason)


def tuning_of(
    rate: float, total: float, explore: float, share: float, max_lr: float | None
) -> Tuning:
    """What a script has asked for.

    Args:
        rate: the optimizer's own learning rate.
        max_lr: the highest one; None: :data:`RANGE` times ``rate``.

    Raises:
        UsageError: that cannot be.
    """
    if not rate > 0:
        refuse(f"the optimizer's learning rate is {rate:g}; give it one to begin with")
    most = rate * RANGE if max_lr is None else max_lr
    tuning = Tuning(total=total, explore=explore, share=share, least=rate / RANGE, most=most)
    if why := tuning.refusal():
        refuse(why)
    return tuning


def mean_loss(loss: Any) -> float:
    """What ``loss_of`` has returned, as a number.

    Raises:
        UsageError: it is none.
    """
    item = getattr(loss, "item", None)
    try:
        return float(loss if item is None else item())
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            "loss_of of edl.LRTuner gives the mean loss of a batch, a number or a tensor with one "
            f"element in it: {error}"
        ) from error


def refuse(why: str) -> NoReturn:
    """Raise a UsageError."""
    raise UsageError(f"edl.LRTuner: {why}")


def refuse_several() -> NoReturn:
    """Raise a UsageError: the script has several optimizers."""
    refuse("this script has several optimizers; it tunes the only one")


def refuse_beside(other: str) -> NoReturn:
    """Raise a UsageError: ``other`` sets the learning rate, too."""
    refuse(f"{other} sets the same learning rate; leave one of them out")


def refuse_unscaled(kind: str) -> NoReturn:
    """Raise a UsageError: the updates of an optimizer of that ``kind`` cannot be scaled."""
    refuse(f"the learning rate of {kind} is no factor of its updates, so it has no tuner")


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
