"""Provide the functions of ``edl.torch`` that need PyTorch, and register the script's optimizers.

Scripts call :func:`init`, :func:`track`, :func:`no_sync` and :func:`notify_batch_end`; edl's loader
and optimizers call the others. The functions that need no framework are in
:mod:`edl.binding.process`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from typing import Any

import torch

from edl.binding import process
from edl.binding.loop import RandomNumbers, numpy_is_seeded, seed_alike, seed_numpy
from edl.binding.process import current_worker
from edl.binding.replica import Trackable
from edl.errors import UsageError
from edl.torch.collectives import TorchCollectives
from edl.torch.gradients import LastStep, in_microbatches
from edl.torch.learning import LossLook, watch_losses
from edl.torch.logical import NO_STEP, arithmetic
from edl.torch.lr_schedules import watch_schedulers
from edl.torch.optimizers import Optimizers
from edl.torch.reduction import GradientReduction
from edl.torch.replica import TorchReplica, see_scalers
from edl.torch.sampler import refuse_partial_samplers
from edl.torch.seeding import seed_torch
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
_loss_look: LossLook | None = None

watch_schedulers(lambda: _is_between_logical())  # a script may make one before edl.init()
refuse_partial_samplers()
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
    if _loss_look is not None:
        _loss_look.end()


def begin_loop() -> None:
    """Record the parameter groups and `requires_grad` flags with which the epoch loop begins."""
    # What the script changes before is not sent, because a newcomer's own script does the same.
    if _replica is not None and _of_this_job() is not None:
        _replica.begin()


def end_batch() -> None:
    """End the current batch in all optimizers, before the script gets its next batch."""
    if (optimizers := _of_this_job()) is not None:
        optimizers.end_batch()


def _is_between_logical() -> bool:
    """Return whether a logical worker of the open step is yet to come in the script's loop."""
    if not process.is_initialized():
        return False
    engine = current_worker().loader.engine
    return engine.logical and engine.is_open and engine.batches.pieces_left > 0


def begin_piece(numbers: RandomNumbers) -> None:
    """Prepare for the pass on a batch, whose samples the script gets now."""
    if (optimizers := _of_this_job()) is not None:
        optimizers.begin_piece(numbers)


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
    """Return the model that `optimizer` trains; None if it is no optimizer of the current job."""
    return None if _replica is None else _replica.model_of(optimizer)


def reduce_as_horovod(never_none: Iterable[torch.nn.Parameter]) -> None:
    """Let logical workers reduce gradients in `optimizer.step()`, as Horovod's optimizer does."""
    if (optimizers := _of_this_job()) is not None and current_worker().logical:
        optimizers.wait_for_step, optimizers.never_none = True, frozenset(never_none)


def unfinished() -> str:
    """Return the text of the error for a batch that the script has taken and not trained."""
    if _of_this_job() is None:
        return NO_OPTIMIZER
    return NO_STEP if current_worker().logical else UNFINISHED


def attach_optimizer(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, passes_per_step: int
) -> GradientReduction:
    """Reduce the gradients of `optimizer`; add it and its model to the job's state."""
    global _optimizers, _replica, _loss_look
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
        see_scalers(lambda scaler: _see_scaler(optimizers, replica, scaler))
        watch_losses(optimizers, optimizer)
        _loss_look = LossLook(worker)
        _loss_look.begin()
        _replica = replica
    else:
        _replica.add(model, optimizer, last_step)
    _optimizers = optimizers
    return reduction


def _see_scaler(
    optimizers: Optimizers, replica: TorchReplica, scaler: torch.amp.GradScaler
) -> None:
    """Add a GradScaler that the script is about to use to the job's shared state."""
    if in_microbatches(current_worker()):
        setting = "--logical" if current_worker().logical else "micro_batch"
        raise UsageError(
            "a GradScaler looks at the gradients of each piece of a batch, and there are none "
            f"before the last one; leave out {setting}, or train with bfloat16, which needs no "
            "GradScaler"
        )
    optimizers.scaler = scaler
    replica.see_scaler(scaler)


def _of_this_job() -> Optimizers | None:
    """Return the optimizers of the current job; None if the script has made none in it."""
    if _optimizers is None or _optimizers.worker is not current_worker():
        return None  # at a prompt there may be those of an earlier job
    return _optimizers
