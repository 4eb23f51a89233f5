"""The script that is preempted, resumed and migrated; it says when each part of its start is over.

It appends "name monotonic_ns" to ``<pid>.marks``, beside the step log, for each part.
"""

import argparse
import os
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import edl.torch as edl
from benchmarks.preemption.timeline import process_start_s
from benchmarks.script import EPOCHS, StepLog
from benchmarks.torch.resnet import resnet50
from benchmarks.torch.workload import Synthetic, build_model, build_sgd

parser = argparse.ArgumentParser()
parser.add_argument("--steps-to", type=Path, required=True, help="directory of the step logs")
parser.add_argument("--saves-to", type=Path, required=True, help="directory of the checkpoints")
parser.add_argument("--every", type=float, default=1e6, help="seconds between two checkpoints")
parser.add_argument("--mode", choices=["mlp", "resnet50"], required=True)
args = parser.parse_args()
marks = (args.steps_to / f"{os.getpid()}.marks").open("a", buffering=1)


def mark(name: str, at_s: float | None = None) -> None:
    at_ns = time.monotonic_ns() if at_s is None else round(at_s * 1e9)
    marks.write(f"{name} {at_ns}\n")


mark("process", process_start_s())
mark("imports")
edl.init()
mark("ring")
torch.manual_seed(0)
if args.mode == "mlp":
    model, dataset, batch = build_model(), Synthetic(), 32
else:
    model, dataset, batch = resnet50(), Synthetic((3, 32, 32), 256), 4
loader = edl.DataLoader(dataset, batch_size=batch, shuffle=True, seed=0)
optimizer = edl.Optimizer(build_sgd(model), model)
edl.checkpoint(args.saves_to, every_s=args.every)
log = StepLog(args.steps_to)
mark("model")
if edl.rank() == 0:
    mark("rank 0")
has_begun = False

for _epoch in loader.epochs(EPOCHS):
    for x, y in loader:
        if not has_begun and edl.generation() > 0:  # not in the warm-up, which trains nothing
            mark("state")
            has_begun = True
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
        if edl.generation() > 0:
            log.completed(edl.step(), edl.size())
