"""Set the learning rate of Keras optimizers by the number of samples that the job has trained.

A script gives an optimizer an :class:`LRSchedule` as its learning rate, or the job's policy does.
When a scaling changes the rate, a momentum that contains it is corrected before the update.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from edl import schedules
from edl.binding.process import current_worker
from edl.errors import UsageError
from edl.schedules import Constant, Scaling, Schedule
from edl.step.noise import NoiseScale
from edl.tensorflow.variables import plain
from edl.worker.loader_steps import Update, last_update

logger = logging.getLogger(__name__)

# Those whose rate is no factor of the update, or is in more of their state than a momentum.
_UNSCALED = {"Ftrl", "Adafactor"}
_WITHIN = (keras.optimizers.SGD, keras.optimizers.RMSprop)  # their momentum holds the rate
_warned_of: set[int] = set()  # ids of schedules, which live as long as the training


@keras.saving.register_keras_serializable(package="edl")
class LRSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A learning rate of a Keras optimizer that follows a schedule in samples.

    ::

        rate = edl.LRSchedule(edl.schedules.Cosine(peak_lr=0.1, total=epochs * samples))
        optimizer = edl.Optimizer(tf.keras.optimizers.SGD(rate), model)

    An update gets the rate at the number of samples that the job has trained, those of the update
    included, over all epochs: the same rate on all workers, also on a newcomer and in a job that is
    resumed. A graph asks for the rate with each update, so no change of the workers traces the
    graph anew.

    Args:
        schedule: a schedule of :mod:`edl.schedules`, or its configuration as :meth:`get_config`
            returns it.
        scaling: a :class:`edl.schedules.Scaling`, the rule by which the rate follows the global
            batch; None: the global batch does not change the rate. A momentum that contains the
            rate, such as that of Keras' SGD, is multiplied by the same change.

    Raises:
        UsageError: ``schedule`` is no schedule of :mod:`edl.schedules`, or ``edl.init()`` was not
            called and the scaling needs the gradient noise scale.
    """

    def __init__(
        self, schedule: Schedule | Mapping[str, Any], scaling: Scaling | None = None
    ) -> None:
        super().__init__()
        if isinstance(schedule, Mapping):
            named = dict(schedule)
            schedule = getattr(schedules, str(named.pop("schedule", "")))(**named)
        if not isinstance(schedule, Schedule):
            raise UsageError(f"edl.LRSchedule needs a schedule of edl.schedules, not {schedule!r}")
        self.schedule: Schedule = schedule
        self.scaling = scaling
        if scaling is not None and scaling.needs_noise:
            current_worker().loader.progress.noise.asked = True

    def __call__(self, step: Any) -> Any:
        return asked(self._now)

    def momentum_factor(self) -> Any:
        """Return the factor for a momentum that contains the rate, as SGD's, before an update.

        It is the scaling's factor for this update divided by that for the one before, a float32 or,
        in a graph, a tensor of it: 1 without a scaling, and if the other workers have made the
        update without this one, which receives their momentum.
        """
        return asked(self._change)

    def last(self) -> float:
        """Return the rate of the job's last update, at first that at 0 samples; equal on all."""
        return self._at(last_update(current_worker().loader.progress))

    def _now(self) -> np.float32:
        return np.float32(self._at(current_worker().loader.update))

    def _at(self, update: Update) -> float:
        return self._factor(update, update.noise) * self.schedule.at(update.after)

    def _change(self) -> np.float32:
        # For the first update of a resumed job the last one is that before its checkpoint, whose
        # momentum holds the rate of the global batch of then.
        loader = current_worker().loader
        if loader.engine.completed_by_peers:  # the momentum has come from those who have changed it
            return np.float32(1.0)
        update = loader.update
        before = update._replace(number=update.number - 1, batches=update.last_batches)
        was = self._factor(before, update.last_noise)
        return np.float32(self._factor(update, update.noise) / was)

    def _factor(self, update: Update, noise: NoiseScale) -> float:
        scaling = self.scaling
        if scaling is None:
            return 1.0
        return scaling.at(update.number, update.batches, noise.changes)

    def get_config(self) -> dict[str, Any]:
        """Return the constructor's arguments for a saved model, without the scaling.

        The only one is ``schedule``, a dict of the schedule's class name (``schedule``) and its
        arguments.
        """
        kind = type(self.schedule).__name__
        return {"schedule": {"schedule": kind, **dataclasses.asdict(self.schedule)}}


def follow_policy(optimizer: Any, several: bool) -> None:
    policy = current_worker().follows()
    if policy is None or policy.learning_rate is None:
        return
    table, wrapped = policy.learning_rate, [*with_inner(optimizer)]
    one = wrapped[-1]
    if any(map(_is_multiple, wrapped)):
        raise UsageError(
            "the job's policy has a [learning_rate], which one optimizer follows, and a "
            "MultiOptimizer has several; leave that table out, and give edl.LRSchedule to each "
            "of them"
        )
    if not isinstance(one, keras.optimizers.Optimizer):
        raise UsageError(
            f"the job's policy has a [learning_rate], which optimizers of Keras follow, and this "
            f"is a {type(one).__name__}; leave that table out"
        )
    if table.schedule is not None and several:
        raise UsageError(
            "the job's policy has one schedule in [learning_rate], and the script several "
            "optimizers; leave the schedule out, and give edl.LRSchedule to each in the script"
        )
    if isinstance(one._learning_rate, keras.optimizers.schedules.LearningRateSchedule):
        check_beside_policy([one._learning_rate])
    schedule = table.schedule or Constant(peak_lr=float(one.learning_rate))
    one.learning_rate = LRSchedule(schedule, table.scaling)


