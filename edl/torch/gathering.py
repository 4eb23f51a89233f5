"""Gather or add up tensors of all workers: ``edl.gather``, ``edl.gather_each``, ``edl.sum``."""

from __future__ import annotations

import builtins
import pickle
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import torch

from edl.binding.process import current_worker
from edl.binding.reduction import Array, check_rows, check_same_shape, gather_arrays
from edl.errors import UsageError
from edl.torch.api import exchange, exchanges

# ------------------------------------------------------------
# Exchange Python objects between the workers, for the adapters: `exchange_objects`.


def exchange_objects(
    what: str,  # the script's call, the same on all workers
    value: Any,
    advice: str,
    send: Callable[[bytes], list[bytes]] | None = None,
) -> list[Any]:
    """Return the values of all workers in rank order."""
    answers = [pickle.loads(each) for each in (send or exchange)(pickle.dumps((what, value)))]
    for rank, (theirs, _) in enumerate(answers):
        if theirs != what:
            raise UsageError(
                f"the worker of rank {rank} calls {theirs} while this one calls {what}: {advice}"
            )
    return [each for _, each in answers]


# ------------------------------------------------------------
# Reduce tensors that were gathered from all workers to one: `reduced`.


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
    return torch.stack(parts).sum(0) / builtins.sum(shares)  # `sum` is that of workers here


def _wide(kind: torch.dtype) -> torch.dtype:
    if kind.is_complex:
        return torch.complex128
    return torch.float64 if kind.is_floating_point else torch.int64


# ------------------------------------------------------------
# Compute metrics of torchmetrics over all workers: `sync_metrics`.
#
# torchmetrics sends each state of a metric by itself, by `torch.distributed`. If a worker died
# between two states, a metric would be made of true positives of three workers and false positives
# of two. Here all states of a metric travel in one message, so it is made of the same workers, and
# their lists may differ in length.
#
# torchmetrics is not imported: a metric is known by what it has.


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
