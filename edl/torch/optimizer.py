"""Provide ``edl.torch.Optimizer``, by which an optimizer applies all workers' mean gradient."""

from __future__ import annotations

import contextlib
from typing import Any, TypeVar

import horovod.torch as hvd
import torch

from edl.binding.process import current_worker
from edl.errors import UsageError, some
from edl.torch.api import attach_optimizer
from edl.torch.lr_schedules import follow_policy
from edl.torch.optimizer_state import AGAIN, Arguments, after_closure, complete, inner_optimizers
from edl.torch.optimizer_state import stepping as stepping_in
from edl.torch.reduction import GradientReduction
from edl.torch.replica import Numbers, option_numbers

Wrapped = TypeVar("Wrapped", bound=torch.optim.Optimizer)

# Modules of PyTorch that exchange gradients among processes by themselves.
_EXCHANGING = {"DistributedDataParallel", "FullyShardedDataParallel"}

COUNTS = (
    "{kind} counts its calls of step(), also those that make no update, because more microbatches "
    "follow; use another optimizer, or leave out micro_batch or --logical"
)


def Optimizer(
    optimizer: Wrapped, model: torch.nn.Module | None = None, *, backward_passes_per_step: int = 1
) -> Wrapped:
    """Make ``optimizer`` apply the mean gradient over the global batch of all workers; return it.

    A script may have several optimizers, each with its module: those of a GAN, of an actor and its
    critic. With each batch any of them may make its update; the order of the updates must be the
    same on all workers.

    Gradients are sent while backward still computes. When ``backward()`` returns, each gradient is
    the mean over the global batch. The optimizer gets the methods ``synchronize()`` and
    ``skip_synchronize()`` of Horovod's optimizer, which a script need not call. Newcomers receive
    the model's parameters and buffers and the optimizer's state.

    Args:
        optimizer: the optimizer to change in place.
        model: the module whose parameters it trains; it must be given.
        backward_passes_per_step: how many backward passes come before each ``optimizer.step()``.
            Their gradients are added up before they are sent, as with :func:`edl.torch.no_sync`.
            After fewer passes ``optimizer.step()`` sends the sums over these passes. With logical
            workers they are passes over parts of one batch, with a ``step()`` for each batch.

    Raises:
        UsageError: ``edl.init()`` was not called; ``optimizer`` is no optimizer of PyTorch, was
            wrapped already, is a SparseAdam, or evaluates a closure more than once in a step
            (LBFGS); the model is PyTorch's DistributedDataParallel or FSDP, or
            ``torch.distributed`` has a process group of several processes;
            ``backward_passes_per_step`` is less than 1, or more than 1 with several optimizers; a
            further optimizer is made after the first batch; a parameter has another optimizer; or
            the optimizer has an LR scheduler, and the job's policy sets its rate.
    """
    current_worker()
    if not isinstance(model, torch.nn.Module):
        raise UsageError(
            "edl.Optimizer needs the model that the optimizer trains, which newcomers receive: "
            "edl.Optimizer(optimizer, model)"
        )
    if not isinstance(optimizer, torch.optim.Optimizer):
        raise UsageError(
            f"edl.Optimizer wraps a torch.optim.Optimizer; this is a {type(optimizer).__name__}"
        )
    if isinstance(optimizer, torch.optim.SparseAdam):
        raise UsageError(
            "gradients are dense after their reduction, which SparseAdam refuses; use Adam"
        )
    if isinstance(optimizer, torch.optim.LBFGS) and _evaluates_again(optimizer):
        raise UsageError(AGAIN.format(kind="LBFGS"))
    _check_other_exchange(model)
    if current_worker().logical:
        _check_logical(optimizer, model)
    if hasattr(optimizer, "synchronize"):
        raise UsageError("this optimizer was wrapped by edl.Optimizer (or Horovod) already")
    if backward_passes_per_step < 1:
        raise UsageError(
            f"backward_passes_per_step is {backward_passes_per_step}; it must be at least 1"
        )
    complete(optimizer)
    reduction = attach_optimizer(optimizer, model, backward_passes_per_step)

    listen(optimizer, reduction)
    optimizer.synchronize = reduction.synchronize  # type: ignore[attr-defined]
    optimizer.skip_synchronize = contextlib.nullcontext  # type: ignore[attr-defined]
    follow_policy(optimizer)
    return optimizer


