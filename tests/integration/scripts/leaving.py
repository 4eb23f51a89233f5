"""Leave a loop on all workers at the same step, with and without the update of the batch.

Then rank 1 leaves it alone, in epoch 2: --where "after" its fourth update, or "before" that.
"""

import argparse

import torch

import edl.torch as edl

options = argparse.ArgumentParser()
options.add_argument("--where", choices=["before", "after"])
options.add_argument("--epochs", type=int)
args = options.parse_args()

edl.init()
numbers = torch.arange(80.0).reshape(-1, 1)
loader = edl.DataLoader(torch.utils.data.TensorDataset(numbers), batch_size=4)
model = torch.nn.Linear(1, 1)
optimizer = edl.Optimizer(torch.optim.SGD(model.parameters(), 1e-6), model)


def leaves(where, batch):
    if epoch < 2:
        return batch == 3 and where == ("before", "after")[epoch]
    return batch == 3 and where == args.where and edl.rank() == 1


for epoch in loader.epochs(args.epochs):
    for batch, (x,) in enumerate(loader):
        if leaves("before", batch):
            break
        optimizer.zero_grad()
        model(x).mean().backward()
        optimizer.step()
        if leaves("after", batch):
            break
    if not edl.is_warming_up():
        print(f"epoch {epoch} left at step {edl.step()}", flush=True)
