"""An MLP with two hidden layers, by default 256-2048-2048-10, and SGD with momentum 0.9.

The default has 4.7 million parameters, so 19 MB of gradients a step.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import Dataset

from benchmarks.script import CLASSES, FEATURES, POOL, SAMPLES

# The widths of the hidden layers, by millions of parameters.
WIDTHS = {
    "4.7M": (2048, 2048),
    "0.1M": (256, 128),
    "50M": (6912, 6912),
    "100M": (9868, 9868),
}
MODELS = tuple(WIDTHS)  # the first is the default


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


def build_model(name: str = MODELS[0]) -> nn.Module:
    """Return the model of that name in ``WIDTHS``, with the same weights in every process."""
    torch.manual_seed(0)
    first, second = WIDTHS[name]
    return nn.Sequential(
        nn.Linear(FEATURES, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(),
        nn.Linear(second, CLASSES),
    )  # fmt: skip


def build_sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