def _evaluates_again(lbfgs: torch.optim.LBFGS) -> bool:
    return any(group["max_iter"] > 1 or group["line_search_fn"] for group in lbfgs.param_groups)


def _check_other_exchange(model: torch.nn.Module) -> None:
    """Raise UsageError if another library than edl may average the gradients of `model`, too."""
    # edl would average them again, with other weights.
    others = {type(one).__name__ for one in model.modules()} & _EXCHANGING
    if others:
        raise UsageError(
            f"edl exchanges the gradients, and so does {some(sorted(others))}: give edl.Optimizer "
            "the bare module, and leave that wrapper out (docs/get-started/from-ddp.md)"
        )
    group = torch.distributed
    if group.is_available() and group.is_initialized() and group.get_world_size() > 1:
        raise UsageError(
            "this script has a process group of torch.distributed with "
            f"{group.get_world_size()} processes, which does not follow the job's workers; leave "
            "out init_process_group and what uses it (docs/get-started/from-ddp.md)"
        )


def _check_logical(optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> None:
    if inner_optimizers(optimizer):
        raise UsageError(
            f"{type(optimizer).__name__} wraps another optimizer, and may change weights at each "
            "step(), also before the last logical worker's; give edl.Optimizer the wrapped one, or "
            "leave out --logical"
        )
    shared = torch.nn.SyncBatchNorm, hvd.SyncBatchNorm
    if any(isinstance(one, shared) for one in model.modules()):
        raise UsageError(
            "SyncBatchNorm takes its statistics from all workers, so the result would depend on "
            "their number; with logical workers use BatchNorm, whose averages are the mean over "
            "all of them, or leave out --logical"
        )


def listen(optimizer: torch.optim.Optimizer, reduction: GradientReduction) -> None:
    """Set hooks on `step()`: before it gradients are reduced, after it the job's step ends."""
    stepping: torch.optim.Optimizer | None = None  # what steps within its step is part of it
    options: Numbers | None = None  # of its groups, before a step() that makes no update

    def begin() -> None:
        if reduction.accumulation.is_between_microbatches:  # no parameter has a gradient
            reduction.end_microbatch()
        else:
            reduction.begin_update()

    def before(
        hooked: torch.optim.Optimizer, arguments: tuple[Any, ...], named: dict[str, Any]
    ) -> Arguments | None:
        nonlocal stepping, options
        if hooked is not optimizer and stepping is optimizer:
            return None
        if stepping is None:  # else the step() of a class calls that of its base class
            between = reduction.accumulation.is_between_microbatches
            options = option_numbers(optimizer) if between else None
        stepping = hooked
        if len(arguments) < 2 and not named:  # no closure
            begin()
            return None
        return after_closure(arguments, named, begin)

    def after(hooked: torch.optim.Optimizer, *_: Any) -> None:
        nonlocal stepping
        if hooked is not stepping:
            return
        stepping = None
        if reduction.accumulation.is_between_microbatches:
            # Its next update would depend on how many microbatches came before. None: it was to
            # make the update, and a death has given this worker another microbatch meanwhile.
            if options is not None and options != option_numbers(optimizer):
                raise UsageError(COUNTS.format(kind=type(optimizer).__name__))
            return
        if not reduction.step.done:
            raise UsageError(f"{type(optimizer).__name__}.step() has not evaluated its closure")
        # A GradScaler leaves it to some optimizers to skip the update; this is on their device.
        found_inf = getattr(optimizer, "found_inf", None)
        reduction.end_step(skipped=False if found_inf is None else found_inf)

    for each in dict.fromkeys((optimizer, stepping_in(optimizer))):  # SAM's second step
        each.register_step_pre_hook(before)
        each.register_step_post_hook(after)
