"""Gather or add up tensors of all workers: ``edl.gather``, ``edl.gather_each``, ``edl.sum``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, overload

import numpy as np
import torch

from edl.framework.gathering import Array, check_rows, check_same_shape, gather_arrays
from edl.torch.value_reduction import reduced

# Types that NumPy does not have, each with a type of the same size to carry its bytes.
AS_INTEGERS = {torch.bfloat16: torch.int16}


def gather_each(tensor: torch.Tensor, group: Any = None) -> list[torch.Tensor]:
    """Return the tensors of all workers as a list in rank order, the same list on all workers.

    All workers call it at the same point of the script, between two steps. The shapes of their
    tensors may differ. While a newcomer warms up, and in a job of one worker, the list has the
    worker's own tensor only. It fits ``dist_sync_fn`` of torchmetrics;
    :func:`edl.torch.sync_metrics` sends all states of a metric at once.

    Args:
        tensor: a tensor on any device and of any shape; the returned tensors are on the same
            device, without a gradient. A tensor without elements may have any type, and is returned
            in the type of the others (torchmetrics gathers a state to which a worker has added
            nothing yet as float32).
        group: ignored; torchmetrics passes its process group here, and edl has no process groups.

    Raises:
        UsageError: the call is inside a step or outside of the training, or the types differ.
        RingBroken: a worker has died, in a script with an elastic state; in any other script the
            call goes on with the survivors.
    """
    return tensors_of_all(tensor)


def tensors_of_all(
    tensor: torch.Tensor, exchange: Callable[[bytes], list[bytes]] | None = None
) -> list[torch.Tensor]:
    """Return the tensors of all workers in rank order, as `gather_each` does."""
    own = np.frombuffer(str(tensor.dtype).encode(), dtype=np.uint8)
    found = gather_arrays({"": _array(tensor), "type": own}, empty_fits=True, exchange=exchange)
    names = [each["type"].tobytes().decode() for each in found if each[""].size]
    kind = getattr(torch, names[0].removeprefix("torch.")) if names else tensor.dtype
    return [torch.from_numpy(each[""]).view(kind).to(tensor.device) for each in found]


@overload
def gather(value: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


@overload
def gather(value: torch.Tensor) -> torch.Tensor: ...


def gather(
    value: torch.Tensor | Mapping[str, torch.Tensor],
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Concatenate the tensors of all workers along the first dimension, in rank order.

    All workers call it at the same point of the script, between two steps, and get the same result.
    The size of the first dimension may differ between workers. A tensor without dimensions counts
    as a tensor with one element. While a newcomer warms up, and in a job of one worker, the result
    has the worker's own tensor only.

    Args:
        value: a tensor, or a dict of tensors with the same keys on all workers.

    Returns:
        The concatenated tensor, on the device of this worker's tensor and without a gradient, or a
        dict of these by the same keys.

    Raises:
        UsageError: shapes differ beyond the first dimension, or types or keys differ; or the call
            is inside a step or outside of the training.
        RingBroken: a worker has died, in a script with an elastic state; in any other script the
            call goes on with the survivors.
    """
    named, tensors = _named(value)
    found = gather_arrays({name: _rows(_array(each)) for name, each in tensors.items()})
    together = {}
    for name, own in tensors.items():
        parts = [each[name] for each in found]
        check_rows(name, parts)
        together[name] = torch.cat([_tensor(part, own) for part in parts])
    return together if named else together[""]


@overload
def sum(value: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


@overload
def sum(value: torch.Tensor) -> torch.Tensor: ...


def sum(
    value: torch.Tensor | Mapping[str, torch.Tensor] | float,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the sum of the values of all workers, the same on all workers, as a tensor.

    All workers call it at the same point of the script, between two steps, with tensors of one
    shape. Integers are added exactly; other types are added in double precision. While a newcomer
    warms up, and in a job of one worker, the result is the worker's own value.

    Args:
        value: a tensor, a number, or a dict of these with the same keys on all workers. A Python
            number becomes a tensor of PyTorch's default type: float32 or int64.

    Returns:
        The sum as a tensor of the type and device of ``value``, or a dict of such sums by the same
        keys. The sum of booleans is an int64.

    Raises:
        UsageError: shapes, types or keys differ; or the call is inside a step or outside of the
            training.
        RingBroken: a worker has died, in a script with an elastic state; in any other script the
            call goes on with the survivors.
    """
    named, tensors = _named(value)
    found = gather_arrays({name: _array(each) for name, each in tensors.items()})
    together = {}
    for name, own in tensors.items():
        parts = [each[name] for each in found]
        check_same_shape(name, parts)
        together[name] = reduced([_tensor(part, own) for part in parts], "sum")
    return together if named else together[""]


def _named(value: Any) -> tuple[bool, dict[str, torch.Tensor]]:
    named = isinstance(value, Mapping)
    tensors = {
        name: torch.as_tensor(each) for name, each in (value if named else {"": value}).items()
    }
    return named, tensors


def _array(tensor: torch.Tensor) -> Array:
    own = tensor.detach().cpu().contiguous()
    array: Array = own.view(AS_INTEGERS.get(own.dtype, own.dtype)).numpy()
    return array


def _rows(array: Array) -> Array:
    return array.reshape(1) if array.ndim == 0 else array


def _tensor(array: Array, like: torch.Tensor) -> torch.Tensor:
    return torch.from_numpy(array).view(like.dtype).to(like.device)
