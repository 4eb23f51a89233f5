"""Exchange values between the workers for ElasticStrategy, inside a step and between two."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edl.errors import UsageError
from edl.torch.api import exchange_objects, reduced

SAME_ORDER = (
    "all workers must log with sync_dist=True, gather and broadcast the same values in the same "
    "order, in validation once an epoch and not for each batch"
)
OPERATIONS = ("mean", "sum", "min", "max", "product")


class StrategyCollectives:
    """The exchange of values among all workers, which all call at the same points of the script."""

    def __init__(
        self,
        is_local: Callable[[], bool],
        weight: Callable[[], int],
        in_step: Callable[[], bool],
        is_training: Callable[[], bool],
    ) -> None:
        self._is_local = is_local  # then each answer is this worker's own value
        self._weight = weight  # samples of this worker's batch; 0 for padding
        self._in_step = in_step
        self._is_training = is_training

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all workers in rank order; tensors in them are on the CPU."""
        if self._is_local():
            return [value]
        return exchange_objects(what, value, SAME_ORDER)

    def reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        name = operation_of(operation)
        # In a validation workers count alike. It may come while a step is open, between two of the
        # batches that are accumulated.
        weight = self._weight() if self._in_step() and self._is_training() else 1
        rows = self.gather((weight, tensor.detach().cpu()), f"reduce({name})")
        if len(rows) == 1:
            return tensor
        weights, tensors = zip(*rows, strict=True)
        return reduced(tensors, name, weights).to(tensor.device)


def operation_of(operation: Any) -> str:
    if operation is None:
        return "sum"
    name = operation if isinstance(operation, str) else str(operation).rpartition(".")[2]
    name = name.split(":")[0].strip("<> ").lower()
    name = {"avg": "mean", "prod": "product"}.get(name, name)
    if name not in OPERATIONS:
        raise UsageError(
            f"the workers cannot reduce by {operation!r}; take mean, sum, min, max or product"
        )
    return name
