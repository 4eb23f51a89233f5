"""A script under edl whose steps wait, so that two cores carry a cluster and several of its jobs.

It saves checkpoints if it is told a directory for them.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import edl.torch as edl
from benchmarks.script import EPOCHS, StepLog

parser = argparse.ArgumentParser()
parser.add_argument("--steps-to", type=Path, required=True, help="directory of the step logs")
parser.add_argument("--step-s", type=float, default=0.02, help="how long a step waits, in seconds")
parser.add_argument("--checkpoint", type=Path, help="save into this directory")
args = parser.parse_args()

torch.set_num_threads(1)
torch.manual_seed(0)
edl.init()
data = torch.utils.data.TensorDataset(torch.randn(4096, 16), torch.randint(0, 4, (4096,)))
loader = edl.DataLoader(data, batch_size=4, shuffle=True, seed=0)
model = torch.nn.Linear(16, 4)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.01), model)
if args.checkpoint:
    edl.checkpoint(args.checkpoint, every_s=5.0, keep=2)
log = StepLog(args.steps_to)

for _epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        loss = F.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(args.step_s)
        optimizer.step()
        if edl.generation() > 0:  # not in the warm-up, which trains nothing
            log.completed(edl.step(), edl.size())
print(f"process {os.getpid()} has trained to the end")
