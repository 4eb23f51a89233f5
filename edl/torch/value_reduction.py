"""Reduce tensors that were gathered from all workers to one: :func:`reduced`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from edl.errors import UsageError


def reduced(
    tensors: Sequence[torch.Tensor], operation: str, weights: Sequence[int] = ()
) -> torch.Tensor:
    """Return one tensor made of the tensors of all workers, element by element."""
    if len({tuple(each.shape) for each in tensors}) > 1:
        shapes = ", ".join(str(tuple(each.shape)) for each in tensors)
        raise UsageError(f"the workers reduce tensors of the shapes {shapes}; they must be equal")
    kind = tensors[0].dtype
    wide = _wide(kind)
    if operation == "mean":
        mean = _mean([each.to(wide) for each in tensors], weights)
        return mean.to(torch.get_default_dtype() if wide == torch.int64 else kind)
    stacked = torch.stack([each.to(wide) for each in tensors])
    if operation == "sum":
        total = stacked.sum(0)
        return total if kind == torch.bool else total.to(kind)
    if operation in ("min", "max"):
        return (stacked.amin(0) if operation == "min" else stacked.amax(0)).to(kind)
    return stacked.prod(0).to(kind)


def _mean(tensors: Sequence[torch.Tensor], weights: Sequence[int]) -> torch.Tensor:
    """Return the weighted mean; a tensor of weight 0 does not count, even if it is nan."""
    shares = weights if any(weights) else [1] * len(tensors)
    real = [each.double() if each.dtype == torch.int64 else each for each in tensors]
    parts = [each * n for each, n in zip(real, shares, strict=True) if n]
    return torch.stack(parts).sum(0) / sum(shares)


def _wide(kind: torch.dtype) -> torch.dtype:
    if kind.is_complex:
        return torch.complex128
    return torch.float64 if kind.is_floating_point else torch.int64
