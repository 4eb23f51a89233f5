"""Give the job's learning curve the losses and the learning rate of a script with PyTorch.

:func:`watch_losses` replaces ``torch.autograd.backward``, which ``Tensor.backward`` calls, because
a script need not name its loss to edl. Twice a second the number is copied, without a wait for the
device; all other calls only ask whether it is time.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from edl.torch.optimizers import Optimizers

_see: Callable[[Any], None] | None = None


def watch_losses(optimizers: Optimizers, optimizer: torch.optim.Optimizer) -> None:
    """Let the meter of the worker see the losses of the script, and the rate of `optimizer`."""
    global _see
    worker = optimizers.worker
    meter, loader = worker.learning, worker.loader
    meter.learning_rate = lambda: _number(optimizer.param_groups[0].get("lr"))

    def see(tensors: Any) -> None:
        if not meter.wants_loss or optimizers.several or worker.warming_up:
            return  # those of several optimizers have different meanings
        if loader.open and loader.batch_weight and (read := _reader(tensors, optimizers)):
            meter.see_loss(worker.step + 1, read)

    if _see is None:
        plain = torch.autograd.backward

        def backward(tensors: Any, *arguments: Any, **named: Any) -> None:
            if _see is not None:
                _see(tensors)
            return plain(tensors, *arguments, **named)

        torch.autograd.backward = backward
    _see = see


def _reader(loss: Any, optimizers: Optimizers) -> Callable[[], float | None] | None:
    """Return a function that returns a loss as a number, or None until the device has it."""
    if isinstance(loss, list | tuple) and len(loss) == 1:
        loss = loss[0]
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1 or loss.is_complex():
        return None
    if loss.device.type != "cuda":
        number, scale = loss.detach(), optimizers.loss_scale()
        return lambda: float(number) / scale
    with torch.cuda.device(loss.device):  # the script's current device may be another one
        if torch.cuda.is_current_stream_capturing():
            return None
        scale = optimizers.loss_scale()
        copied = loss.detach().to("cpu", non_blocking=True)
        done: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
        done.record()
    return lambda: float(copied) / scale if done.query() else None


def _number(rate: Any) -> float | None:
    try:
        return float(rate)
    except (TypeError, ValueError):
        return None
