"""A model with everything that is awkward to reduce, and a log by which the test can redo it.

float64, float32, bfloat16 and float16 parameters; one that only some workers use in a step; a
sparse embedding; batch norm; clipping after `optimizer.synchronize()`; one scheduler that steps
each batch and one each epoch. Each worker writes what it trained on to <out>/<pid>.jsonl.
"""

import argparse
import json
import os
from pathlib import Path

import torch

import edl.torch as edl
from edl.testing import throttle

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--out", type=Path, required=True)
parser.add_argument("--samples", type=int, default=203)
parser.add_argument("--epochs", type=int, default=4)
args = parser.parse_args()


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return args.samples

    def __getitem__(self, index):
        return index


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.wide = torch.nn.Parameter(torch.zeros(args.samples, dtype=torch.float64))
        self.plain = torch.nn.Linear(4, 2)
        self.brain = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
        self.narrow = torch.nn.Parameter(torch.ones(5, dtype=torch.float16))
        self.embedding = torch.nn.Embedding(7, 3, sparse=True)
        self.seldom = torch.nn.Parameter(torch.zeros(3))
        self.unused = torch.nn.Parameter(torch.zeros(3))
        self.frozen = torch.nn.Parameter(torch.ones(2), requires_grad=False)
        self.norm = torch.nn.BatchNorm1d(2)

    def forward(self, indices):
        x = torch.stack([torch.sin(indices * (k + 1.0)) for k in range(4)], dim=1)
        loss = self.wide[indices].mean() + self.norm(self.plain(x)).square().mean()
        loss = loss + self.brain.sum().double() + self.narrow.sum().double()
        loss = loss + self.embedding(indices % 7).square().mean()
        if edl.rank() % 2 == 1:
            loss = loss + self.seldom.sum()
        return loss


torch.set_num_threads(1)
torch.manual_seed(os.getpid())  # different on each worker: the first exchange makes them equal
edl.init()
loader = edl.DataLoader(Points(), batch_size=4, shuffle=True, seed=3)
net = Net()
optimizer = edl.Optimizer(torch.optim.SGD(net.parameters(), lr=1.0, momentum=0.0), net)
by_batch = torch.optim.lr_scheduler.ExponentialLR(optimizer, gamma=0.999)
by_epoch = torch.optim.lr_scheduler.MultiplicativeLR(optimizer, lambda _epoch: 0.5)
edl.track(by_batch=by_batch, by_epoch=by_epoch)
resizes = []
edl.on_resize(lambda old, new: resizes.append([old, new]))

log = (args.out / f"{os.getpid()}.jsonl").open("w")


def report(**what):
    log.write(json.dumps(what) + "\n")
    log.flush()


for epoch in loader.epochs(args.epochs):
    for indices in loader:
        optimizer.zero_grad()
        net(indices).backward()
        throttle.throttle_step()
        optimizer.synchronize()
        norm = torch.nn.utils.clip_grad_norm_([net.plain.weight], 1e9).item()
        step, rate = edl.step(), optimizer.param_groups[0]["lr"]
        counted = edl.current_worker().loader.engine.batches.samples
        optimizer.step()
        if not edl.is_warming_up():
            report(step=step, epoch=epoch, rate=rate, norm=norm, indices=indices.tolist()[:counted])
        by_batch.step()
    by_epoch.step()

weights = {name: value.double().tolist() for name, value in net.named_parameters()}
report(final=weights, rank=edl.rank(), resizes=resizes, steps=edl.step())
