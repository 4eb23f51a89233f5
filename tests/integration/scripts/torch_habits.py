"""A training loop with the habits that PyTorch's documentation teaches, and a log to redo it by.

Loss scaling, clipping of unscaled gradients, a step that is skipped where gradients overflow,
weight decay beside parameters that seldom or never have a gradient, checkpointed segments,
parameters that are trained from the second epoch on. Each worker writes what it did in a step to
<out>/<pid>.jsonl. The same `train` does it alone on given batches: see test_torch_habits.py.
"""

import argparse
import json
import os
import time
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

SAMPLES, BATCH_SIZE, CLIP = 131, 4, 0.1
OVERFLOW = 13  # the sample whose gradient is infinite, in the second epoch


class Points(torch.utils.data.Dataset):
    def __len__(self):
        return SAMPLES

    def __getitem__(self, index):
        return index


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = torch.nn.Linear(4, 4)
        self.outer = torch.nn.Linear(4, 4)
        self.head = torch.nn.Linear(4, 1)
        self.late = torch.nn.Parameter(torch.ones(4), requires_grad=False)
        self.seldom = torch.nn.Parameter(torch.ones(4))  # for every 7th sample
        self.never = torch.nn.Parameter(torch.ones(4))
        self.double()

    def forward(self, indices, epoch):
        x = torch.stack([torch.sin(indices * (k + 1.0)) for k in range(4)], dim=1).double()
        x.requires_grad_()  # or the reentrant checkpoint would give the body no gradient
        reentrant = epoch % 2 == 1
        hidden = checkpoint(self.inner, x, use_reentrant=reentrant)
        y = self.head(checkpoint(self.outer, hidden.tanh(), use_reentrant=reentrant) * self.late)
        loss = y.square().mean() * 100
        if (rare := indices % 7 == 0).any():
            loss = loss + (x[rare] * self.seldom).sum() / len(indices)
        if epoch == 1 and (indices == OVERFLOW).any():
            loss = loss + self.head.bias.sum() * float("inf")
        return loss


class Training:
    """One worker's, or that of a single process: ``wrapped`` is what edl does to an optimizer."""

    def __init__(self, wrapped=lambda optimizer, model: optimizer):
        torch.manual_seed(0)
        self.net = Net()
        sgd = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9, weight_decay=0.05)
        self.optimizer = wrapped(sgd, self.net)
        self.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10, growth_interval=3)

    def train(self, indices, epoch):
        """One step as the documentation has it; what became of it."""
        net, optimizer, scaler = self.net, self.optimizer, self.scaler
        net.late.requires_grad_(epoch > 0)
        optimizer.zero_grad()
        loss = net(indices, epoch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        before = self.weights()
        scaler.step(optimizer)
        scaler.update()
        has = [name for name, p in net.named_parameters() if p.grad is not None]
        moved = before != self.weights()
        return {
            "norm": norm.item(), "scale": scaler.get_scale(), "has": has, "moved": moved,
            "weights": self.weights(),
        }  # fmt: skip

    def weights(self):
        return [w for p in self.net.parameters() for w in p.detach().reshape(-1).tolist()]


def main():
    import edl.torch as edl

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--slow", type=Path, help="while this file exists, steps take a second")
    args = parser.parse_args()
    torch.set_num_threads(1)
    edl.init()
    loader = edl.DataLoader(Points(), batch_size=BATCH_SIZE, shuffle=True, seed=3)
    training = Training(edl.Optimizer)
    log = (args.out / f"{os.getpid()}.jsonl").open("w")

    def tell(**what):
        log.write(json.dumps(what) + "\n")
        log.flush()

    for epoch in loader.epochs(args.epochs):
        for indices in loader:
            counted = indices.tolist()[: edl.current_worker().samples]
            step, rehearsing = edl.step(), edl.is_rehearsing()
            told = training.train(indices, epoch)
            if args.slow and args.slow.exists():
                time.sleep(1.0)
            if not rehearsing:
                tell(step=step, epoch=epoch, indices=counted, **told)
    tell(final=training.weights(), steps=edl.step())


if __name__ == "__main__":
    main()
