"""MLP 256-2048-2048-10 (4.7 M parameters, so 19 MB of gradients a step), SGD with momentum 0.9."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.script import CLASSES, FEATURES, POOL, SAMPLES


class Synthetic(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random features of a shape, and labels, the same in every process.

    Args:
        shape: the shape of a sample's features.
        pool: the number of distinct samples; they repeat.
    """

    def __init__(self, shape: tuple[int, ...] = (FEATURES,), pool: int = POOL) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(pool, *shape, generator=generator)
        self.labels = torch.randint(CLASSES, (pool,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index % len(self.labels)], self.labels[index % len(self.labels)]


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, CLASSES),
    )  # fmt: skip


def build_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
