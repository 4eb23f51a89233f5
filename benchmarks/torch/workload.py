"""MLP 256-2048-2048-10 (4.7 M parameters, so 19 MB of gradients a step), SGD with momentum 0.9."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.script import CLASSES, FEATURES, POOL, SAMPLES


class Synthetic(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Random features and labels, the same in every process."""

    def __init__(self) -> None:
        generator = torch.Generator().manual_seed(1)
        self.features = torch.randn(POOL, FEATURES, generator=generator)
        self.labels = torch.randint(CLASSES, (POOL,), generator=generator)

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.features[index % POOL], self.labels[index % POOL]


def build_model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(FEATURES, 2048), nn.ReLU(), nn.Linear(2048, 2048), nn.ReLU(),
        nn.Linear(2048, CLASSES),
    )  # fmt: skip


def build_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
