"""Provide the functions of ``edl.torch`` that need PyTorch, and register the script's optimizers.

Scripts call :func:`init`, :func:`track`, :func:`no_sync` and :func:`notify_batch_end`; edl's loader
and optimizers call the others. The functions that need no framework are in
:mod:`edl.binding.process`.
"""

from __future__ import annotations

import builtins
import contextlib
import pickle
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, overload

import numpy as np
import torch

from edl.binding import process
from edl.binding.loop import numpy_is_seeded, seed_alike, seed_numpy
from edl.binding.process import current_worker
from edl.binding.reduction import Array, check_rows, check_same_shape, gather_arrays
from edl.binding.replica import Trackable
from edl.errors import UsageError
from edl.torch.collectives import TorchCollectives
from edl.torch.elastic import watch_samplers
from edl.torch.gradients import in_microbatches
from edl.torch.logical import NO_STEP, arithmetic
from edl.torch.loss_check import LossCheck
from edl.torch.lr_schedules import watch_schedulers
from edl.torch.optimizer_state import LastStep
from edl.torch.reduction import GradientReduction, Optimizers, watch_losses
from edl.torch.replica import TorchReplica, seed_torch, watch_scalers
from edl.torch.sync_batch_norm import synchronise_batch_norm

NO_OPTIMIZER = (
    "this script trains without an edl.Optimizer, so nobody knows when a step is made; write "
    "optimizer = edl.Optimizer(optimizer, model) before the loop"
)

UNFINISHED = (
    "the script has asked for the next batch without calling optimizer.step() for this one; every "
    "worker must call it for each batch, without backward() for one that only this worker leaves "
    "out; for one that all leave out call edl.notify_batch_end(); to accumulate gradients over "
    "several batches, use edl.no_sync(). A prefetcher that takes batches ahead of their steps is "
    "not needed: loop over the loader itself, which loads ahead with num_workers=2, pin_memory=True"
)

AFTER_REDUCTION = (
    "workers exchange numbers before backward() or after optimizer.step(), and not between the two"
)

_optimizers: Optimizers | None = None  # once there is one
_replica: TorchReplica | None = None
_loss_check: LossCheck | None = None


def _is_between_logical() -> bool:
    """Return whether a logical worker of the open step is yet to come in the script's loop."""
    if not process.is_initialized():
        return False
    engine = current_worker().loader.engine
    return engine.logical and engine.is_open and engine.batches.pieces_left > 0


watch_schedulers(_is_between_logical)  # a script may make one before edl.init()

watch_samplers()
synchronise_batch_norm(lambda: None if (found := _of_this_job()) is None else found.exchange())


def init(**settings: Any) -> None:
    """Make this process a worker of the job for which the launcher started it.

    Without a launcher the script runs as a job of one worker. In a job that has not begun, the call
    waits until the job's first workers are connected. In a job that is already training, the call
    does not wait: the script *warms up* with one batch, whose result is discarded, and joins the
    job after it, see :meth:`edl.torch.DataLoader.epochs`. A second call does nothing, except at a
    Python prompt or in a notebook without a launcher: there it ends the job of one worker and
    begins another.

    Args:
        settings: fields of :class:`edl.config.Config`, by name. Those that the launcher sets for
            all workers of the job are ignored, with a warning.

    Raises:
        ConfigError: a setting has an invalid value.
        CoordinationError: ZooKeeper does not answer.
        UnknownJob: ZooKeeper does not have the job.
        JobFailed: the job did not start in time, or has ended.
        UsageError: this process is a child process of a worker, or a launcher other than edl's has
            started it together with others.
    """
    process.start(TorchCollectives, settings)
    seed_alike(
        process.current_worker(),
        {seed_numpy: numpy_is_seeded(), seed_torch: torch.initial_seed() < 2**32},
    )


def track(**objects: Trackable) -> None:
    """Send the state of ``objects`` to each worker that joins, and keep it in checkpoints.

    An object needs ``state_dict()`` and ``load_state_dict()``; examples are counters and averages
    of the weights. LR schedulers of PyTorch's base class and gradient scalers are tracked without
    this call. Each call adds objects, before or after ``edl.Optimizer`` is made.

    Args:
        objects: the objects, by names that are the same on all workers.

    Raises:
        UsageError: an object has no such methods, or another object is tracked under the same name;
            then none of ``objects`` is tracked. Or ``edl.init()`` was not called, or the script has
            an elastic state.
    """
    process.track(TorchReplica.check, objects)


