"""Elastic PyTorch training on Horovod::

    import edl.torch as edl
    edl.init()
    loader = edl.DataLoader(dataset, batch_size=32, shuffle=True)
    optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.1), model)
    for epoch in loader.epochs(10):
        for x, y in loader:
            loss = F.cross_entropy(model(x), y)
            optimizer.zero_grad(); loss.backward(); optimizer.step()

Workers may join and leave meanwhile; see docs/concepts.md. The loss must be a mean over the
batch. One process has one worker, one loader and one optimizer. Sources of data: ``edl.data``.
"""

from __future__ import annotations

from edl import data
from edl.framework.process import (
    checkpoint,
    current_worker,
    generation,
    is_initialized,
    is_leader,
    is_rehearsing,
    leader,
    local_rank,
    on_resize,
    rank,
    shutdown,
    size,
    step,
)
from edl.torch.api import init, notify_batch_end, track
from edl.torch.loader import DataLoader
from edl.torch.optimizer import Optimizer

__all__ = [
    "DataLoader",
    "Optimizer",
    "checkpoint",
    "current_worker",
    "data",
    "generation",
    "init",
    "is_initialized",
    "is_leader",
    "is_rehearsing",
    "leader",
    "local_rank",
    "notify_batch_end",
    "on_resize",
    "rank",
    "shutdown",
    "size",
    "step",
    "track",
]
