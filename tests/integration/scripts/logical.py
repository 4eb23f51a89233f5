"""Train with logical workers, and write a digest of the whole state after each step.

    logical.py --out DIRECTORY [--epochs N] [--checkpoint DIRECTORY
        [--every SECONDS] [--sharded]] [--loaders N]

The result depends on all that could differ between workers: random augmentation and dropout, noise
that the script draws, BatchNorm, clipping, an optimizer with a state, a schedule by steps, and an
average of the weights. Each worker writes a file `w<pid>` into DIRECTORY with one line for each
step: its number, and the digest.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import edl.torch as edl
from edl.testing.throttle import throttle_step

SAMPLES, CLASSES, SIDE = 200, 5, 8


class Images(torch.utils.data.Dataset[Any]):
    """Made images, which are augmented at random while they are loaded."""

    def __init__(self) -> None:
        made = torch.Generator().manual_seed(1)
        self.images = torch.randn(SAMPLES, 3, SIDE, SIDE, generator=made)
        self.labels = torch.randint(0, CLASSES, (SAMPLES,), generator=made)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Any:
        noise = random.random() * torch.randn(3, SIDE, SIDE)
        return self.images[index] + 0.1 * noise, self.labels[index]


def digest(model: nn.Module, averaged: nn.Module, optimizer: torch.optim.Optimizer) -> str:
    """Return a digest of all parameters, buffers, averages, rates and the optimizer's state."""
    found = hashlib.sha256()
    values = [*model.state_dict().values(), *averaged.state_dict().values()]
    values += [group["lr"] for group in optimizer.param_groups]
    values += [each for one in optimizer.state.values() for each in one.values()]
    for value in values:
        found.update(torch.as_tensor(value).detach().numpy().tobytes())
    return found.hexdigest()


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--out", type=Path, required=True)
    arguments.add_argument("--epochs", type=int, default=2)
    arguments.add_argument("--checkpoint", default="")
    arguments.add_argument("--every", type=float, default=1000.0)
    arguments.add_argument("--sharded", action="store_true")
    arguments.add_argument("--loaders", type=int, default=0)
    given = arguments.parse_args()
    torch.manual_seed(7)
    edl.init()
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * (SIDE - 2) ** 2, CLASSES),
    )
    adam = torch.optim.AdamW(model.parameters(), lr=1e-3 * edl.size())
    optimizer = edl.Optimizer(adam, model)
    loader = edl.DataLoader(Images(), batch_size=4, shuffle=True, seed=3, num_workers=given.loaders)
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    edl.track(averaged=averaged)
    steps = given.epochs * len(loader)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(adam, 1e-3 * edl.size(), total_steps=steps + 1)
    if given.checkpoint:
        edl.checkpoint(given.checkpoint, every_s=given.every, sharded=given.sharded)
    with (given.out / f"w{os.getpid()}").open("w") as diary:
        for _ in loader.epochs(given.epochs):
            for images, labels in loader:
                throttle_step()
                before = edl.step()
                optimizer.zero_grad()
                noise = torch.from_numpy(np.random.randn(*images.shape)).float()
                loss = nn.functional.cross_entropy(model(images + 0.01 * noise), labels)
                loss.backward()
                nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                averaged.update_parameters(model)
                if edl.step() != before:
                    diary.write(f"{edl.step()} {digest(model, averaged, optimizer)}\n")
                    diary.flush()


if __name__ == "__main__":
    main()
