"""Find the model that a script's optimizer trains: :func:`model_with`."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

import torch

from edl.errors import UsageError

NO_MODEL = (
    "edl cannot find the module whose parameters the optimizer trains; give "
    "hvd.DistributedOptimizer named_parameters=model.named_parameters()"
)


def model_with(optimizer: torch.optim.Optimizer, named_parameters: Any) -> torch.nn.Module:
    """Return the module whose parameters ``optimizer`` trains, with its buffers.

    Args:
        optimizer: the optimizer.
        named_parameters: what the script gives to Horovod, mostly ``model.named_parameters()``,
            which knows its module; or None.

    Returns:
        The outermost module of this process that has all parameters of the optimizer.

    Raises:
        UsageError: no module, or several that are not within each other, have them all.
    """
    frame = getattr(named_parameters, "gi_frame", None)
    if frame is not None and isinstance(frame.f_locals.get("self"), torch.nn.Module):
        return frame.f_locals["self"]  # type: ignore[no-any-return]
    trained = {id(each) for group in optimizer.param_groups for each in group["params"]}
    having = [one for one in _modules() if trained <= {id(each) for each in one.parameters()}]
    inner = {id(part) for one in having for part in one.modules() if part is not one}
    outer = [one for one in having if id(one) not in inner]
    if len(outer) != 1:
        raise UsageError(NO_MODEL)
    return outer[0]


def _modules() -> Iterable[torch.nn.Module]:
    """Return all modules of PyTorch in this process."""
    return [one for one in gc.get_objects() if issubclass(type(one), torch.nn.Module)]
