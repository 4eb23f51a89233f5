"""The benchmark's script under torchft, in the form of the example in torchft's README.

Each process is a replica group of its own. The time limits are short, so that a dead replica is
noticed soon; with torchft's own, of 60 s, the others would wait that long.
"""

import os
from datetime import timedelta
from typing import Any

import torch.nn.functional as F
from torch.utils.data import DataLoader
from torchft import (
    DistributedDataParallel,
    DistributedSampler,
    Manager,
    Optimizer,
    ProcessGroupGloo,
)

from benchmarks.script import BATCH_SIZE, EPOCHS, arguments
from benchmarks.torch.workload import MODELS, Synthetic, build_model, build_sgd

REPLICA = int(os.environ["REPLICA"])  # the number of this replica group
REPLICAS = 16  # at most
TIMEOUT = timedelta(seconds=float(os.environ["TIMEOUT_S"]))

progress, name = arguments(MODELS)
dataset = Synthetic()
sampler = DistributedSampler(dataset, REPLICA, REPLICAS, group_rank=0, num_replicas=1, seed=0)
loader = DataLoader(dataset, batch_size=BATCH_SIZE, sampler=sampler)
model = build_model(name)
sgd = build_sgd(model)


def load(state: dict[str, Any]) -> None:
    model.load_state_dict(state["model"])
    sgd.load_state_dict(state["optimizer"])


manager = Manager(
    pg=ProcessGroupGloo(timeout=TIMEOUT),
    load_state_dict=load,
    state_dict=lambda: {"model": model.state_dict(), "optimizer": sgd.state_dict()},
    min_replica_size=1,
    replica_id=f"replica-{REPLICA}",
    hostname="127.0.0.1",
    timeout=TIMEOUT,
    quorum_timeout=timedelta(seconds=30),
)
parallel = DistributedDataParallel(manager, model)
optimizer = Optimizer(manager, sgd)

for epoch in range(EPOCHS):
    sampler.set_epoch(epoch)
    for x, y in loader:
        optimizer.zero_grad()
        F.cross_entropy(parallel(x), y).backward()
        before = manager.current_step()
        optimizer.step()
        if manager.current_step() > before:  # else the step was thrown away
            progress.completed(manager.current_step(), manager.num_participants())
