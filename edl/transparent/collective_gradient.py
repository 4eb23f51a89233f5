"""Refuse a loss with the result of a collective in it: :func:`refuse_gradient`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edl.errors import UsageError
from edl.transparent.ranks import ranks

NO_GRADIENT = (
    "a loss with the result of hvd.{name} in it: with --transparent a collective is over the "
    "processes, which may have several ranks each, so the gradient would depend on their number; "
    "compute the loss from the batch of one rank, and use the result without a gradient "
    "(detach()), as for a metric"
)


def refuse_gradient(name: str, tensor: torch.Tensor, result: torch.Tensor) -> torch.Tensor:
    """Return `result`, in which a backward pass fails; with one rank it goes on to `tensor`."""
    if not (torch.is_grad_enabled() and tensor.requires_grad):
        return result
    apply: Callable[..., torch.Tensor] = _Collective.apply  # PyTorch gives it no type
    return apply(tensor, (result,), name)


class _Collective(torch.autograd.Function):
    """The autograd function of a collective."""

    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, results: tuple[torch.Tensor], name: str
    ) -> torch.Tensor:
        ctx.shape, ctx.name = tensor.shape, name
        return results[0]  # it came in a tuple to have no gradient

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        if ranks() > 1:
            raise UsageError(NO_GRADIENT.format(name=ctx.name))
        return gradients[0].reshape(ctx.shape), None, None