def notify_batch_end() -> None:
    """End the current batch without an update, and count its samples as trained.

    ``optimizer.step()`` ends a batch itself, so only a batch without ``backward()`` needs this
    call, and all workers must make it for the same batch. (A worker that alone skips ``backward()``
    calls ``optimizer.step()`` all the same.) The batch counts as a step in ``edl.step()``. A second
    call for the same batch does nothing. Inside of :func:`no_sync` the step goes on with the next
    batch, and only this worker adds nothing for the current batch to its accumulated gradients.

    Raises:
        UsageError: ``edl.init()`` was not called, or an exception has ended ``backward()`` in this
            batch on this worker; or the job has logical workers, which share an update.
    """
    worker = current_worker()
    if worker.logical and worker.loader.open:
        raise UsageError(
            "with --logical call optimizer.step() for each batch, also for one without backward(): "
            "edl.notify_batch_end() would leave out what other logical workers have computed"
        )
    optimizers = _of_this_job()
    if not worker.loader.open or optimizers is None:
        worker.loader.end()
    elif not optimizers.leave_out():
        optimizers.skip()


@contextlib.contextmanager
def no_sync() -> Iterator[None]:
    """Accumulate gradients on this worker in the ``with`` block, as ``no_sync`` of PyTorch's DDP.

    Several batches make one step of the optimizer, or of all optimizers of the script. All but the
    last batch have their ``backward()`` inside the block; the last batch has it outside, which
    sends the accumulated gradients. The update is weighted by the samples of all these batches. To
    get the mean over them, divide each loss by the number of batches, which is to be the same on
    all workers. Workers join and leave only between two steps.

    Raises:
        UsageError: there is no ``edl.Optimizer`` yet, or the loader splits batches
            (``micro_batch``).
    """
    optimizers = _of_this_job()
    if optimizers is None:
        raise UsageError("create an edl.Optimizer before edl.no_sync()")
    with optimizers.no_sync():
        yield


def skip_loss_check() -> None:
    """Do not warn of losses that are no means over samples, because the caller weights them."""
    if _loss_check is not None:
        _loss_check.end()


def begin_loop() -> None:
    # What the script changes before is not sent, because a newcomer's own script does the same.
    if _replica is not None and _of_this_job() is not None:
        _replica.begin()


def end_batch() -> None:
    if (optimizers := _of_this_job()) is not None:
        optimizers.end_batch()


def exchanges() -> bool:
    """Return whether `exchange` asks other workers: the job trains, and has several."""
    worker = current_worker()
    trains = worker.loader.progress.has_state and not (worker.finished or worker.warming_up)
    return trains and _of_this_job() is not None and not worker.ring.alone


def exchange(payload: bytes) -> list[bytes]:
    """Send `payload` to all workers, in a step or between two; return all in rank order."""
    worker, optimizers = current_worker(), _of_this_job()
    if optimizers is None or not exchanges():
        return [payload]
    if not worker.loader.open:
        return worker.exchange_bytes(payload)
    if (in_step := optimizers.exchange()) is None:
        raise UsageError(AFTER_REDUCTION)
    return in_step(payload)


