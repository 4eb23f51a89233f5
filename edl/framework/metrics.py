"""Numbers of the whole job, from those that each worker has for its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, overload

from edl.core.step.mean import weighted_means
from edl.errors import UsageError
from edl.framework.process import current_worker


def batch_weight() -> int:
    """How many samples of this worker's batch count: 0 for one that is repeated as padding.

    Of the batch that is being trained, and between two steps of the one that was trained last. A
    warm-up's first batch has its samples, though nothing of it counts.
    """
    return current_worker().steps.batch_weight


@overload
def mean(value: Mapping[str, Any], weight: float | None = None) -> dict[str, float]: ...


@overload
def mean(value: Any, weight: float | None = None) -> float: ...


def mean(value: Any, weight: float | None = None) -> float | dict[str, float]:
    """The mean of ``value`` over all workers, the same on all, also when one dies meanwhile.

    All workers call it at the same points, after the update of a batch and before the next one.

    Args:
        value: a number, a tensor of one element, or a dict of these, with the same keys on all.
        weight: the number of samples that this worker's value stands for; without it
            :func:`batch_weight`. A value of weight 0 does not enter.

    Returns:
        A float, or a dict of them; nan if no worker has any weight.

    Raises:
        UsageError: in the midst of a step, outside of the training, or for something else.
    """
    if weight is None:
        weight = batch_weight()
    if not weight >= 0:
        raise UsageError(f"edl.mean: the weight is {weight}; it is a number of samples")
    named = isinstance(value, Mapping)
    names = sorted(value) if named else [""]
    numbers = [_number(value[name] if named else value) for name in names]
    means = weighted_means(current_worker().exchange([weight, *numbers]))
    return dict(zip(names, means, strict=True)) if named else means[0]


def _number(value: Any) -> float:
    item = getattr(value, "item", None)  # of a tensor whose gradient float() would warn of
    try:
        return float(item() if item is not None else value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise UsageError(
            f"edl.mean takes a number, or a tensor with one element in it: {error}"
        ) from error
