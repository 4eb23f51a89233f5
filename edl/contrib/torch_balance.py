"""Provide ``edl.diagnose`` for PyTorch: measure how the layers of a model grow while it trains."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from edl.contrib.layer_balance import JobBalance, LayerBalance, LayerRow, Phases, chosen
from edl.errors import UsageError

__all__ = ["LayerBalance", "LayerRow", "Phases", "layer_balance"]


def layer_balance(
    model: torch.nn.Module, layers: Iterable[str] | None = None, matrices: bool = False
) -> JobBalance:
    """Return a recorder of the squared norms of the weights of each layer of ``model``.

    Each call of its ``record()`` adds a row with the norms at that moment;
    :class:`edl.contrib.layer_balance.LayerBalance` computes measures from the rows::

        balance = edl.diagnose.layer_balance(model)
        edl.track(balance=balance)     # newcomers and checkpoints have its rows
        ...
        optimizer.step()
        balance.record()

    Nothing is sent between workers, because all workers have the same weights, which are copied to
    the CPU one by one.

    Args:
        model: the model whose layers are recorded.
        layers: names of floating-point parameters with two or more dimensions, in the order of the
            net; None: all such parameters that require a gradient, in the order of
            ``model.named_parameters()``.
        matrices: as for :class:`edl.contrib.layer_balance.LayerBalance`.

    Raises:
        UsageError: ``model`` is no module, it has fewer than two such parameters, a name in
            ``layers`` is of no such parameter, or a parameter has no shape yet.
    """
    if not isinstance(model, torch.nn.Module):
        raise UsageError(f"layer_balance needs a torch.nn.Module, not a {type(model).__name__}")
    named = dict(model.named_parameters())
    if lazy := [n for n, each in named.items() if torch.nn.parameter.is_lazy(each)]:
        raise UsageError(f"{lazy[0]} has no shape yet; run a batch through the model before")
    found = {n: p for n, p in named.items() if p.ndim >= 2 and p.is_floating_point()}
    if layers is None:
        found = {name: parameter for name, parameter in found.items() if parameter.requires_grad}
    reads = {name: partial(_read, model, name) for name in chosen(found, layers)}
    return JobBalance(reads, matrices)


def _read(model: torch.nn.Module, name: str) -> npt.NDArray[Any]:
    """Return the value of the parameter that has this name now, as float64 on the CPU."""
    weights: npt.NDArray[np.float64] = (
        model.get_parameter(name).detach().cpu().to(torch.float64).numpy()
    )
    return weights