def model_of(optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
    return None if _replica is None else _replica.model_of(optimizer)


def reduce_as_horovod(never_none: Iterable[torch.nn.Parameter]) -> None:
    """Let logical workers reduce gradients in `optimizer.step()`, as Horovod's optimizer does."""
    if (optimizers := _of_this_job()) is not None and current_worker().logical:
        optimizers.wait_for_step, optimizers.never_none = True, frozenset(never_none)


def unfinished() -> str:
    if _of_this_job() is None:
        return NO_OPTIMIZER
    return NO_STEP if current_worker().logical else UNFINISHED


def attach_optimizer(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, passes_per_step: int
) -> GradientReduction:
    global _optimizers, _replica, _loss_check
    worker, last_step = current_worker(), LastStep()
    worker.check_trains()
    if worker.logical:
        worker.describe_arithmetic(arithmetic)
    is_first = _of_this_job() is None
    optimizers = _of_this_job() or Optimizers(worker)
    reduction = GradientReduction(optimizers, optimizer, model, last_step, passes_per_step)
    if is_first or _replica is None:
        replica = TorchReplica(model, optimizer, last_step, averages_buffers=worker.logical > 0)
        process.attach_replica(replica, replica.expect_state)

        def observe(scaler: torch.amp.GradScaler) -> None:  # the script is about to use it
            if in_microbatches(worker):
                setting = "--logical" if worker.logical else "micro_batch"
                raise UsageError(
                    "a GradScaler looks at the gradients of each piece of a batch, and there are "
                    f"none before the last one; leave out {setting}, or train with bfloat16, which "
                    "needs no GradScaler"
                )
            optimizers.scaler = scaler
            replica.add_scaler(scaler)

        watch_scalers(observe)
        watch_losses(optimizers, optimizer)
        _loss_check = LossCheck(worker)
        _loss_check.begin()
        _replica = replica
    else:
        _replica.add(model, optimizer, last_step)
    _optimizers = optimizers
    return reduction


def _of_this_job() -> Optimizers | None:
    if _optimizers is None or _optimizers.worker is not current_worker():
        return None  # at a prompt there may be those of an earlier job
    return _optimizers


def exchange_objects(
    call: str,  # the script's call, the same on all workers
    value: Any,
    advice: str,
    send: Callable[[bytes], list[bytes]] | None = None,
) -> list[Any]:
    answers = [pickle.loads(each) for each in (send or exchange)(pickle.dumps((call, value)))]
    for rank, (theirs, _) in enumerate(answers):
        if theirs != call:
            raise UsageError(
                f"the worker of rank {rank} calls {theirs} while this one calls {call}: {advice}"
            )
    return [each for _, each in answers]


def reduced(
    tensors: Sequence[torch.Tensor], operation: str, weights: Sequence[int] = ()
) -> torch.Tensor:
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
# Compute metrics of torchmetrics over all workers.
#
# torchmetrics sends each state of a metric by itself, by `torch.distributed`. If a worker died
# between two states, a metric would be made of true positives of three workers and false positives
# of two. Here all states of a metric travel in one message, so it is made of the same workers, and
# their lists may differ in length. torchmetrics is not imported: a metric is known by what it has.


def sync_metrics(metrics: torch.nn.Module) -> None:
    """Let metrics of torchmetrics compute their values over all workers of the job.

    ``compute()`` then adds up what all workers have given to ``update()``, and each goes on with
    its own counts. All call it at the same points: between two steps, or in a step before
    ``backward()``. In a warm-up, and before and after the training, a metric is of this worker
    alone. What a worker had counted is lost when it dies or leaves.

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
    if isinstance(values[0], list):
        together = [item for each in values for item in each]
        return reduction(together) if together and reduction is not None else together
    stacked = torch.stack([*values])
    return stacked if reduction is None else reduction(stacked)


def _moved(value: Any, device: Any) -> Any:
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

    It is called as :func:`gather` is, and raises the same errors, but the shapes may differ. It
    fits ``dist_sync_fn`` of torchmetrics; :func:`sync_metrics` sends all states of a metric at
    once.

    Args:
        tensor: a tensor on any device and of any shape; the returned tensors are on the same
            device, without a gradient. A tensor without elements may have any type, and is returned
            in the type of the others (torchmetrics gathers a state to which a worker has added
            nothing yet as float32).
        group: ignored; torchmetrics passes its process group here, and edl has no process groups.
    """
    return tensors_of_all(tensor)


def tensors_of_all(
    tensor: torch.Tensor, exchange: Callable[[bytes], list[bytes]] | None = None
) -> list[torch.Tensor]:
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

    def array(tensor: torch.Tensor) -> Array:
        rows = _array(tensor)
        return rows.reshape(1) if rows.ndim == 0 else rows

    return _combined(value, array, check_rows, torch.cat)


@overload
def sum(value: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


@overload
def sum(value: torch.Tensor) -> torch.Tensor: ...


def sum(
    value: torch.Tensor | Mapping[str, torch.Tensor] | float,
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return the sum of the values of all workers, the same on all workers, as a tensor.

    It is called as :func:`gather` is, and raises the same errors, also where shapes differ at all.
    Integers are added exactly; other types are added in double precision.

    Args:
        value: a tensor, a number, or a dict of these with the same keys on all workers. A Python
            number becomes a tensor of PyTorch's default type: float32 or int64.

    Returns:
        The sum as a tensor of the type and device of ``value``, or a dict of such sums by the same
        keys. The sum of booleans is an int64.
    """
    return _combined(value, _array, check_same_shape, lambda tensors: reduced(tensors, "sum"))


def _combined(
    value: Any,
    array: Callable[[torch.Tensor], Array],
    check: Callable[[str, list[Array]], None],
    combine: Callable[[list[torch.Tensor]], torch.Tensor],
) -> torch.Tensor | dict[str, torch.Tensor]:
    """Return what `combine` makes of all workers' tensors, for a tensor or each of a dict."""
    named = value if isinstance(value, Mapping) else {"": value}
    tensors = {name: torch.as_tensor(each) for name, each in named.items()}
    found = gather_arrays({name: array(each) for name, each in tensors.items()})
    together = {}
    for name, own in tensors.items():
        parts = [each[name] for each in found]
        check(name, parts)
        together[name] = combine(
            [torch.from_numpy(part).view(own.dtype).to(own.device) for part in parts]
        )
    return together if named is value else together[""]


def _array(tensor: torch.Tensor) -> Array:
    own = tensor.detach().cpu().contiguous()
    array: Array = own.view(AS_INTEGERS.get(own.dtype, own.dtype)).numpy()
    return array
