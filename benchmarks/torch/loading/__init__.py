"""Two loops that do little but load, in PyTorch: by edl.DataLoader, and by PyTorch's own.

MODES name the samples and the number of loader processes. The model has one input and one weight,
so a step costs little beside its batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.data import Dataset, TensorDataset

MODES = ("tensors-0", "tensors-2", "tiny-0", "tiny-2", "image-0", "image-2")
SHAPES = {"tensors": (16,), "tiny": (16,), "image": (3, 224, 224)}
SAMPLES = {"tensors": 65_536, "tiny": 65_536, "image": 4096}
BATCH_SIZE = {"tensors": 64, "tiny": 64, "image": 32}
DISTINCT = 64


class Pixels(Dataset[tuple[torch.Tensor, torch.Tensor]]):
    """Samples as torchvision's ``ToTensor`` makes them: bytes that become floats, and a label."""

    def __init__(self, kind: str) -> None:
        self._bytes = torch.randint(256, (DISTINCT, *SHAPES[kind]), dtype=torch.uint8)
        self._labels = torch.randint(10, (DISTINCT,))
        self._samples = SAMPLES[kind]

    def __len__(self) -> int:
        return self._samples

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        kept = index % DISTINCT
        return self._bytes[kept].to(torch.float32).div(255), self._labels[kept]


def dataset(kind: str) -> Dataset[Any]:
    """Return the samples of a kind in :data:`SAMPLES`: "tensors" in a ``TensorDataset``."""
    if kind != "tensors":
        return Pixels(kind)
    count = SAMPLES[kind]
    return TensorDataset(torch.rand(count, *SHAPES[kind]), torch.randint(10, (count,)))


class Smallest(torch.nn.Module):
    """A model of the first number of each sample."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.flatten(1)[:, 0] * self.weight).mean()


def parts(mode: str) -> tuple[str, int]:
    """Return the kind of samples and the number of loader processes that ``mode`` names."""
    kind, _, processes = mode.partition("-")
    return kind, int(processes)
