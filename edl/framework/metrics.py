"""Compute the mean of a number over all workers of a job, weighted by samples (:func:`mean`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from edl.core.step.mean import weighted_means
from edl.errors import UsageError
from edl.framework.process import current_worker


def batch_weight() -> int:
    """Return how many samples of this worker's batch count in :func:`mean`.

    The batch is the one that the script got last, whether it is trained yet or not. The result is 0
    for a padding batch and before the first batch. A newcomer's warm-up batch counts with its
    samples, although its result is discarded.

    Raises:
        UsageError: if ``edl.init()`` was not called, or the script has an elastic state and so no
            batches that edl knows.
    """
    return current_worker().steps.batch_weight


@overload
def mean(value: Mapping[str, Any], weight: float | None = None) -> dict[str, float]: ...


@overload
def mean(value: Any, weight: float | None = None) -> float: ...


def mean(value: Any, weight: float | None = None) -> float | dict[str, float]:
    """Return the weighted mean of ``value`` over all workers: the same on all, even if one dies.

    All workers must call this at the same points, after the update of a batch and before the next
    batch; each waits for all. While this worker warms up, the result is its own value.

    Args:
        value: a number, a tensor with one element, or a dict of these with the same keys on all
            workers.
        weight: how many samples this worker's value stands for; None: :func:`batch_weight`. A value
            with weight 0 is left out.

    Returns:
        A float, or for a dict a dict of floats with the same keys; nan if the weight of every
        worker is 0.

    Raises:
        UsageError: if this is called inside a step or outside of the training, if a value is not a
            number or the weight is negative, or if workers give different numbers of values. With
            an elastic state also if ``weight`` is None.
        RingBroken: if a worker is gone, in a script with an elastic state.
        WorkerEvicted, JobFailed: if this worker or the job cannot go on.
    """
    samples = weight_of(weight, "edl.mean")
    named = isinstance(value, Mapping)
    names = sorted(value) if named else [""]
    numbers = [number_of(value[name] if named else value, "edl.mean") for name in names]
    worker = current_worker()
    means = weighted_means(worker.exchange([samples, *numbers]))
    if not named:
        return means[0]
    found = dict(zip(names, means, strict=True))
    if not worker.warming_up:
        worker.learning.see_means(worker.step, found)
    return found


def weight_of(weight: Any, call: str) -> float:
    """Return `weight` as a number of samples; None: `batch_weight`."""
    samples = batch_weight() if weight is None else number_of(weight, call)
    if not samples >= 0:
        raise UsageError(f"{call}: the weight is {weight}; it is a number of samples")
    return samples


def number_of(value: Any, call: str) -> float:
    """Return a number, or the one element of a tensor, as a float."""
    item = getattr(value, "item", None)  # of a tensor whose gradient float() would warn of
    try:
        return float(item() if item is not None else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"{call} takes a number, or a tensor with one element in it: {error}"
        ) from error
