"""A job and an optimizer without workers, for tests of LR schedulers that count samples."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from edl.step.noise import NoiseScale
from edl.worker.loader_steps import Update


class Job:
    """Updates of a job, as an optimizer sees them.

    A test sets it as the ``loader`` of the worker that ``edl.torch.lr_schedules`` asks.
    """

    def __init__(self) -> None:
        self.batch = 0
        self.number = 0
        self.batches: tuple[tuple[int, int], ...] = ()
        self.known = NoiseScale()
        self.progress = SimpleNamespace(noise=SimpleNamespace(asked=False), trained=0)

    @property
    def trained(self) -> int:
        return int(self.progress.trained)

    @trained.setter
    def trained(self, samples: int) -> None:
        self.progress.trained = samples

    @property
    def update(self) -> Update:
        after = self.trained + self.batch
        return Update(self.number, self.trained, after, self.batches, self.known, self.known)

    def train(self, sgd: torch.optim.Optimizer, batch: int) -> list[float]:
        self.batch = batch
        sgd.step()
        self.trained, self.batch = self.trained + batch, 0
        self.number += 1
        return [float(group["lr"]) for group in sgd.param_groups]


def elastic_sgd(groups: int = 1, rate: Any = 9.0) -> torch.optim.SGD:
    parameters = [{"params": [torch.nn.Parameter(torch.zeros(1))]} for _ in range(groups)]
    return elastic(torch.optim.SGD(parameters, lr=rate))


def elastic(optimizer: Any) -> Any:
    optimizer.synchronize = lambda: None  # as edl.Optimizer gives it
    return optimizer
