"""Train PyTorch models on workers that may join and leave during the training, with Horovod.

A training script::

    import edl.torch as edl
    edl.init()
    loader = edl.DataLoader(dataset, batch_size=32, shuffle=True)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for epoch in loader.epochs(10):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

See docs/explanation/concepts.md for what happens when a worker joins or leaves. The loss must be a
mean over the samples of the batch. One process has one worker, one loader, and one optimizer or
several. ``edl.data`` has sources of data.

A script written for Horovod Elastic needs no more than ``import edl.torch as hvd`` in place of
``import horovod.torch as hvd``; see docs/guides/horovod-scripts.md and
:mod:`edl.torch.horovod_names`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import edl.binding.needs_horovod  # noqa: F401 - before the others
from edl import data, schedules
from edl.binding.api import absent, batch_weight, log, mean, on_interval, policy
from edl.binding.process import (
    checkpoint,
    current_worker,
    generation,
    is_initialized,
    is_leader,
    is_warming_up,
    leader,
    local_rank,
    num_processes,
    on_resize,
    rank,
    shutdown,
    size,
    step,
)
from edl.torch import elastic, horovod_names
from edl.torch.api import (
    gather,
    gather_each,
    init,
    no_sync,
    notify_batch_end,
    sum,
    sync_metrics,
    track,
)
from edl.torch.horovod_names import *  # noqa: F403 - for scripts written for Horovod
from edl.torch.loader import DataLoader
from edl.torch.lr_schedules import LRSchedule, in_samples
from edl.torch.optimizer import Optimizer
from edl.torch.replica import load_weights

__all__ = [
    "DataLoader",
    "LRSchedule",
    "LRTuner",
    "Optimizer",
    "batch_weight",
    "checkpoint",
    "current_worker",
    "data",
    "diagnose",
    "gather",
    "gather_each",
    "generation",
    "in_samples",
    "init",
    "is_initialized",
    "is_leader",
    "is_warming_up",
    "leader",
    "load_weights",
    "local_rank",
    "log",
    "mean",
    "no_sync",
    "notify_batch_end",
    "num_processes",
    "on_interval",
    "on_resize",
    "policy",
    "rank",
    "schedules",
    "shutdown",
    "size",
    "step",
    "sum",
    "sync_metrics",
    "track",
]
__all__ += ["elastic", *horovod_names.__all__]

if TYPE_CHECKING:
    from edl.contrib import torch_balance as diagnose
    from edl.contrib.torch_lr_tuner import LRTuner
else:  # for a type checker, every name would be one of this module's
    __getattr__ = absent(
        __name__,
        {
            "LRTuner": "edl.contrib.torch_lr_tuner:LRTuner",
            "diagnose": "edl.contrib.torch_balance",
        },
    )
