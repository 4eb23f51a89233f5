"""Exchange values between the workers for :class:`edl.lightning.ElasticStrategy`.

:class:`StrategyCollectives` does it, inside a step and between two steps.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edl.errors import UsageError
from edl.torch.objects import exchange_objects
from edl.torch.value_reduction import reduced

SAME_ORDER = (
    "all workers must log with sync_dist=True, gather and broadcast the same values in the same "
    "order, in validation once an epoch and not for each batch"
)
OPERATIONS = ("mean", "sum", "min", "max", "product")


class StrategyCollectives:
    """The exchange of values among all workers, which all call at the same points of the script.

    Args:
        is_local: returns whether this worker is by itself at present, because training has not
            begun, is over, or was left. Then each answer is this worker's own value.
        weight: returns how many samples of this worker's batch count.
        in_step: returns whether a batch is in training.
        is_training: returns whether the Trainer trains; it may validate while a step is open,
            between two of the batches that are accumulated.
    """

    def __init__(
        self,
        is_local: Callable[[], bool],
        weight: Callable[[], int],
        in_step: Callable[[], bool],
        is_training: Callable[[], bool],
    ) -> None:
        self._is_local = is_local
        self._weight = weight
        self._in_step = in_step
        self._is_training = is_training

    def gather(self, value: Any, what: str) -> list[Any]:
        """Return the values of all workers in rank order; tensors in them are on the CPU.

        Args:
            value: what this worker sends; it is pickled.
            what: what is exchanged, for the error message; the same on all workers.

        Raises:
            UsageError: the workers exchange different things here, or the gradients of the open
                step are reduced already.
        """
        if self._is_local():
            return [value]
        return exchange_objects(what, value, SAME_ORDER)

    def reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        """Return ``tensor`` reduced over all workers, on its own device.

        A mean of values of training batches is weighted by their samples, so a padding batch does
        not count. In a validation each worker's value counts alike.

        Args:
            tensor: the tensor of this worker, of the same shape on all.
            operation: what Lightning calls the operation, see :func:`operation_of`.

        Raises:
            UsageError: the operation is unknown, shapes differ, or as :meth:`gather`.
        """
        name = operation_of(operation)
        weight = self._weight() if self._in_step() and self._is_training() else 1
        rows = self.gather((weight, tensor.detach().cpu()), f"reduce({name})")
        if len(rows) == 1:
            return tensor
        weights, tensors = zip(*rows, strict=True)
        return reduced(tensors, name, weights).to(tensor.device)


def operation_of(operation: Any) -> str:
    """Return the name of a reduction among :data:`OPERATIONS`.

    Args:
        operation: a name in Lightning's words, such as "avg"; a ``ReduceOp`` of
            ``torch.distributed``; None: the sum.

    Raises:
        UsageError: there is no such reduction.
    """
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
