"""The functions of ``edl.torch`` that know PyTorch; the others are :mod:`edl.framework.process`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch

from edl.errors import UsageError
from edl.framework import process
from edl.framework.process import current_worker
from edl.framework.state import Stateful
from edl.torch.accumulation import in_pieces
from edl.torch.collectives import TorchCollectives
from edl.torch.loss import LossLook
from edl.torch.optimizers import Optimizers
from edl.torch.reduction import GradientReduction, LastStep
from edl.torch.replica import TorchReplica
from edl.torch.scalers import see_scalers
from edl.torch.schedulers import watch_schedulers
from edl.torch.sync_batch_norm import synchronise_batch_norm

_optimizers: Optimizers | None = None  # once there is one
_replica: TorchReplica | None = None

watch_schedulers()  # a script may make one before edl.init()
synchronise_batch_norm(lambda: None if (found := _of_this_job()) is None else found.exchange())


def init(**settings: Any) -> None:
    """Take part in the job that the launcher started this process for.

    Without a launcher the script is a job of one worker. In a job that is already training the
    call returns at once and the script *warms up*, see :meth:`edl.torch.DataLoader.epochs`.
    A second call does nothing. ``settings``: fields of :class:`edl.config.Config`.

    Raises:
        ConfigError: a setting has no usable value.
        CoordinationError: ZooKeeper or the job is not there.
        JobFailed: the job did not start in time.
    """
    process.start(TorchCollectives, settings)


def track(**objects: Stateful) -> None:
    """Let objects follow the job: their state reaches every newcomer.

    Each needs ``state_dict()`` and ``load_state_dict()``: counters, averages of the weights. LR
    schedulers of PyTorch's base class and gradient scalers follow by themselves.

    Raises:
        UsageError: an object has no such methods.
    """
    process.track(TorchReplica.check, objects)


def notify_batch_end() -> None:
    """This batch is done with, and counts as trained. ``optimizer.step()`` ends with it.

    Only a batch needs it that has no ``backward()``, on all workers alike. Harmless twice. Inside
    of :func:`no_sync` its step goes on with the next batch, and only this worker leaves it out.
    """
    worker = current_worker()
    optimizers = _of_this_job()
    if not worker.loader.open or optimizers is None:
        worker.loader.end()
    elif not optimizers.leave_out():
        optimizers.skip()


@contextlib.contextmanager
def no_sync() -> Iterator[None]:
    """Backward passes inside only add up gradients on this worker, as in PyTorch's DDP.

    Several batches make one step of the optimizer: all but the last one have their ``backward()``
    inside, the last one has it outside, and sends the sums. The update is weighted by the samples
    of all those batches; divide each loss by their number to get the mean over them. Workers join
    and leave between two steps.

    Raises:
        UsageError: there is no ``edl.Optimizer`` yet.
    """
    optimizers = _of_this_job()
    if optimizers is None:
        raise UsageError("create an edl.Optimizer before edl.no_sync()")
    with optimizers.no_sync():
        yield


def begin_loop() -> None:
    """The script's loop over the epochs begins: what it did before, each script does."""
    if _replica is not None and _of_this_job() is not None:
        _replica.begin()


def end_batch() -> None:
    """The script wants its next batch: the update of this one was made, or skipped."""
    if (optimizers := _of_this_job()) is not None:
        optimizers.end_batch()


def model_of(optimizer: torch.optim.Optimizer) -> torch.nn.Module | None:
    """What an ``edl.Optimizer`` of this job trains; None: it is none."""
    return None if _replica is None else _replica.model_of(optimizer)


def has_optimizer() -> bool:
    """Whether the script has made an ``edl.Optimizer``."""
    return _of_this_job() is not None


def attach_optimizer(
    optimizer: torch.optim.Optimizer, model: torch.nn.Module, passes_per_step: int
) -> GradientReduction:
    """Reduce the gradients of ``optimizer``, and share what it trains (called by ``Optimizer``).

    Raises:
        UsageError: see :meth:`edl.torch.optimizers.Optimizers.add`.
    """
    global _optimizers, _replica
    worker, last_step = current_worker(), LastStep()
    worker.check_trains()
    is_first = _of_this_job() is None
    optimizers = _of_this_job() or Optimizers(worker)
    reduction = GradientReduction(optimizers, optimizer, model, last_step, passes_per_step)
    if is_first or _replica is None:
        replica = TorchReplica(model, optimizer, last_step)
        process.attach_replica(replica)
        see_scalers(lambda scaler: _see_scaler(optimizers, replica, scaler))
        LossLook(worker).begin()
        _replica = replica
    else:
        _replica.add(model, optimizer, last_step)
    _optimizers = optimizers
    return reduction


def _see_scaler(
    optimizers: Optimizers, replica: TorchReplica, scaler: torch.amp.GradScaler
) -> None:
    if in_pieces(current_worker()):
        raise UsageError(
            "a GradScaler looks at the gradients of each piece of a batch, and there are none "
            "before the last one; leave out micro_batch, or train with bfloat16, which needs no "
            "GradScaler"
        )
    optimizers.scaler = scaler
    replica.see_scaler(scaler)


def _of_this_job() -> Optimizers | None:
    """At a prompt there may be those of a job before."""
    if _optimizers is None or _optimizers.worker is not current_worker():
        return None
    return _optimizers
