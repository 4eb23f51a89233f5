"""Train by steps.

--way "steps" or "job" counts the steps of the job, "own" the steps of this worker, and "hand" these
with a batch in hand. With "mean" a worker whose own count is lower asks for a mean then. Rank 0
writes the model into --model at the end.
"""

import argparse
import time

import torch

import edl.torch as edl

options = argparse.ArgumentParser()
options.add_argument("--way", choices=["steps", "job", "own", "hand", "mean"])
options.add_argument("--steps", type=int)
options.add_argument("--model")
args = options.parse_args()

edl.init()
numbers = torch.arange(80.0).reshape(-1, 1)
loader = edl.DataLoader(torch.utils.data.TensorDataset(numbers), batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), 1e-6), model)
edl.checkpoint(args.model + ".checkpoints")


def train(batch):
    optimizer.zero_grad()
    model(batch[0]).mean().backward()
    optimizer.step()
    time.sleep(0.05)


def forever():
    for _ in loader.epochs(10**6):
        yield from loader


batches = forever()
if args.way == "steps":
    for batch in loader.steps(args.steps):
        train(batch)
elif args.way == "job":
    while edl.step() < args.steps:
        train(next(batches))
elif args.way in ("own", "mean"):
    for own in range(1, args.steps + 1):
        train(next(batches))
        if args.way == "mean" and own < args.steps <= edl.step():
            edl.mean(0.0)
else:
    for number, batch in enumerate(batches):
        if number >= args.steps:
            break
        train(batch)
if edl.rank() == 0:
    torch.save(model.state_dict(), args.model)
print(f"ended at step {edl.step()}", flush=True)
