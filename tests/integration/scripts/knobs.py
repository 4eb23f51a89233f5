"""A regression that a test changes while it trains: each file in the directory --knobs is a number.

``slow``: the seconds by which the last rank is slower in a step. ``talk``: the number of characters
that are printed in each step. ``lr``: the learning rate. ``end``: whether the script ends.
"""

import argparse
import time
from pathlib import Path

import torch

import edl.torch as edl

options = argparse.ArgumentParser()
options.add_argument("--knobs", type=Path)
options.add_argument("--checkpoint")
options.add_argument("--every", type=float, default=2.0)
args = options.parse_args()


def knob(name: str, default: float) -> float:
    try:
        return float((args.knobs / name).read_text())
    except (OSError, ValueError):
        return default


torch.manual_seed(0)
torch.set_num_threads(1)
edl.init()
x = torch.randn(960, 16)
y = x @ torch.randn(16, 1) + 0.1 * torch.randn(960, 1)
loader = edl.DataLoader(torch.utils.data.TensorDataset(x, y), batch_size=16, shuffle=True, seed=0)
model = torch.nn.Linear(16, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), lr=0.05), model)
edl.checkpoint(args.checkpoint, every_s=args.every)
for _ in loader.epochs(100_000):
    for inputs, wanted in loader:
        loss = torch.nn.functional.mse_loss(model(inputs), wanted)
        optimizer.zero_grad()
        loss.backward()
        time.sleep(0.04 + (knob("slow", 0.0) if edl.rank() == edl.size() - 1 else 0.0))
        optimizer.param_groups[0]["lr"] = knob("lr", 0.05)
        optimizer.step()
        if said := int(knob("talk", 0)):
            print("x" * said, flush=True)
    if knob("end", 0):
        break
