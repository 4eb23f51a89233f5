"""Exchange values between the workers for :class:`edl.lightning.ElasticStrategy`.

:class:`StrategyCollectives` does it, inside a step and between two steps; :func:`reduced` is the
arithmetic.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Sequence
from typing import Any

import torch

from edl.errors import UsageError
from edl.torch.api import exchange

OPERATIONS = ("mean", "sum", "min", "max", "product")


class StrategyCollectives:
    """The exchange of values among all workers, which all call at the same points of the script.

    Args:
        is_local: returns whether this worker is by itself at present, because training has not
            begun, is over, or was left. Then each answer is this worker's own value.
        weight: returns how many samples of this worker's batch count.
        in_step: returns whether a batch is in training.
    """

    def __init__(
        self,
        is_local: Callable[[], bool],
        weight: Callable[[], int],
        in_step: Callable[[], bool],
    ) -> None:
        self._is_local = is_local
        self._weight = weight
        self._in_step = in_step

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
        answers = [pickle.loads(each) for each in exchange(pickle.dumps((what, value)))]
        for rank, (theirs, _) in enumerate(answers):
            if theirs != what:
                raise UsageError(
                    f"the worker of rank {rank} calls {theirs} while this one calls {what}: all "
                    "workers must log with sync_dist=True, gather and broadcast the same values in "
                    "the same order, in validation once an epoch and not for each batch"
                )
        return [each for _, each in answers]

    def reduce(self, tensor: torch.Tensor, operation: Any) -> torch.Tensor:
        """Return ``tensor`` reduced over all workers, on its own device.

        Inside a step a mean is weighted by the samples of the batches, so a padding batch does not
        count.

        Args:
            tensor: the tensor of this worker, of the same shape on all.
            operation: what Lightning calls the operation, see :func:`operation_of`.

        Raises:
            UsageError: the operation is unknown, shapes differ, or as :meth:`gather`.
        """
        name = operation_of(operation)
        weight = self._weight() if self._in_step() else 1
        rows = self.gather((weight, tensor.detach().cpu()), f"reduce({name})")
        if len(rows) == 1:
            return tensor
        return reduced([row for _, row in rows], [each for each, _ in rows], name).to(tensor.device)


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


def reduced(
    tensors: Sequence[torch.Tensor], weights: Sequence[int], operation: str
) -> torch.Tensor:
    """Return one tensor made of the tensors of all workers, element by element.

    Args:
        tensors: one for each worker, of one shape and dtype.
        weights: how many samples each stands for, for a mean only; if all are 0, all count alike.
        operation: one of :data:`OPERATIONS`.

    Returns:
        A tensor of the same dtype; the mean of integers is of PyTorch's default dtype. Floating
        point numbers are added in double precision.

    Raises:
        UsageError: shapes differ.
    """
    if len({tuple(each.shape) for each in tensors}) > 1:
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise UsageError(f"the workers reduce tensors of the shapes {shapes}; they must be equal")
    kind = tensors[0].dtype
    is_real = kind.is_floating_point
    stacked = torch.stack([each.to(torch.float64 if is_real else torch.int64) for each in tensors])
    if operation == "mean":
        shares = weights if any(weights) else [1] * len(tensors)
        parts = [each.double() * n for each, n in zip(stacked, shares, strict=True) if n]
        mean = torch.stack(parts).sum(0) / sum(shares)
        return mean.to(kind if is_real else torch.get_default_dtype())
    if operation in ("min", "max"):
        return (stacked.amin(0) if operation == "min" else stacked.amax(0)).to(kind)
    return (stacked.sum(0) if operation == "sum" else stacked.prod(0)).to(kind)
