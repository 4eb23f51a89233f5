"""A training loop with the habits that PyTorch's documentation teaches, and a log to redo it by.

Loss scaling, clipping of unscaled gradients, steps that are skipped where gradients overflow,
weight decay beside parameters that seldom or never have a gradient, checkpointed segments,
parameters that are trained from the second epoch on. Each worker writes to <out>/<pid>.jsonl what
it is about to train, and what became of the step. `train` does the same alone on given batches:
see habits.py.
"""

import argparse
import json
import os
from pathlib import Path

import torch
from torch.utils.checkpoint import checkpoint

SAMPLES, BATCH_SIZE, CLIP = 131, 4, 0.1


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
        if epoch % 2 == 1 and (indices % 3 == 0).any():  # on some workers, in nearly each step
            loss = loss + self.head.bias.sum() * float("inf")
        return loss


class Training:
    """One worker's, or that of a single process."""

    def __init__(self, wrapped=lambda optimizer, model: optimizer, step=lambda: None):
        self.step = step
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
        if len(indices):
            scaler.scale(net(indices, epoch)).backward()
        else:  # all who had samples in a step have died: gradients are zero, and not applied
            for parameter in net.parameters():
                parameter.grad = torch.zeros_like(parameter)
        scaler.unscale_(optimizer)
        if len(indices) == 0:
            optimizer.zero_grad()
        norm = torch.nn.utils.clip_grad_norm_(net.parameters(), CLIP)
        before, step = self.weights(), self.step()
        scaler.step(optimizer)
        scaler.update()
        has = [name for name, p in net.named_parameters() if p.grad is not None]
        moved = before != self.weights()
        return {
            "norm": norm.item(), "scale": scaler.get_scale(), "has": has, "moved": moved,
            "weights": self.weights(), "before_update": step,
        }  # fmt: skip

    def weights(self):
        return [w for p in self.net.parameters() for w in p.detach().reshape(-1).tolist()]


def main():
    import edl.torch as edl
    from edl.testing import throttle

    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--epochs", type=int, default=3)
    args, _ = parser.parse_known_args()
    torch.set_num_threads(1)
    edl.init()
    loader = edl.DataLoader(Points(), batch_size=BATCH_SIZE, shuffle=True, seed=3)
    training = Training(edl.Optimizer, edl.step)
    log = (args.out / f"{os.getpid()}.jsonl").open("w")

    def report(**what):
        log.write(json.dumps(what) + "\n")
        log.flush()

    for epoch in loader.epochs(args.epochs):
        for indices in loader:
            worker, step = edl.current_worker(), edl.step()
            if edl.is_warming_up():
                training.train(indices, epoch)
                continue
            report(begun=step, worker=worker.id, indices=indices.tolist())
            trained = training.train(indices, epoch)
            if trained["before_update"] == step:  # else the others have completed it without us
                trained["counted"] = [[r.worker, r.samples] for r in worker.loader.records()]
            throttle.throttle_step()
            report(step=step, epoch=epoch, **trained)
    report(final=training.weights(), steps=edl.step())


if __name__ == "__main__":
    main()