# Callbacks of Keras and Horovod, and of edl's own for scripts of Horovod's.
_SETS_RATE = {"LearningRateScheduler", "LearningRateScheduleCallback", "ReduceLROnPlateau"}


def sets_rate(callback: Any) -> bool:
    return bool(_SETS_RATE & {kind.__name__ for kind in type(callback).__mro__})


def check_beside_policy(others: Sequence[Any]) -> None:
    if others:
        raise UsageError(
            "the job's policy has a [learning_rate], and the script a "
            f"{type(others[0]).__name__} for the same optimizer; leave one of them out"
        )


def check_scaling(optimizer: Any) -> None:
    for one in with_inner(optimizer):
        if not _is_scaled(one):
            continue
        kind = type(one).__name__
        if kind in _UNSCALED:
            raise UsageError(
                f"the learning rate of {kind} is no factor of its updates, so it cannot follow the "
                "global batch; leave out the scaling of edl.LRSchedule"
            )
        if getattr(one, "gradient_accumulation_steps", None):
            raise UsageError(
                "the scaling of edl.LRSchedule counts updates, and gradient_accumulation_steps "
                "makes none of some; leave one of them out"
            )


def warn_of_a_changed_batch(optimizers: Sequence[Any], before: int, now: int) -> None:
    kinds = keras.optimizers.schedules.LearningRateSchedule
    for one in (each for optimizer in optimizers for each in with_inner(optimizer)):
        rate = getattr(one, "_learning_rate", None)
        if not isinstance(rate, kinds) or isinstance(rate, LRSchedule) or id(rate) in _warned_of:
            continue
        _warned_of.add(id(rate))
        logger.warning(
            "%s counts updates, and the global batch has gone from %d to %d samples, so its "
            "learning rates come at other samples than they were meant for: take one that counts "
            "samples, by edl.LRSchedule(edl.schedules...)",
            type(rate).__name__,
            before,
            now,
        )


def last_rates(optimizer: Any) -> list[float]:
    """Return the last update's rate of each `LRSchedule`, which no variable holds, to compare."""
    rates = (getattr(one, "_learning_rate", None) for one in with_inner(optimizer))
    return [rate.last() for rate in rates if isinstance(rate, LRSchedule)]


def present_rates(optimizers: Sequence[Any]) -> dict[str, Any]:
    """Return the present rates, numbers or `tf.Variable`, by name; an unknown one is left out."""
    each = (one for optimizer in optimizers for one in with_inner(optimizer))
    updating = [one for one in each if not (_is_multiple(one) or _within(one))]
    several = len(updating) > 1
    found: dict[str, Any] = {}
    for number, one in enumerate(updating):
        rate = getattr(one, "_learning_rate", None)
        if rate is None:
            rate = getattr(one, "_lr", None)  # of some of tf.compat.v1.train
        if isinstance(rate, LRSchedule):
            rate = rate.last()
        elif isinstance(rate, keras.optimizers.schedules.LearningRateSchedule):
            rate = float(rate(one.iterations)) if tf.executing_eagerly() else None
        rate = plain(rate)
        if isinstance(rate, (int, float, tf.Variable)):
            found[f"learning rate{f' of optimizer {number}' if several else ''}"] = rate
    return found


def check_alone(optimizers: Sequence[Any]) -> None:
    # Each takes part in some of the steps only, and the rate may change in any.
    for one in (each for optimizer in optimizers for each in with_inner(optimizer)):
        if _is_scaled(one) and isinstance(one, _WITHIN) and one.momentum:
            raise UsageError(
                "this script has several edl.Optimizers, and the scaling of edl.LRSchedule "
                f"corrects the momentum of {type(one).__name__} in steps of its own only: leave "
                "the scaling out, or take one whose momentum does not hold the rate, as Adam"
            )


def correct_momentum(optimizer: Any) -> None:
    for one in with_inner(optimizer):
        if _is_scaled(one) and momentums_within(one):
            scale_momentum(one, one._learning_rate.momentum_factor())


def momentums_within(one: Any) -> list[Any]:
    if not isinstance(one, _WITHIN):
        return []
    name = "momentums" if isinstance(one, keras.optimizers.SGD) else "_momentums"
    found = getattr(one, name, ())  # an optimizer without variables lacks them
    return [momentum for momentum in found if momentum is not None]


def scale_momentum(one: Any, factor: Any) -> None:
    for momentum in momentums_within(one):
        momentum.assign(momentum * tf.cast(factor, momentum.dtype))


def _is_scaled(optimizer: Any) -> bool:
    rate = getattr(optimizer, "_learning_rate", None)
    return isinstance(rate, LRSchedule) and rate.scaling is not None


def with_inner(optimizer: Any) -> Iterator[Any]:
    """Yield `optimizer`, and all that it wraps: a MultiOptimizer has some only when it is built."""
    yield optimizer
    for one in _within(optimizer):
        yield from with_inner(one)


def _within(optimizer: Any) -> list[Any]:
    if _is_multiple(optimizer):
        return [*optimizer.optimizers]
    inner = getattr(optimizer, "inner_optimizer", None)
    return [] if inner is None else [inner]


def _is_multiple(optimizer: Any) -> bool:
    return hasattr(optimizer, "optimizers")


def asked(ask: Any) -> Any:
    """Return `ask()`; in a graph, a tensor that calls `ask` whenever the graph runs."""
    if tf.executing_eagerly():
        return ask()
    answer = tf.numpy_function(ask, [], tf.float32)
    answer.set_shape(())
    return answer
