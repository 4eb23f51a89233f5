"""Compute metrics of torchmetrics over all workers: :func:`sync_metrics`.

torchmetrics sends each state of a metric by itself, by ``torch.distributed``. If a worker died
between two states, a metric would be made of true positives of three workers and false positives of
two. Here all states of a metric travel in one message, so it is made of the same workers, and their
lists may differ in length.

torchmetrics is not imported: a metric is known by what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from edl.errors import UsageError
from edl.framework.process import current_worker
from edl.torch.api import exchanges
from edl.torch.objects import exchange_objects

State = dict[str, Any]


def sync_metrics(metrics: torch.nn.Module) -> None:
    """Let metrics of torchmetrics compute their values over all workers of the job.

    ``compute()`` then adds up what all workers have given to ``update()``. All workers call it at
    the same points: between two steps, such as at the end of an epoch, or in a step before
    ``backward()``. In a warm-up, and before and after the training, a metric is of this worker
    alone. What a worker had counted is lost when it dies or leaves. After ``compute()`` each worker
    goes on with its own counts.

    Args:
        metrics: a metric, a collection of metrics, or a module that has some.

    Raises:
        UsageError: ``edl.init()`` was not called, or no metric is found.
    """
    current_worker()
    found: list[Any] = [each for each in metrics.modules() if is_metric(each)]
    if not found:
        raise UsageError(
            f"edl.sync_metrics: there is no metric of torchmetrics in this "
            f"{type(metrics).__name__}; give it the metric, the MetricCollection, or the module "
            "with metrics as its attributes"
        )
    for metric in found:
        metric.distributed_available_fn = exchanges
        metric._sync_dist = partial(_sync, metric)


def is_metric(module: torch.nn.Module) -> bool:
    """Return whether `module` is a metric of torchmetrics."""
    return hasattr(module, "_sync_dist") and hasattr(module, "_reductions")


def _sync(metric: Any, *_: Any, **__: Any) -> None:
    """Replace the states of `metric` by those of all workers; it takes `_sync_dist`'s place."""
    own = {name: getattr(metric, name) for name in metric._reductions}
    call = f"{type(metric).__name__}.compute()"
    states = exchange_objects(call, _moved(own, "cpu"), "all must call it at the same points")
    for name, reduction in metric._reductions.items():
        found = reduced_state([state[name] for state in states], reduction)
        setattr(metric, name, _moved(found, metric.device))  # until `compute()` has ended


def reduced_state(values: Sequence[Any], reduction: Callable[[Any], Any] | None) -> Any:
    """Return the values of one state on all workers, reduced as torchmetrics reduces them."""
    if isinstance(values[0], list):
        together = [item for each in values for item in each]
        return reduction(together) if together and reduction is not None else together
    stacked = torch.stack([*values])
    return stacked if reduction is None else reduction(stacked)


def _moved(value: Any, device: Any) -> Any:
    """Return `value` with all tensors in its lists and dicts on `device`."""
    if isinstance(value, torch.Tensor):
        return value.detach().to(device)
    if isinstance(value, dict):
        return {name: _moved(each, device) for name, each in value.items()}
    if isinstance(value, list):
        return [_moved(each, device) for each in value]
    return value
