"""What every training script of the benchmark has in common.

MLP 256-2048-2048-10 (4.7 M parameters, so 19 MB of gradients a step), batch 32 a worker, SGD with
momentum 0.9, synthetic data of a fixed seed.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

BATCH_SIZE = 32
SAMPLES = 32_768
EPOCHS = 1_000_000  # the benchmark ends the job, not the script
POOL = 4096  # distinct samples; the data set repeats them


class Synthetic(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random features and labels, the same in every process."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(POOL, 256, generator=generator)
        self.labels = torch.randint(10, (POOL,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index % POOL], self.labels[index % POOL]


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(256, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(), nn.Linear(2048, 10)
    )


def build_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)


class StepLog:
    """Appends "monotonic_ns step size" for each completed step to ``<directory>/<pid>.steps``.

    CLOCK_MONOTONIC is one clock for all processes of a machine.
    """

    def __init__(self, directory: Path) -> None:
        path = directory / f"{os.getpid()}.steps"
        self._file = path.open("a", buffering=1)  # a line reaches the file at once

    def completed(self, step: int, size: int) -> None:
        self._file.write(f"{time.monotonic_ns()} {step} {size}\n")


class Turns:
    """Lets two jobs train in turns, block by block, so that both meet the same machine.

    The first ``warm`` steps are free; after them and after every ``block`` steps a worker says
    that it is done and sleeps until the conductor (step_time.py) names its job again.
    """

    def __init__(self, directory: Path, name: str, warm: int, block: int) -> None:
        self._directory, self._name, self._warm, self._block = directory, name, warm, block

    def completed(self, step: int) -> None:
        turn, rest = divmod(step - self._warm, self._block)
        if step < self._warm or rest:
            return
        (self._directory / f"{self._name}.{turn}.{os.getpid()}.done").touch()
        ticket = self._directory / f"{self._name}.{turn}.go"
        while not ticket.exists():
            time.sleep(0.005)


def parse_arguments() -> argparse.Namespace:
    """Arguments of all training scripts; ``turns`` is None unless jobs take turns."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps-to", type=Path, required=True, help="directory of the step logs")
    parser.add_argument("--turns", type=Path, help="directory in which jobs take turns")
    parser.add_argument("--name", default="", help="name of this job in the turns")
    parser.add_argument("--warm", type=int, default=0)
    parser.add_argument("--block", type=int, default=1)
    args = parser.parse_args()
    if args.turns is not None:
        args.turns = Turns(args.turns, args.name, args.warm, args.block)
    return args
